//! The report as a table, JSON or YAML.

use std::io::{self, Write};

use anyhow::Context;
use signpost_core::plan::FrontendKind;
use signpost_datapath::counts::BackendCounts;
use signpost_datapath::locate::{End, Location};
use signpost_node::rules::{Backend, Client, Row, State};

use super::Output;
use super::kernel::Report;

/// So many backends of a frontend stand in the short table.
const MOST_BACKENDS: usize = 8;
/// Between columns.
const GAP: usize = 3;

/// Prints it to standard output.
pub(super) fn print(report: &Report, output: Option<Output>) -> anyhow::Result<()> {
    let text = match output {
        Some(Output::Json) => serde_json::to_string_pretty(report)? + "\n",
        Some(Output::Yaml) => serde_saphyr::to_string(report).context("cannot be written as YAML")?,
        Some(Output::Wide) => table(report, true),
        None => table(report, false),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn table(report: &Report, wide: bool) -> String {
    let mut lines = vec![heads(wide)];
    let mut before = String::new();
    for row in &report.rows {
        let name = row.service_port.to_string();
        lines.extend(row_lines(row, name != before, wide));
        before = name;
    }
    let mut text = align(&lines);
    if report.differs() && report.from_daemon {
        text.push_str(
            "\n! the kernel does not hold this, or not as it should; the daemon puts it right when it compares\n",
        );
        if report.rows.iter().any(|row| !row.planned) {
            text.push_str("? the kernel has this, and the daemon does not want it\n");
        }
    }
    for lack in &report.lacks {
        text.push_str(&format!(
            "\nmode {}: {lack}\n",
            report.modes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        ));
    }
    text
}

fn heads(wide: bool) -> Vec<String> {
    let mut heads = vec!["SERVICE", "FRONTEND", "BACKEND", "STATE", "WEIGHT", "POLICY", "AFFINITY"];
    if wide {
        heads.extend(["NODE", "CLIENTS", "SOURCES", "CONNECTIONS"]);
    }
    heads.push("WHERE");
    heads.into_iter().map(str::to_owned).collect()
}

/// The lines of one frontend: the first has all, further backends and places stand below.
fn row_lines(row: &Row, named: bool, wide: bool) -> Vec<Vec<String>> {
    let most = if wide { usize::MAX } else { MOST_BACKENDS };
    let backends: Vec<&Backend> = row.backends.iter().take(most).collect();
    let left_out = row.backends.len() - backends.len();
    let places = places(row, wide);
    let count = backends.len().max(places.len()).max(1) + usize::from(left_out > 0);
    let mut lines = Vec::new();
    for at in 0..count {
        let backend = backends.get(at).copied();
        let nobody = |at: usize| if at == 0 { ends(row) } else { String::new() };
        let address = match backend {
            Some(backend) => backend.address.to_string(),
            None if at == count - 1 && left_out > 0 => format!("{left_out} more (-o wide)"),
            None => nobody(at),
        };
        let first = |text: String| if at == 0 { text } else { String::new() };
        let mut line = vec![
            first(if named { row.service_port.to_string() } else { String::new() }),
            first(row.frontend.to_string()),
            address,
            backend.map(|backend| state(backend.state).to_owned()).unwrap_or_default(),
            backend.map(|backend| backend.weight.to_string()).unwrap_or_default(),
            first(policy(row)),
            first(row.affinity_s.map_or("-".to_owned(), |seconds| format!("{seconds}s"))),
        ];
        if wide {
            let node = backend.and_then(|backend| backend.node.as_deref()).unwrap_or_default();
            let sources = row.source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            line.extend([
                node.to_owned(),
                backend.map(clients).unwrap_or_default(),
                first(if sources.is_empty() { "any".to_owned() } else { sources }),
                match backend {
                    Some(backend) => backend.counts.map_or("-".to_owned(), connections),
                    None => first(row.refused.map_or("-".to_owned(), |refused| format!("{refused} refused"))),
                },
            ]);
        }
        line.push(places.get(at).cloned().unwrap_or_default());
        lines.push(line);
    }
    lines
}

/// How many there were, of those how many came to nothing, and what those that are over sent and received.
fn connections(counts: BackendCounts) -> String {
    let BackendCounts { connections, unanswered, sent_bytes, received_bytes, sent_packets, received_packets } = counts;
    let mut text = connections.to_string();
    if unanswered > 0 {
        text.push_str(&format!(" ({unanswered} unanswered)"));
    }
    if sent_bytes + received_bytes > 0 {
        text.push_str(&format!(", {sent_bytes}/{received_bytes} bytes"));
    }
    if sent_packets + received_packets > 0 {
        text.push_str(&format!(", {sent_packets}/{received_packets} packets"));
    }
    text
}

/// In the short table the first place, and what is wrong; else all.
fn places(row: &Row, wide: bool) -> Vec<String> {
    let mark = |location: &Location| match (row.planned, location.held) {
        (false, _) => "? ",
        (true, false) => "! ",
        (true, true) => "",
    };
    let short = |location: &Location| match location.leads_to.is_empty() {
        true => format!("{}{}", mark(location), location.name),
        false => format!("{}{} -> {}", mark(location), location.name, location.leads_to),
    };
    if wide {
        return row.locations.iter().map(|location| format!("{}{location}", mark(location))).collect();
    }
    let wrong = row.locations.iter().skip(1).filter(|location| !location.held);
    row.locations.first().into_iter().chain(wrong).map(short).collect()
}

/// What becomes of clients where there is no backend.
fn ends(row: &Row) -> String {
    match row.ends.values().next() {
        Some(End::Reject) => "refused: no endpoints".to_owned(),
        Some(End::Drop) => "dropped: no local endpoints".to_owned(),
        None => String::new(),
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Terminating => "terminating",
        State::NotReady => "not ready",
        State::Unknown => "unknown",
    }
}

fn policy(row: &Row) -> String {
    let side = match row.kind {
        Some(FrontendKind::ClusterIp) => "internal",
        Some(_) => "external",
        None => return "?".to_owned(),
    };
    row.policy.map_or("?".to_owned(), |policy| format!("{side} {policy:?}"))
}

fn clients(backend: &Backend) -> String {
    let name = |client: &Client| match client {
        Client::Pod => "pods",
        Client::Node => "node",
        Client::Elsewhere => "others",
    };
    let all: Vec<&str> = backend.clients.iter().map(name).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

/// Columns as wide as their widest text; no blanks at the ends of lines.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let padded = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
        text.push_str(padded.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

//! Pure. A trace as text: the verdict first, then hops grouped by where they are.

use std::fmt::Write as _;

use super::{Evidence, Header, Hop, Trace, WayTraced, socket};

/// How it is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub colour: bool,
    /// Every way, and how each hop is known.
    pub wide: bool,
}

/// The text.
pub fn text(trace: &Trace, style: Style) -> String {
    let mut out = String::new();
    head(&mut out, trace);
    let shown = if style.wide { trace.ways.len() } else { 1 };
    for way in trace.ways.iter().take(shown) {
        out.push('\n');
        if trace.ways.len() > 1 {
            let _ = writeln!(
                out,
                "One of {} ways, {:.0} % of new flows: {}",
                trace.ways.len(),
                way.share * 100.0,
                way.fate
            );
        }
        self::way(&mut out, way, style);
    }
    for assumption in &trace.assumptions {
        let _ = writeln!(out, "\nassumed: {assumption}");
    }
    out
}

fn head(out: &mut String, trace: &Trace) {
    let mark = if trace.reached { "√" } else { "×" };
    let protocol = trace.protocol;
    let _ = writeln!(out, "{mark} {} to {}/{protocol}: {}", trace.from, trace.to, trace.outcome);
    if let Some(frontend) = &trace.frontend {
        let _ = writeln!(
            out,
            "  Service     {} ({} {}, on node {})",
            frontend.service_port, frontend.kind, frontend.key, frontend.node
        );
    }
    if let Some(hop) = trace.vanishes_at {
        let found = trace.ways.first().and_then(|way| way.forward.iter().find(|found| found.number == hop));
        let place = found.map(|found| match &found.node {
            Some(node) => format!("on node {node}, {}", found.place),
            None => found.place.clone(),
        });
        let _ = writeln!(out, "  Vanishes    {} is gone after hop {hop}: {}", trace.to, place.unwrap_or_default());
    }
    for (number, backend) in trace.backends.iter().enumerate() {
        let title = if number == 0 { "Backends" } else { "" };
        let on = backend.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let silent = if backend.answers { "" } else { "   no answer" };
        let _ = writeln!(
            out,
            "  {title:<11} {:>3.0} %  {} {}{on}{silent}",
            backend.share * 100.0,
            backend.name,
            backend.at
        );
    }
}

fn way(out: &mut String, way: &WayTraced, style: Style) {
    let all = way.forward.iter().chain(&way.reply);
    let width = |field: fn(&Hop) -> String| all.clone().map(|hop| field(hop).chars().count()).max().unwrap_or(0);
    let columns = [
        width(|hop| hop.place.clone()),
        width(|hop| marked(hop.after.source.to_string(), hop.changed().0)),
        width(|hop| marked(hop.after.destination.to_string(), hop.changed().1)),
    ];
    for (title, hops) in [("request", &way.forward), ("answer", &way.reply)] {
        if hops.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{title}");
        let mut group: Option<Option<&String>> = None;
        for hop in hops {
            if group != Some(hop.node.as_ref()) {
                group = Some(hop.node.as_ref());
                if let Some(node) = &hop.node {
                    let _ = writeln!(out, "  node {node}");
                }
            }
            line(out, hop, columns, style);
        }
    }
}

fn line(out: &mut String, hop: &Hop, [place, source, destination]: [usize; 3], style: Style) {
    let (new_source, new_destination) = hop.changed();
    let Header { source: from, destination: to } = hop.after;
    let evidence = match (style.wide, hop.evidence) {
        (false, Evidence::Computed) => "",
        (_, Evidence::Computed) => "  [computed]",
        (_, Evidence::Measured) => "  [measured]",
        (_, Evidence::Assumed) => "  [assumed]",
    };
    let took = hop.took_us.map(|took| format!("  +{took:.0} us")).unwrap_or_default();
    let _ = writeln!(
        out,
        "  {:>3}  {:<place$}  {} -> {}  {}{took}{evidence}",
        hop.number,
        hop.place,
        painted(&marked(socket(from), new_source), source, new_source, style),
        painted(&marked(socket(to), new_destination), destination, new_destination, style),
        hop.action,
    );
    for rule in &hop.rules {
        let _ = writeln!(out, "       {:<place$}    {rule}", "");
    }
}

/// A changed field is marked by more than a colour.
fn marked(text: String, changed: bool) -> String {
    if changed { format!("*{text}*") } else { text }
}

fn painted(text: &str, width: usize, changed: bool, style: Style) -> String {
    let padded = format!("{text:<width$}");
    if changed && style.colour { format!("\u{1b}[1;33m{padded}\u{1b}[0m") } else { padded }
}

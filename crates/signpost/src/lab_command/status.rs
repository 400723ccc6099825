//! `signpost lab status`.

use std::process::ExitCode;

use signpost_lab::control::{self, Answer, DaemonStatus, Question, Status};
use signpost_lab::{DEFAULT_NAME, LabError, state};

/// Shows one lab, or all; success if all that are shown are well.
pub(super) fn status(name: Option<String>) -> anyhow::Result<ExitCode> {
    let names: Vec<String> = match name {
        Some(name) => {
            super::check_name(&name)?;
            vec![name]
        }
        None => state::records().into_iter().map(|record| record.name).collect(),
    };
    if names.is_empty() {
        println!("no lab runs: start one with `signpost lab up`");
    }
    let mut all_well = true;
    for name in names {
        all_well &= show(&name)?;
    }
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows one lab; whether it is well.
fn show(name: &str) -> anyhow::Result<bool> {
    match control::ask(name, &Question::Status) {
        Ok(Answer::Status(status)) => {
            print!("{}", shown(&status));
            return Ok(status.daemons.values().all(|daemon| !matches!(daemon, DaemonStatus::Failed(_))));
        }
        Ok(other) => println!("{name}: answered {other:?}"),
        Err(LabError::NoSuchLab { name }) => {
            if state::lives(&name) {
                println!("{name}: starting or ending");
            } else if state::record(&name).is_some() {
                println!("{name}: dead; `signpost lab down --name {name}` removes what it left");
            } else {
                return Err(LabError::NoSuchLab { name }.into());
            }
        }
        // The other labs are shown all the same.
        Err(error) => println!("{name}: {error}"),
    }
    Ok(false)
}

fn shown(status: &Status) -> String {
    use std::fmt::Write;
    let record = &status.record;
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        writeln!(text, "  {key:<11} {value}").expect("writing to a String cannot fail");
    };
    line("process", record.pid.to_string());
    line("API", record.api.clone());
    line("kubeconfig", record.kubeconfig.display().to_string());
    line("families", record.families.to_string());
    let lab = if record.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", record.name) };
    for node in &record.nodes {
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        let start = format!("`signpost lab restart node/{}{lab}` starts it", node.name);
        let daemon = match status.daemons.get(&node.name) {
            Some(DaemonStatus::Running(pid)) => format!("daemon {pid}"),
            Some(DaemonStatus::Failed(problem)) => format!("{problem}; {start}"),
            Some(DaemonStatus::Stopped) | None => format!("daemon stopped; {start}"),
        };
        line(&format!("node {}", node.name), format!("{}  {daemon}", addresses.join(" ")));
    }
    let outside: Vec<String> = record.outside.iter().map(ToString::to_string).collect();
    line("outside", outside.join(" "));
    let pods: Vec<String> = status.pods.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    line("pods", if pods.is_empty() { "none".to_owned() } else { pods.join(", ") });
    if let Some(unsettled) = &status.unsettled {
        line("unsettled", unsettled.clone());
    }
    format!("{}: up\n{text}", record.name)
}

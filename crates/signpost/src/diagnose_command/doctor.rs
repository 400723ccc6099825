//! `signpost doctor [SERVICE]` and `signpost explain CODE`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use signpost_core::object::{ObjectName, Protocol};
use signpost_diagnose::address::{PortRef, Source, Target};
use signpost_diagnose::doctor::cause::{CAUSES, Code, Step};
use signpost_diagnose::doctor::finding::Verdict;
use signpost_diagnose::doctor::text::{Style, text};
use signpost_diagnose::doctor::{Question, To, diagnose};
use signpost_diagnose::redact::redact;
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::what_if::Change;

use super::probe::{probe, text as probe_text};
use super::source::{SourceOptions, save};
use super::{UNDETERMINED, USAGE, in_colour, yaml};

/// Between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(2);

/// Say why a Service does not work: the cause with its code first, then what it is concluded from, what to do, where to look.
///
/// Nothing is sent and nothing is changed: it reads the API, the nodes' rules and switches, and the pods' sockets.
///
/// Exit status: 0 healthy; 1 broken; 2 the command line is wrong; 3 it cannot be told; 4 degraded.
#[derive(Args)]
pub struct DoctorCommand {
    /// A Service: NAME or NAMESPACE/NAME. Default: all of the namespace.
    service: Option<String>,
    /// The namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Services of all namespaces, and the nodes.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// From one client: a pod (NAME or NAMESPACE/NAME), node/NAME, or outside. Default: a pod of each node.
    #[arg(long, value_name = "WHO")]
    from: Option<Source>,
    /// To one port of the Service (NUMBER, NAME, NUMBER/udp), or to a destination as `signpost trace` takes it.
    #[arg(long, value_name = "WHERE", requires = "service")]
    to: Option<String>,
    /// What it would be if: KIND/[NAMESPACE/]NAME=MERGE-PATCH as JSON; null deletes. May be given several times.
    #[arg(long, value_name = "PATCH")]
    what_if: Vec<Change>,
    /// Look at these steps alone, with commas between: name, endpoints, selector, rules, conntrack, way, outside, family.
    #[arg(long, value_delimiter = ',', value_name = "STEPS", value_parser = step)]
    only: Vec<Step>,
    /// Leave these steps out.
    #[arg(long, value_delimiter = ',', value_name = "STEPS", value_parser = step)]
    skip: Vec<Step>,
    /// From which verdict on the exit status tells.
    #[arg(long, value_enum, default_value_t = Threshold::Degraded)]
    failure_threshold: Threshold,
    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Keep what was read in this file, for `--from-file` or for somebody else.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// With other addresses in the file, so that it can be handed on; every verdict stays what it was.
    #[arg(long, requires = "save")]
    redact: bool,
    /// In a lab: also make real connections, five from each place to each port, and compare them with the walk. It says
    /// before what it makes; nothing else is sent.
    #[arg(long, requires = "service", conflicts_with = "from_file")]
    probe: bool,
    /// Go on looking, and tell what changes.
    #[arg(long, conflicts_with_all = ["save", "from_file", "what_if"])]
    watch: bool,
    #[command(flatten)]
    source: SourceOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Threshold {
    /// Only what is broken.
    Broken,
    /// What is degraded, too.
    Degraded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// What is not well, with its reasons.
    Text,
    /// One line for each Service.
    Table,
    /// Everything, with the steps of what is well.
    Wide,
    /// Everything, versioned.
    Json,
    /// The same as YAML.
    Yaml,
}

fn step(text: &str) -> Result<Step, String> {
    let known = || Step::ALL.map(Step::title).join(", ");
    Step::ALL.into_iter().find(|step| step.title() == text).ok_or_else(|| format!("{text} is no step: {}", known()))
}

impl DoctorCommand {
    /// Looks.
    ///
    /// # Errors
    /// The snapshot cannot be saved.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let question = match self.question() {
            Ok(question) => question,
            Err(problem) => return Ok(refused(&problem)),
        };
        let mut snapshot = match self.source.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                eprintln!("signpost: {error:#}");
                return Ok(ExitCode::from(UNDETERMINED));
            }
        };
        if let Some(file) = &self.save {
            if self.redact {
                save(&redact(&snapshot, &random()?)?, file)?;
            } else {
                save(&snapshot, file)?;
            }
        }
        if self.watch {
            return self.watch(&question, snapshot);
        }
        for change in &self.what_if {
            if let Err(problem) = change.apply(&mut snapshot) {
                return Ok(refused(&problem.to_string()));
            }
        }
        let report = match diagnose(&snapshot, &question) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("signpost: {error}");
                return Ok(ExitCode::from(UNDETERMINED));
            }
        };
        let style = |wide, table| Style { colour: in_colour(), wide, table };
        match self.output {
            Output::Text => print!("{}", text(&report, style(false, false))),
            Output::Table => print!("{}", text(&report, style(false, true))),
            Output::Wide => print!("{}", text(&report, style(true, false))),
            Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
            Output::Yaml => print!("{}", yaml(&report)?),
        }
        let mut contradicted = false;
        if let (true, Some(service)) = (self.probe, &question.service) {
            let probed = probe(&snapshot, service, &question)?;
            contradicted = probed.iter().any(|one| !one.agrees);
            match self.output {
                Output::Json => println!("{}", serde_json::to_string_pretty(&serde_json::json!({"probes": probed}))?),
                Output::Yaml => print!("---\n{}", yaml(&serde_json::json!({"probes": probed}))?),
                _ => print!("{}", probe_text(&probed)),
            }
        }
        Ok(ExitCode::from(match report.verdict {
            _ if contradicted => 1,
            Verdict::Healthy => 0,
            Verdict::Broken => 1,
            Verdict::Undetermined => UNDETERMINED,
            Verdict::Degraded if self.failure_threshold == Threshold::Broken => 0,
            Verdict::Degraded => 4,
        }))
    }

    /// Tells each change until it is interrupted.
    fn watch(&self, question: &Question, mut snapshot: Snapshot) -> anyhow::Result<ExitCode> {
        let mut last = None;
        loop {
            let shown = match diagnose(&snapshot, question) {
                Ok(report) => text(&report, Style { colour: in_colour(), wide: false, table: true }),
                Err(error) => format!("? {error}\n"),
            };
            if last.as_ref() != Some(&shown) {
                println!("{}", snapshot.taken_at);
                print!("{shown}");
                std::io::stdout().flush()?;
                last = Some(shown);
            }
            std::thread::sleep(WATCH); // the kernel tells nobody of most of what is looked at
            snapshot = self.source.snapshot()?;
        }
    }

    fn question(&self) -> Result<Question, String> {
        let service = self.service.as_ref().map(|service| match service.split_once('/') {
            Some((namespace, name)) => ObjectName::new(namespace, name),
            None => ObjectName::new(&self.namespace, service),
        });
        let namespace = (!self.all_namespaces).then(|| self.namespace.clone());
        let to = self.to.as_ref().map(|to| destination(to)).transpose()?;
        let steps = |steps: &[Step]| steps.iter().copied().collect::<BTreeSet<Step>>();
        Ok(Question {
            service,
            namespace,
            from: self.from.clone(),
            to,
            only: steps(&self.only),
            skip: steps(&self.skip),
        })
    }
}

/// `NUMBER`, `NAME`, either with `/tcp` or `/udp`; else a destination.
fn destination(text: &str) -> Result<To, String> {
    if text.contains([':', '$']) {
        return text.parse::<Target>().map(To::Target);
    }
    let (port, protocol) = match text.split_once('/') {
        Some((port, "tcp")) => (port, Some(Protocol::Tcp)),
        Some((port, "udp")) => (port, Some(Protocol::Udp)),
        Some((port, "sctp")) => (port, Some(Protocol::Sctp)),
        Some(_) => {
            return Err(format!("--to {text}: write PORT, PORT/udp, or a destination with a port after a colon"));
        }
        None => (text, None),
    };
    match port.parse::<u16>() {
        Ok(0) => Err(format!("--to {text}: a port is a number from 1 to 65535, or a name")),
        Ok(number) => Ok(To::Port(PortRef::Number(number), protocol)),
        Err(_) if port.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("--to {text}: a port is a number from 1 to 65535, or a name"))
        }
        Err(_) => Ok(To::Port(PortRef::Name(port.to_owned()), protocol)),
    }
}

fn random() -> anyhow::Result<[u8; 32]> {
    let mut key = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

fn refused(problem: &str) -> ExitCode {
    eprintln!("signpost: {problem}");
    ExitCode::from(USAGE)
}

/// Print the page of a cause.
#[derive(Args)]
pub struct ExplainCommand {
    /// Its code, such as SP301. Default: a list of all.
    code: Option<String>,
}

impl ExplainCommand {
    /// Prints it.
    ///
    /// # Errors
    /// None.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Some(code) = self.code else {
            for cause in &CAUSES {
                println!("{}  {:<10}  {}", cause.id, cause.step.title(), cause.title);
            }
            return Ok(ExitCode::SUCCESS);
        };
        match code.parse::<Code>() {
            Ok(code) => {
                print!("{}", code.cause().page);
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Ok(refused(&error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_a_destination_are_told_apart() {
        assert_eq!(destination("80"), Ok(To::Port(PortRef::Number(80), None)));
        assert_eq!(destination("dns/udp"), Ok(To::Port(PortRef::Name("dns".to_owned()), Some(Protocol::Udp))));
        assert!(matches!(destination("nodeport/n1/web:80"), Ok(To::Target(_))));
        assert!(matches!(destination("udp://web:53"), Ok(To::Target(_))));
        for wrong in ["0", "99999", "", "80/icmp", "web:"] {
            assert!(destination(wrong).is_err(), "{wrong}");
        }
    }
}

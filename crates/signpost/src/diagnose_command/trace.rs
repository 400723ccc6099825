//! `signpost trace FROM TO`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};
use signpost_core::object::{Family, Protocol};
use signpost_diagnose::address::{Source, Target};
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::trace::measured::{Measured, text as measured_text};
use signpost_diagnose::trace::text::{Style, text};
use signpost_diagnose::trace::{Question, Trace, picture, trace};

use super::measure::measure;
use super::source::{SourceOptions, save};
use super::{UNDETERMINED, USAGE, in_colour, yaml};

/// Show every hop of a packet, there and back: what changes it, where, and by which rule.
///
/// FROM is a pod (NAME or NAMESPACE/NAME), node/NAME, or outside. TO is SERVICE:PORT, SERVICE.NAMESPACE:PORT,
/// nodeport/NODE/SERVICE:PORT, lb/SERVICE:PORT, external/SERVICE:PORT, pod/NAME:PORT or ADDRESS:PORT, all also after udp://.
/// Nothing is sent: the way is computed from the rules that the nodes hold.
///
/// Exit status: 0 an answer comes back on every way; 1 not on every way; 2 the command line is wrong; 3 it cannot be told.
#[derive(Args)]
pub struct TraceCommand {
    /// Who sends.
    from: Source,
    /// Where to.
    to: Target,
    /// Another protocol than TO says.
    #[arg(long = "proto", value_enum)]
    protocol: Option<Transport>,
    /// ipv4 or ipv6. Default: the first in which both have an address.
    #[arg(long, value_enum)]
    family: Option<Wanted>,
    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t = Output::Tree)]
    output: Output,
    /// In a lab: make one connection (or send one datagram) there, look for its packet at every interface and in the rules of
    /// each node, and compare. tcpdump runs at the sender, the nodes and the pods that may answer; each node gets a table
    /// signpost-trace for that time, by which its kernel tells what the packet meets; no rule of a Service is touched.
    #[arg(long, conflicts_with = "from_file")]
    measure: bool,
    /// Keep what was read in this file as well.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    source: SourceOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Transport {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Wanted {
    Ipv4,
    Ipv6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One way as text, grouped by node.
    Tree,
    /// All ways, and how each hop is known.
    Wide,
    /// Everything, versioned.
    Json,
    /// The same as YAML.
    Yaml,
    /// A graph for Graphviz.
    Dot,
    /// A picture.
    Svg,
}

impl TraceCommand {
    /// Shows it.
    ///
    /// # Errors
    /// No cluster, or no snapshot in the file.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let snapshot = match self.source.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                eprintln!("signpost: {error:#}");
                return Ok(ExitCode::from(UNDETERMINED));
            }
        };
        if let Some(file) = &self.save {
            save(&snapshot, file)?;
        }
        let question = Question {
            from: self.from.clone(),
            to: self.to.clone(),
            family: self.family.map(|family| match family {
                Wanted::Ipv4 => Family::Ipv4,
                Wanted::Ipv6 => Family::Ipv6,
            }),
            protocol: self.protocol.map(|protocol| match protocol {
                Transport::Tcp => Protocol::Tcp,
                Transport::Udp => Protocol::Udp,
                Transport::Sctp => Protocol::Sctp,
            }),
        };
        match trace(&snapshot, &question) {
            Ok(found) => {
                let measured = self.measured(&snapshot, &found)?;
                match (self.output, &measured) {
                    (Output::Json | Output::Yaml, Some(measured)) => {
                        let both = serde_json::json!({"computed": found, "measured": measured});
                        let json = self.output == Output::Json;
                        print!("{}", if json { serde_json::to_string_pretty(&both)? + "\n" } else { yaml(&both)? });
                    }
                    (_, None) => print!("{}", self.shown(&found)?),
                    (_, Some(measured)) => {
                        println!("{}", self.shown(&found)?);
                        print!("{}", measured_text(measured));
                    }
                }
                let disagrees = measured.is_some_and(|measured| !measured.disagreements.is_empty());
                Ok(ExitCode::from(u8::from(!found.reached || disagrees)))
            }
            Err(error) => {
                eprintln!("signpost: {error}");
                Ok(ExitCode::from(USAGE))
            }
        }
    }

    fn measured(&self, snapshot: &Snapshot, found: &Trace) -> anyhow::Result<Option<Measured>> {
        if !self.measure {
            return Ok(None);
        }
        let Some(lab) = snapshot.origin.strip_prefix("lab ") else { bail!("--measure needs a lab") };
        let count = snapshot.nodes.len();
        eprintln!(
            "signpost: three {0}s from {1} to {2} that nobody looks at, then one that is followed; tcpdump and a table signpost-trace on {count} nodes, tcpdump in the pods; all go again",
            if found.protocol == Protocol::Udp { "datagram" } else { "connection" },
            found.from,
            found.to
        );
        measure(lab, snapshot, &self.from, found).map(Some)
    }

    fn shown(&self, found: &Trace) -> anyhow::Result<String> {
        Ok(match self.output {
            Output::Tree => text(found, Style { colour: in_colour(), wide: false }),
            Output::Wide => text(found, Style { colour: in_colour(), wide: true }),
            Output::Json => serde_json::to_string_pretty(found)? + "\n",
            Output::Yaml => yaml(found)?,
            Output::Dot => picture::dot(found),
            Output::Svg => picture::svg(found),
        })
    }
}

//! `signpost trace FROM TO`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use signpost_core::object::{Family, Protocol};
use signpost_diagnose::address::{Source, Target};
use signpost_diagnose::trace::text::{Style, text};
use signpost_diagnose::trace::{Question, Trace, picture, trace};

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
                print!("{}", self.shown(&found)?);
                Ok(ExitCode::from(u8::from(!found.reached)))
            }
            Err(error) => {
                eprintln!("signpost: {error}");
                Ok(ExitCode::from(USAGE))
            }
        }
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

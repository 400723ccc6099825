//! `signpost rules [SERVICE]`: what is programmed on this node, and where in the kernel it stands.
//!
//! ```text
//! daemon: /rules ─▶ rows, program ─┐
//!                                  ├─▶ compared ─▶ table, JSON, YAML
//! kernel: Datapath::observe ───────┘     (no daemon: what the kernel says alone)
//! ```

mod ask;
mod kernel;
mod print;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use signpost_core::object::ObjectName;
use signpost_node::process::may_change_network;

use ask::Asked;
use kernel::Report;

/// Some rows show what the kernel does not hold, or holds and should not.
const DIFFERS: u8 = 3;
/// No daemon answers: the kernel alone was read.
const NO_DAEMON: u8 = 4;

/// Show what is programmed on this node, and where in the kernel it stands.
///
/// Exit status: 0 the kernel holds what the daemon wants; 1 nothing can be told, or there is no such Service; 3 the kernel
/// differs (rows with a mark); 4 no daemon answers, the kernel alone was read.
#[derive(Args)]
pub struct RulesCommand {
    /// A Service: NAME or NAMESPACE/NAME. Default: all of the namespace.
    service: Option<String>,
    /// The namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Services of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// How it is shown. Default: a table.
    #[arg(short, long)]
    output: Option<Output>,
    /// Where the node daemon's metrics listener is.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS")]
    daemon: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One object.
    Json,
    /// The same as YAML.
    Yaml,
    /// The table with every place in the kernel.
    Wide,
}

/// Which Services.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    namespace: Option<String>,
    name: Option<String>,
}

impl Wanted {
    fn is(&self, service: &ObjectName) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| **namespace == *service.namespace)
            && self.name.as_ref().is_none_or(|name| **name == *service.name)
    }
}

impl RulesCommand {
    /// Prints it.
    ///
    /// # Errors
    /// The kernel cannot be read, or there is no such Service.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if !may_change_network() {
            bail!("reading the kernel's rules needs CAP_NET_ADMIN: run as root");
        }
        let wanted = self.wanted()?;
        let report = match ask::ask(self.daemon, &wanted)? {
            Asked::Answer(answer) => kernel::compare(self.daemon, &wanted, &answer)?,
            Asked::Nobody(why) => {
                eprintln!(
                    "signpost: no node daemon answers at {} ({why}): this is what the kernel alone says",
                    self.daemon
                );
                kernel::alone(&wanted)?
            }
        };
        if report.rows.is_empty() {
            return self.nothing(&wanted, &report);
        }
        print::print(&report, self.output)?;
        Ok(ExitCode::from(match (report.from_daemon, report.differs()) {
            (false, _) => NO_DAEMON,
            (true, true) => DIFFERS,
            (true, false) => 0,
        }))
    }

    fn wanted(&self) -> anyhow::Result<Wanted> {
        let (namespace, name) = match &self.service {
            Some(service) => match service.split_once('/') {
                Some((namespace, name)) => (Some(namespace.to_owned()), Some(name.to_owned())),
                None => (Some(self.namespace.clone()), Some(service.clone())),
            },
            None => (Some(self.namespace.clone()), None),
        };
        let namespace = namespace.filter(|_| !self.all_namespaces);
        for part in namespace.iter().chain(&name) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            if part.is_empty() || !part.chars().all(plain) {
                bail!("{part:?} cannot be the name of a Service or namespace: NAME or NAMESPACE/NAME is wanted");
            }
        }
        Ok(Wanted { namespace, name })
    }

    fn nothing(&self, wanted: &Wanted, report: &Report) -> anyhow::Result<ExitCode> {
        let Some(name) = &wanted.name else {
            let known = report.services.len();
            let place = wanted.namespace.as_ref().map_or("at all".to_owned(), |name| format!("in namespace {name}"));
            let elsewhere = if known > 0 { format!(" ({known} in others: -A shows them)") } else { String::new() };
            if !matches!(self.output, None | Some(Output::Wide)) {
                print::print(report, self.output)?;
            }
            eprintln!("signpost: no Service has rules on this node {place}{elsewhere}");
            return Ok(ExitCode::from(if report.from_daemon { 0 } else { NO_DAEMON }));
        };
        let service = match &wanted.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.clone(),
        };
        if report.services.iter().any(|known| wanted.is(known)) {
            bail!("the Service {service} has no rules on this node: it has no address of a family that is served here");
        }
        let near: Vec<String> =
            signpost_diagnose::nearest::nearest(name, wanted.namespace.as_deref(), &report.services);
        let near = if near.is_empty() { String::new() } else { format!("; near to it: {}", near.join(", ")) };
        bail!(
            "there is no Service {service} with rules on this node (headless and ExternalName Services never have some){near}"
        )
    }
}

/// The services of rows, for want of a daemon that knows them.
fn services_of(rows: &[signpost_node::rules::Row]) -> BTreeSet<ObjectName> {
    rows.iter().map(|row| row.service_port.service.clone()).collect()
}

/// These errors tell their cause in their own text.
fn whole(error: impl std::error::Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

fn family_context<T>(result: Result<T, impl std::error::Error>, what: &str) -> anyhow::Result<T> {
    result.map_err(whole).with_context(|| format!("cannot read the kernel's {what} rules"))
}

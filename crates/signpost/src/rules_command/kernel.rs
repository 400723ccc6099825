//! Puts together what the daemon says and what the kernel holds. A further mode adds itself to [`compare_once`] and
//! [`alone`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signpost_core::object::{Family, ObjectName, ServicePortName};
use signpost_core::plan::FrontendKey;
use signpost_datapath::ebpf::{Ebpf, KernelConfig, Node};
use signpost_datapath::iptables::{Iptables, IptablesConfig};
use signpost_datapath::ipvs::{Ipvs, IpvsConfig};
use signpost_datapath::locate::{Found, Locate};
use signpost_datapath::nftables::{Nftables, NftablesConfig};
use signpost_datapath::probe::{self, ProbeError};
use signpost_node::mode::Mode;
use signpost_node::rules::{Backend, Listing, Row};

use super::ask::{self, Asked};
use super::{Wanted, family_context, services_of};

/// A change may be on its way to the kernel: what differs is looked at again after this,
const AGAIN: Duration = Duration::from_millis(300);
/// so often.
const TIMES: usize = 3;

/// What is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Of this form.
    pub version: u32,
    /// The modes whose rules were read.
    pub modes: BTreeSet<Mode>,
    /// Whether a daemon said what should be; otherwise the kernel alone was read.
    pub from_daemon: bool,
    /// What is missing on the node for more, and what is done in its place; not known without a daemon.
    pub lacks: Vec<String>,
    pub rows: Vec<Row>,
    /// Every Service that is known.
    #[serde(skip)]
    pub services: BTreeSet<ObjectName>,
}

impl Report {
    /// Whether the kernel holds other things than the daemon wants.
    pub(super) fn differs(&self) -> bool {
        self.rows.iter().any(|row| !row.planned || !row.is_held())
    }
}

/// The daemon's rows with what the kernel holds of them.
pub(super) fn compare(daemon: SocketAddr, wanted: &Wanted, answer: &Listing<Value>) -> anyhow::Result<Report> {
    let mut report = compare_once(wanted, answer)?;
    for _ in 1..TIMES {
        if !report.differs() {
            break;
        }
        std::thread::sleep(AGAIN); // nothing tells when a change has gone to the kernel
        let Asked::Answer(answer) = ask::ask(daemon, wanted)? else {
            bail!("the node daemon ended while it was asked; ask again");
        };
        report = compare_once(wanted, &answer)?;
    }
    Ok(report)
}

fn compare_once(wanted: &Wanted, answer: &Listing<Value>) -> anyhow::Result<Report> {
    let mut rows = Vec::new();
    for (family, listing) in &answer.families {
        let program = listing
            .program
            .clone()
            .context("the daemon has programmed nothing yet: /healthz says what it waits for")?;
        let (family, listed) = (*family, listing.rows.clone());
        rows.extend(match answer.mode {
            Mode::Ebpf => of_mode(&mut ebpf(family, answer.process), family, wanted, listed, program)?,
            Mode::Nftables => of_mode(&mut nftables(family), family, wanted, listed, program)?,
            Mode::Iptables => of_mode(&mut iptables(family), family, wanted, listed, program)?,
            Mode::Ipvs => of_mode(&mut ipvs(family), family, wanted, listed, program)?,
        });
    }
    Ok(Report {
        version: 1,
        modes: BTreeSet::from([answer.mode]),
        from_daemon: true,
        lacks: answer.lacks.clone(),
        rows,
        services: answer.services.clone(),
    })
}

/// What the kernel says when nobody can say what it should hold.
pub(super) fn alone(wanted: &Wanted) -> anyhow::Result<Report> {
    let (mut rows, mut modes) = (Vec::new(), BTreeSet::new());
    for family in [Family::Ipv4, Family::Ipv6] {
        if usable(probe::nftables(OsStr::new("nft")), "nftables") {
            let have = Node::reader(KernelConfig::default()).kernel().observe(family)?;
            if have.attached {
                rows.extend(found(Mode::Ebpf, &mut modes, &mut ebpf(family, None), family)?);
            } else {
                rows.extend(found(Mode::Nftables, &mut modes, &mut nftables(family), family)?);
            }
        }
        if usable(probe::iptables(), "iptables") {
            rows.extend(found(Mode::Iptables, &mut modes, &mut iptables(family), family)?);
        }
    }
    let services = services_of(&rows);
    rows.retain(|row| wanted.is(&row.service_port.service));
    Ok(Report { version: 1, modes, from_daemon: false, lacks: Vec::new(), rows, services })
}

fn usable(probed: Result<(), ProbeError>, what: &str) -> bool {
    if let Err(error) = &probed {
        eprintln!("signpost: {what} is not looked at: {error}");
    }
    probed.is_ok()
}

/// What kube-proxy left is told as well.
fn nftables(family: Family) -> Nftables {
    Nftables::new(family, NftablesConfig { take_over: true, ..NftablesConfig::default() })
}

/// `daemon`: through whose eyes the bpf file system is looked at if this process does not see it.
fn ebpf(family: Family, daemon: Option<u32>) -> Ebpf {
    let rules = NftablesConfig { take_over: true, ..NftablesConfig::default() };
    let mut config = KernelConfig::default();
    let inside = config.pins.strip_prefix("/").unwrap_or(&config.pins);
    let seen = daemon.map(|process| Path::new("/proc").join(process.to_string()).join("root").join(inside));
    if let Some(seen) = seen.filter(|seen| !config.pins.is_dir() && seen.is_dir()) {
        config.pins = seen;
    }
    Ebpf::new(family, Node::reader(config), rules)
}

fn iptables(family: Family) -> Iptables {
    Iptables::new(family, IptablesConfig { take_over: true, ..IptablesConfig::default() })
}

fn ipvs(family: Family) -> Ipvs {
    Ipvs::new(family, IpvsConfig { take_over: true, ..IpvsConfig::default() })
}

fn of_mode<D>(
    datapath: &mut D,
    family: Family,
    wanted: &Wanted,
    rows: Vec<Row>,
    program: Value,
) -> anyhow::Result<Vec<Row>>
where
    D: Locate,
    D::Program: DeserializeOwned,
{
    let program: D::Program =
        serde_json::from_value(program).context("the daemon is of another version: its program cannot be read")?;
    let have = family_context(datapath.observe(), &family.to_string())?;
    let keys: BTreeSet<FrontendKey> = rows.iter().map(|row| row.frontend).collect();
    let mut located = datapath.locate(&program, &have, &keys);
    let mut found = datapath.found(family, &have);
    let mut rows = rows;
    for row in &mut rows {
        row.locations = located.remove(&row.frontend).unwrap_or_default();
        if let Some(found) = found.remove(&row.frontend) {
            weigh(&mut row.backends, &found.backends);
        }
    }
    // The plan has no such frontend, of any Service, if the program has none.
    let others: BTreeSet<FrontendKey> = found.keys().copied().collect();
    let known = datapath.locate(&program, &have, &others);
    let strangers = found.into_iter().filter(|(key, _)| !known.contains_key(key)).map(|(key, found)| {
        let mut row = unplanned(family, key, found);
        row.planned = false;
        row
    });
    rows.extend(strangers.filter(|row| wanted.is(&row.service_port.service)));
    Ok(rows)
}

/// The kernel's own weights, and backends that only it has.
fn weigh(backends: &mut Vec<Backend>, found: &BTreeMap<SocketAddr, u32>) {
    for (address, weight) in found {
        match backends.iter_mut().find(|backend| backend.address == *address) {
            Some(backend) => backend.weight = *weight,
            None => backends.push(Backend::unknown(*address, *weight)),
        }
    }
}

fn found<D: Locate>(
    mode: Mode,
    modes: &mut BTreeSet<Mode>,
    datapath: &mut D,
    family: Family,
) -> anyhow::Result<Vec<Row>> {
    let have = family_context(datapath.observe(), &family.to_string())?;
    let rows: Vec<Row> =
        datapath.found(family, &have).into_iter().map(|(key, found)| unplanned(family, key, found)).collect();
    if !rows.is_empty() {
        modes.insert(mode);
    }
    Ok(rows)
}

/// A row of what the kernel alone says.
fn unplanned(family: Family, frontend: FrontendKey, found: Found) -> Row {
    use signpost_node::rules::Client;
    let ends = found.ends.iter().next().filter(|_| found.backends.is_empty());
    Row {
        service_port: service_port(&found.service_port),
        family,
        frontend,
        kind: None,
        policy: None,
        affinity_s: None,
        source_ranges: Vec::new(),
        ends: ends.map(|end| (Client::Elsewhere, *end)).into_iter().collect(),
        backends: found.backends.iter().map(|(address, weight)| Backend::unknown(*address, *weight)).collect(),
        refused: None,
        rebalanced: None,
        locations: found.locations,
        planned: true,
    }
}

/// Out of `namespace/name:port`, as comments have it.
fn service_port(title: &str) -> ServicePortName {
    let (service, port) = title.split_once(':').unwrap_or((title, ""));
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    ServicePortName { service: ObjectName::new(namespace, name), port: port.into() }
}

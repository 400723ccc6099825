//! One server block at work.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use signpost_cluster::client::ClientError;
use tracing::warn;

use super::with_random;
use crate::cache::Cache;
use crate::config::{Hosts, ServerBlock, Upstream};
use crate::forward::Forwarder;
use crate::hosts::HostsTable;
use crate::message::Response;
use crate::metrics::{CacheNumbers, Metrics, Scope};
use crate::source::SharedZone;
use crate::zone::PodNames;

/// Where DNS is to be found.
const PORT: u16 = 53;
/// A resolv.conf of more servers is read no further (as `forward` takes no more).
const MOST_UPSTREAMS: usize = 15;

/// Why a Corefile that can be read cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No way to the API.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// autopath needs to know pods.
    #[error(
        "autopath @kubernetes needs `pods verified` in the kubernetes block: it looks for the namespace of the pod that asks"
    )]
    AutopathWithoutPods,
}

/// See above.
pub struct Block {
    pub(super) config: ServerBlock,
    server: String,
    /// Where its questions come in.
    pub(super) listen: Vec<SocketAddr>,
    pub(super) zones: Vec<(Name, Arc<Scope>)>,
    pub(super) zone: Option<Arc<SharedZone>>,
    pub(super) hosts: Option<Arc<SharedHosts>>,
    /// With the name that each is tried for loops with.
    pub(super) forwards: Vec<(Arc<Forwarder>, Name)>,
    pub(super) cache: Option<SharedCache>,
}

/// What upstreams said.
pub(super) struct SharedCache {
    pub(super) cache: Mutex<Cache>,
    pub(super) numbers: Arc<CacheNumbers>,
    /// Times are counted from here.
    pub(super) began: Instant,
}

/// A hosts table, and the file that it is read from.
pub struct SharedHosts {
    config: Hosts,
    table: RwLock<HostsTable>,
}

impl Block {
    /// Sets a block up. `defaults`: where it listens if it says nothing of that.
    ///
    /// # Errors
    /// Its plugins do not go together.
    pub fn new(
        config: ServerBlock,
        defaults: &[SocketAddr],
        zone: Option<Arc<SharedZone>>,
        metrics: &Arc<Metrics>,
    ) -> Result<Block, SetupError> {
        let pods = config.kubernetes.as_ref().map(|kubernetes| kubernetes.settings.pods);
        if config.autopath && pods != Some(PodNames::Verified) {
            return Err(SetupError::AutopathWithoutPods);
        }
        let listen = listen(&config, defaults);
        let server = server_label(&config, &listen);
        let zones = config.zones.iter().map(|zone| (zone.clone(), metrics.scope(&server, &zone.to_string()))).collect();
        let hosts = config.hosts.clone().map(|hosts| Arc::new(SharedHosts::read(hosts)));
        let forward = |settings: &crate::config::Forward| {
            let addresses = addresses(&settings.to);
            let forwarder = Arc::new(Forwarder::new(settings.clone(), addresses, metrics.clone()));
            (forwarder, probe_name(&settings.from))
        };
        let forwards = config.forwards.iter().map(forward).collect();
        let cache = config.cache.clone().map(|settings| SharedCache {
            cache: Mutex::new(Cache::new(settings)),
            numbers: metrics.cache(&server),
            began: Instant::now(),
        });
        Ok(Block { config, server, listen, zones, zone, hosts, forwards, cache })
    }

    /// How it is set up.
    pub fn config(&self) -> &ServerBlock {
        &self.config
    }

    /// How it is called in the numbers.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Where its questions come in.
    pub fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// The cluster's zone.
    pub fn zone(&self) -> Option<&Arc<SharedZone>> {
        self.zone.as_ref()
    }

    /// Its hosts table.
    pub fn hosts(&self) -> Option<&Arc<SharedHosts>> {
        self.hosts.as_ref()
    }

    /// Whether a name that the cluster does not have is looked for elsewhere.
    pub(super) fn falls_through(&self, name: &Name) -> bool {
        let kubernetes = self.config.kubernetes.as_ref();
        kubernetes.is_some_and(|kubernetes| kubernetes.falls_through.iter().any(|zone| zone.zone_of(name)))
    }

    /// Whether this is a question that we sent ourselves, to see whether it comes back. Then that forward is out of service.
    pub(super) fn is_own_probe(&self, name: &Name, kind: RecordType) -> bool {
        if !self.config.detect_loops || kind != RecordType::HINFO {
            return false;
        }
        let probed = self.forwards.iter().find(|(_, probe)| probe == name);
        if let Some((forwarder, _)) = probed {
            forwarder.is_a_loop();
        }
        probed.is_some()
    }

    /// What the hosts table says. `None`: the next plugin is asked.
    pub(super) fn hosts_answer(&self, name: &Name, kind: RecordType) -> Option<Response> {
        let hosts = self.hosts.as_ref()?;
        let config = &hosts.config;
        if !config.zones.iter().any(|zone| zone.zone_of(name)) {
            return None;
        }
        let table = hosts.table.read().unwrap_or_else(PoisonError::into_inner);
        match table.answer(name, kind, config.ttl_s, !config.no_reverse) {
            Some(answers) => Some(Response { authoritative: true, answers, ..Response::code(ResponseCode::NoError) }),
            None if config.falls_through.iter().any(|zone| zone.zone_of(name)) => None,
            // As CoreDNS: a table has no SOA record to say "no" with.
            None => Some(Response::code(ResponseCode::ServFail)),
        }
    }

    /// With autopath, the names to look up for this one, if it is the first of the client's search path.
    pub(super) fn search_path(&self, client: IpAddr, name: &Name, kind: RecordType) -> Option<Vec<Name>> {
        if !self.config.autopath || !matches!(kind, RecordType::A | RecordType::AAAA) {
            return None;
        }
        let zone = self.zone.as_ref()?.read();
        let namespace = zone.namespace_of(client.to_canonical())?;
        let service = Name::from_labels(["svc"]).ok()?.append_domain(zone.domain()).ok()?;
        let first = Name::from_labels([namespace]).ok()?.append_domain(&service).ok()?;
        let own = usize::from(name.num_labels()).checked_sub(first.num_labels().into()).filter(|own| *own > 0)?;
        if !first.zone_of(name) {
            return None;
        }
        let relative = Name::from_labels(name.iter().take(own)).ok()?;
        let others = [&service, zone.domain(), &Name::root()].map(|domain| relative.clone().append_domain(domain).ok());
        Some(std::iter::once(name.clone()).chain(others.into_iter().flatten()).collect())
    }
}

impl SharedHosts {
    fn read(config: Hosts) -> SharedHosts {
        let table = read_table(&config).unwrap_or_else(|error| {
            warn!(file = ?config.file, %error, "cannot read the hosts file; the lines of the Corefile serve alone");
            inline_table(&config)
        });
        SharedHosts { config, table: RwLock::new(table) }
    }

    /// How it is set up.
    pub fn config(&self) -> &Hosts {
        &self.config
    }

    /// Reads the file again. While it cannot be read, the lines of the Corefile serve alone.
    pub fn read_again(&self) {
        let table = read_table(&self.config).unwrap_or_else(|_| inline_table(&self.config));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn read_table(config: &Hosts) -> io::Result<HostsTable> {
    let text = config.file.as_deref().map(fs::read_to_string).transpose()?.unwrap_or_default();
    Ok(HostsTable::read(config.inline.iter().map(String::as_str).chain(text.lines())))
}

fn inline_table(config: &Hosts) -> HostsTable {
    HostsTable::read(config.inline.iter().map(String::as_str))
}

fn listen(config: &ServerBlock, defaults: &[SocketAddr]) -> Vec<SocketAddr> {
    let port = match config.port {
        // The port that everybody writes down is no choice: the command line's default goes before it.
        None | Some(PORT) if config.bind.is_empty() && !defaults.is_empty() => return defaults.to_vec(),
        port => port.unwrap_or(PORT),
    };
    let everywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let addresses = if config.bind.is_empty() { &everywhere[..] } else { &config.bind };
    addresses.iter().map(|address| SocketAddr::new(*address, port)).collect()
}

/// How CoreDNS calls a server in its numbers: `dns://:53`, `dns://127.0.0.1:1053`.
fn server_label(config: &ServerBlock, listen: &[SocketAddr]) -> String {
    match listen.first() {
        Some(first) if !first.ip().is_unspecified() => format!("dns://{first}"),
        first => format!("dns://:{}", first.map_or(config.port.unwrap_or(PORT), SocketAddr::port)),
    }
}

fn addresses(upstreams: &[Upstream]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for upstream in upstreams {
        match upstream {
            Upstream::Address(address) => addresses.push(*address),
            Upstream::ResolvConf(path) => addresses.extend(nameservers(path)),
        }
    }
    addresses.truncate(MOST_UPSTREAMS);
    addresses
}

fn nameservers(path: &Path) -> Vec<SocketAddr> {
    let text = read_or_warn(path);
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let address = words.next().filter(|_| is_server)?;
        address.parse::<IpAddr>().ok()
    });
    let servers: Vec<SocketAddr> = servers.map(|address| SocketAddr::new(address, PORT)).collect();
    if servers.is_empty() {
        warn!(path = %path.display(), "no nameserver in the file; names that were to be forwarded there are refused");
    }
    servers
}

fn read_or_warn(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        warn!(path = %path.display(), %error, "cannot read the file");
        String::new()
    })
}

/// A name that nobody else asks for.
fn probe_name(domain: &Name) -> Name {
    let label = || with_random(|random| random.draw().to_string());
    let name = Name::from_labels([label().into_bytes(), label().into_bytes()]).expect("the labels are short");
    name.append_domain(domain).unwrap_or_else(|_| domain.clone())
}

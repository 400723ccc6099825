//! Pure. What the server is to do: server blocks with their plugins, as CoreDNS's Corefile names them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;

use crate::zone::Settings;

/// All server blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// In the order of the file.
    pub servers: Vec<ServerBlock>,
}

/// One server block: zones, where it listens, and its plugins. They run in the order of the fields, whatever the order in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerBlock {
    /// The names that it answers for: those that end in one of these.
    pub zones: Vec<Name>,
    /// `None`: the default.
    pub port: Option<u16>,
    /// `bind`: empty: every address.
    pub bind: Vec<IpAddr>,
    /// `reload`: how often the file is read.
    pub reload: Option<Duration>,
    /// `ready`.
    pub ready: Option<Ready>,
    /// `health`.
    pub health: Option<Health>,
    /// `prometheus`.
    pub prometheus: Option<SocketAddr>,
    /// `errors`: failures are logged.
    pub errors: bool,
    /// `log`: every question is logged.
    pub log: bool,
    /// `loadbalance`: addresses in answers of upstreams come in random order. The cluster's own always do.
    pub loadbalance: bool,
    /// `cache`: what upstreams said is kept.
    pub cache: Option<Cache>,
    /// `rewrite`: in order.
    pub rewrites: Vec<Rewrite>,
    /// `autopath @kubernetes`.
    pub autopath: bool,
    /// `hosts`.
    pub hosts: Option<Hosts>,
    /// `kubernetes`.
    pub kubernetes: Option<Kubernetes>,
    /// `loop`: it is tried whether upstreams send our questions back to us.
    pub detect_loops: bool,
    /// `forward`: the one with the longest domain that fits is taken.
    pub forwards: Vec<Forward>,
}

/// `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Where it listens.
    pub address: SocketAddr,
    /// Not ready any more when the API is away; else ready for ever once it was.
    pub continuously: bool,
}

/// `health`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Where it listens.
    pub address: SocketAddr,
    /// How long questions are answered after the process was told to end.
    pub lameduck: Duration,
}

/// `cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Only these names.
    pub zones: Vec<Name>,
    /// But not those.
    pub except: Vec<Name>,
    /// Answers.
    pub success: Keep,
    /// "No".
    pub denial: Keep,
    /// How long a failure that an upstream told is kept.
    pub servfail: Duration,
    /// How long after its time an answer may be given.
    pub serve_stale: Option<ServeStale>,
    /// Popular answers are asked for again before their time is over.
    pub prefetch: Option<Prefetch>,
}

/// How one sort of answers is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How many.
    pub capacity: usize,
    /// No longer than this.
    pub most_ttl: Duration,
    /// No shorter.
    pub least_ttl: Duration,
}

/// `serve_stale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeStale {
    /// How long after its time.
    pub lasts: Duration,
    /// The upstream is asked first, and the old answer given only if it fails.
    pub verify: bool,
}

/// `prefetch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefetch {
    /// After so many hits.
    pub amount: u32,
    /// With no longer a pause between them.
    pub within: Duration,
    /// When so much of its time is left.
    pub percentage: u8,
}

/// `rewrite name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// What fits.
    pub from: Pattern,
    /// What the part that fits becomes.
    pub to: Name,
    /// Names in the answer are turned back.
    pub answer: bool,
    /// The next rule is tried too.
    pub goes_on: bool,
}

/// What a rewrite fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This name.
    Exact(Name),
    /// Names that end in this one.
    Suffix(Name),
}

/// `hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// A file, read again when it changes.
    pub file: Option<PathBuf>,
    /// Lines of the Corefile.
    pub inline: Vec<String>,
    /// Names that it answers for.
    pub zones: Vec<Name>,
    /// Of its records.
    pub ttl_s: u32,
    /// There are no PTR records.
    pub no_reverse: bool,
    /// How often the file is looked at; zero: never.
    pub reload: Duration,
    /// Names that it does not have go on to the next plugin.
    pub falls_through: Vec<Name>,
}

/// `kubernetes`.
#[derive(Debug, Clone, PartialEq)]
pub struct Kubernetes {
    /// How the zone answers.
    pub settings: Settings,
    /// Names that do not exist go on to the next plugin, in these domains.
    pub falls_through: Vec<Name>,
    /// How to reach the API.
    pub kubeconfig: Option<PathBuf>,
    /// The API's address, in place of the kubeconfig's.
    pub endpoint: Option<String>,
    /// How long the start waits for the API's lists.
    pub startup_timeout: Duration,
}

/// `forward`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Names in this domain.
    pub from: Name,
    /// Upstreams.
    pub to: Vec<Upstream>,
    /// But not those.
    pub except: Vec<Name>,
    /// How one is chosen.
    pub policy: Policy,
    /// By TCP always.
    pub force_tcp: bool,
    /// By UDP first, even if the question came by TCP.
    pub prefer_udp: bool,
    /// So many checks fail until one counts as down; 0: never.
    pub max_fails: u32,
    /// How often one that failed is checked.
    pub health_check: Duration,
    /// The name that is asked for then.
    pub health_domain: Name,
    /// Whether recursion is asked for then.
    pub health_recursion: bool,
    /// How long one has to answer.
    pub read_timeout: Duration,
    /// No more questions at once; 0: no limit but our own.
    pub max_concurrent: usize,
    /// These answers make the next one be asked.
    pub failover: Vec<ResponseCode>,
    /// When all are down: answers with failure at once, instead of trying one.
    pub fail_fast: bool,
}

/// Where to forward to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// A server.
    Address(SocketAddr),
    /// Those that a resolv.conf names.
    ResolvConf(PathBuf),
}

/// How an upstream is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At random.
    Random,
    /// One after the other.
    RoundRobin,
    /// The first that is not down.
    Sequential,
}

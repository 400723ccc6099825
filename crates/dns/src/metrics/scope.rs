//! What is counted for every question, by server and zone.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use super::DURATION_BUCKETS;
use super::text::{Histogram, Text};
use crate::message::Transport;

/// Threads that count at once without meeting; more of them share.
const SHARDS: usize = 8;
/// Buckets of sizes in bytes, as CoreDNS has them (8291 too).
const SIZE_BUCKETS: [f64; 14] =
    [0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3];
const SIZES: usize = SIZE_BUCKETS.len() + 1;
const DURATIONS: usize = DURATION_BUCKETS.len() + 1;

/// The types that have a name of their own in the numbers; the last stands for all others.
const TYPES: [(RecordType, &str); 18] = [
    (RecordType::A, "A"),
    (RecordType::AAAA, "AAAA"),
    (RecordType::SRV, "SRV"),
    (RecordType::PTR, "PTR"),
    (RecordType::TXT, "TXT"),
    (RecordType::CNAME, "CNAME"),
    (RecordType::MX, "MX"),
    (RecordType::NS, "NS"),
    (RecordType::SOA, "SOA"),
    (RecordType::HTTPS, "HTTPS"),
    (RecordType::DS, "DS"),
    (RecordType::DNSKEY, "DNSKEY"),
    (RecordType::RRSIG, "RRSIG"),
    (RecordType::NSEC, "NSEC"),
    (RecordType::NSEC3, "NSEC3"),
    (RecordType::ANY, "ANY"),
    (RecordType::SVCB, "SVCB"),
    (RecordType::ZERO, "other"),
];

/// Codes that have a name of their own in the numbers; the last stands for all others.
const CODES: [(ResponseCode, &str); 8] = [
    (ResponseCode::NoError, "NOERROR"),
    (ResponseCode::NXDomain, "NXDOMAIN"),
    (ResponseCode::ServFail, "SERVFAIL"),
    (ResponseCode::Refused, "REFUSED"),
    (ResponseCode::FormErr, "FORMERR"),
    (ResponseCode::NotImp, "NOTIMP"),
    (ResponseCode::BADVERS, "BADVERS"),
    (ResponseCode::NotZone, "other"),
];

/// Who gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// The server itself.
    Server,
    /// The cluster's zone.
    Kubernetes,
    /// An upstream.
    Forward,
    /// The cache.
    Cache,
    /// A hosts table.
    Hosts,
    /// `loop`.
    Loop,
}

const PLUGINS: [&str; 6] = ["", "kubernetes", "forward", "cache", "hosts", "loop"];

/// One question that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// How it came.
    pub transport: Transport,
    /// The client's address is one of IPv6.
    pub is_ipv6: bool,
    /// The type asked for.
    pub kind: RecordType,
    /// What was answered.
    pub code: ResponseCode,
    /// By whom.
    pub plugin: Plugin,
    /// The question's length in bytes.
    pub request_size: usize,
    /// The answer's.
    pub response_size: usize,
    /// With EDNS0's DO bit.
    pub dnssec_ok: bool,
    /// How long it took.
    pub took: Duration,
}

/// The numbers of one zone at one server.
pub struct Scope {
    server: Box<str>,
    zone: Box<str>,
    shards: [Shard; SHARDS],
}

/// On cache lines of its own.
#[repr(align(128))]
struct Shard {
    requests: [[[AtomicU64; TYPES.len()]; 2]; 2],
    responses: [[AtomicU64; PLUGINS.len()]; CODES.len()],
    durations: [[AtomicU64; DURATIONS]; TYPES.len()],
    duration_sums_ns: [AtomicU64; TYPES.len()],
    request_sizes: [Sizes; 2],
    response_sizes: [Sizes; 2],
    dnssec_ok: AtomicU64,
}

struct Sizes {
    counts: [AtomicU64; SIZES],
    sum: AtomicU64,
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    [const { AtomicU64::new(0) }; N]
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            own.set(Some(shard));
            shard
        })
    })
}

impl Scope {
    pub(super) fn new(server: &str, zone: &str) -> Scope {
        let sizes = || [(); 2].map(|()| Sizes { counts: zeros(), sum: AtomicU64::new(0) });
        let shard = |()| Shard {
            requests: [(); 2].map(|()| [(); 2].map(|()| zeros())),
            responses: [(); CODES.len()].map(|()| zeros()),
            durations: [(); TYPES.len()].map(|()| zeros()),
            duration_sums_ns: zeros(),
            request_sizes: sizes(),
            response_sizes: sizes(),
            dnssec_ok: AtomicU64::new(0),
        };
        Scope { server: server.into(), zone: zone.into(), shards: [(); SHARDS].map(shard) }
    }

    pub(super) fn is(&self, server: &str, zone: &str) -> bool {
        *self.server == *server && *self.zone == *zone
    }

    /// Counts a question that was answered.
    pub fn served(&self, served: &Served) {
        let shard = &self.shards[shard_of_thread()];
        let kind = place_of_type(served.kind);
        let (transport, family) = (served.transport as usize, usize::from(served.is_ipv6));
        let add = |number: &AtomicU64, value: u64| number.fetch_add(value, Ordering::Relaxed);
        add(&shard.requests[transport][family][kind], 1);
        add(&shard.responses[place_of_code(served.code)][served.plugin as usize], 1);
        let took_s = served.took.as_secs_f64();
        add(&shard.durations[kind][DURATION_BUCKETS.partition_point(|bound| *bound < took_s)], 1);
        add(&shard.duration_sums_ns[kind], served.took.as_nanos() as u64);
        for (sizes, size) in [
            (&shard.request_sizes[transport], served.request_size),
            (&shard.response_sizes[transport], served.response_size),
        ] {
            add(&sizes.counts[SIZE_BUCKETS.partition_point(|bound| *bound < size as f64)], 1);
            add(&sizes.sum, size as u64);
        }
        if served.dnssec_ok {
            add(&shard.dnssec_ok, 1);
        }
    }

    fn sum<'a>(&'a self, of: impl Fn(&'a Shard) -> &'a AtomicU64) -> u64 {
        self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
    }

    fn sizes<'a>(&'a self, of: impl Fn(&'a Shard) -> &'a Sizes) -> Histogram {
        let counts = (0..SIZES).map(|at| self.sum(|shard| &of(shard).counts[at])).collect();
        Histogram::counted(&SIZE_BUCKETS, counts, self.sum(|shard| &of(shard).sum) as f64)
    }
}

/// The name of a code in the numbers.
pub(super) fn code_name(code: ResponseCode) -> &'static str {
    CODES[place_of_code(code)].1
}

fn place_of_type(kind: RecordType) -> usize {
    TYPES.iter().position(|(known, _)| *known == kind).unwrap_or(TYPES.len() - 1)
}

fn place_of_code(code: ResponseCode) -> usize {
    CODES.iter().position(|(known, _)| *known == code).unwrap_or(CODES.len() - 1)
}

const TRANSPORTS: [(Transport, &str); 2] = [(Transport::Udp, "udp"), (Transport::Tcp, "tcp")];

/// A sample: labels beside those of its scope, and the value.
type Row = (Vec<(&'static str, &'static str)>, u64);

/// The families of all scopes.
pub(super) fn write(text: &mut Text, scopes: &[std::sync::Arc<Scope>]) {
    let labels =
        |scope: &std::sync::Arc<Scope>| [("server", scope.server.to_string()), ("zone", scope.zone.to_string())];
    let mut samples = |name: &str, kind: &str, help: &str, rows: &dyn Fn(&Scope) -> Vec<Row>| {
        text.family(name, kind, help);
        for scope in scopes {
            let own = labels(scope);
            for (more, value) in rows(scope).into_iter().filter(|(_, value)| *value > 0) {
                let mut all = vec![("server", own[0].1.as_str()), ("zone", own[1].1.as_str()), ("view", "")];
                all.extend(more);
                text.sample(name, &all, value as f64);
            }
        }
    };
    samples("coredns_dns_requests_total", "counter", "Questions.", &|scope| {
        let mut rows = Vec::new();
        for (transport, proto) in TRANSPORTS {
            for (family, number) in ["1", "2"].into_iter().enumerate() {
                for (at, (_, kind)) in TYPES.into_iter().enumerate() {
                    let value = scope.sum(|shard| &shard.requests[transport as usize][family][at]);
                    rows.push((vec![("proto", proto), ("family", number), ("type", kind)], value));
                }
            }
        }
        rows
    });
    samples("coredns_dns_responses_total", "counter", "Answers.", &|scope| {
        let mut rows = Vec::new();
        for (code, (_, name)) in CODES.into_iter().enumerate() {
            for (plugin, plugin_name) in PLUGINS.into_iter().enumerate() {
                let value = scope.sum(|shard| &shard.responses[code][plugin]);
                rows.push((vec![("rcode", name), ("plugin", plugin_name)], value));
            }
        }
        rows
    });
    samples("coredns_dns_do_requests_total", "counter", "Questions that want DNSSEC records.", &|scope| {
        vec![(Vec::new(), scope.sum(|shard| &shard.dnssec_ok))]
    });
    let name = "coredns_dns_request_duration_seconds";
    text.family(name, "histogram", "How long answers took.");
    for scope in scopes {
        for (at, (_, kind)) in TYPES.into_iter().enumerate() {
            let counts = (0..DURATIONS).map(|bucket| scope.sum(|shard| &shard.durations[at][bucket])).collect();
            let sum_s = scope.sum(|shard| &shard.duration_sums_ns[at]) as f64 / 1e9;
            let histogram = Histogram::counted(&DURATION_BUCKETS, counts, sum_s);
            if histogram.count() > 0 {
                let labels = [("server", &*scope.server), ("zone", &*scope.zone), ("view", ""), ("type", kind)];
                text.histogram(name, &labels, &histogram);
            }
        }
    }
    type OfShard = fn(&Shard, usize) -> &Sizes;
    let sizes: [(&str, &str, OfShard); 2] = [
        ("coredns_dns_request_size_bytes", "The size of questions.", |shard, at| &shard.request_sizes[at]),
        ("coredns_dns_response_size_bytes", "The size of answers.", |shard, at| &shard.response_sizes[at]),
    ];
    for (name, help, of) in sizes {
        text.family(name, "histogram", help);
        for scope in scopes {
            for (transport, proto) in TRANSPORTS {
                let histogram = scope.sizes(|shard| of(shard, transport as usize));
                if histogram.count() > 0 {
                    let labels = [("server", &*scope.server), ("zone", &*scope.zone), ("view", ""), ("proto", proto)];
                    text.histogram(name, &labels, &histogram);
                }
            }
        }
    }
}

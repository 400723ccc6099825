//! The numbers of the server, under CoreDNS's names, so that its dashboards and alerts work.
//!
//! What is counted for every question is counted in a shard of the thread that answers, so that threads do not wait for each
//! other's cache lines; a reader adds the shards up.

mod scope;
mod text;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hickory_proto::op::ResponseCode;

pub use scope::{Plugin, Scope, Served};
use text::{Histogram, Text};

/// Buckets of durations in seconds: 0.25 ms doubled 15 times.
const DURATION_BUCKETS: [f64; 16] =
    [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];
/// Buckets of the time from a change of an endpoint to its answer, in seconds: 1 ms doubled 19 times.
const PROGRAMMING_BUCKETS: usize = 20;

/// The registry. Every method may be called from anywhere.
pub struct Metrics {
    scopes: Mutex<Vec<Arc<Scope>>>,
    upstreams: Mutex<BTreeMap<(SocketAddr, &'static str), Histogram>>,
    health_checks: Mutex<BTreeMap<SocketAddr, u64>>,
    caches: Mutex<BTreeMap<Arc<str>, Arc<CacheNumbers>>>,
    programming: Mutex<BTreeMap<&'static str, Histogram>>,
    enabled: Mutex<Vec<(Arc<str>, String, &'static str)>>,
    rejected: AtomicU64,
    all_down: AtomicU64,
    panics: AtomicU64,
    reload_failures: AtomicU64,
    limited: AtomicU64,
    hosts_entries: AtomicU64,
    started_s: f64,
}

/// A sort of answers, and its number.
type CacheRow<'a> = (Option<&'a str>, fn(&CacheNumbers) -> &AtomicU64);

/// The numbers of one server block's cache.
#[derive(Debug, Default)]
pub struct CacheNumbers {
    /// Answers from it.
    pub hits: AtomicU64,
    /// "No"s from it.
    pub denial_hits: AtomicU64,
    /// Questions that it had nothing for.
    pub misses: AtomicU64,
    /// Answers given after their time.
    pub served_stale: AtomicU64,
    /// Answers asked for before their time was over.
    pub prefetches: AtomicU64,
    /// Answers in it.
    pub entries: AtomicU64,
    /// "No"s in it.
    pub denial_entries: AtomicU64,
}

impl Metrics {
    /// All zero.
    pub fn new() -> Metrics {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Metrics {
            scopes: Mutex::default(),
            upstreams: Mutex::default(),
            health_checks: Mutex::default(),
            caches: Mutex::default(),
            programming: Mutex::default(),
            enabled: Mutex::default(),
            rejected: AtomicU64::new(0),
            all_down: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            reload_failures: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            hosts_entries: AtomicU64::new(0),
            started_s: since_1970.as_secs_f64(),
        }
    }

    /// The numbers of this zone at this server, such as `dns://:53`; those that there were, if it is known.
    pub fn scope(&self, server: &str, zone: &str) -> Arc<Scope> {
        let mut scopes = locked(&self.scopes);
        if let Some(scope) = scopes.iter().find(|scope| scope.is(server, zone)) {
            return scope.clone();
        }
        let scope = Arc::new(Scope::new(server, zone));
        scopes.push(scope.clone());
        scope
    }

    /// The numbers of this server's cache.
    pub fn cache(&self, server: &str) -> Arc<CacheNumbers> {
        locked(&self.caches).entry(server.into()).or_default().clone()
    }

    /// Says anew which plugins each server block has: its server, its zone, the plugin.
    pub fn plugins_are(&self, enabled: Vec<(Arc<str>, String, &'static str)>) {
        *locked(&self.enabled) = enabled;
    }

    /// An upstream answered.
    pub fn forwarded(&self, upstream: SocketAddr, code: ResponseCode, took: Duration) {
        let mut upstreams = locked(&self.upstreams);
        let histogram = upstreams.entry((upstream, scope::code_name(code)));
        histogram.or_insert_with(|| Histogram::new(&DURATION_BUCKETS)).observe(took.as_secs_f64());
    }

    /// An upstream did not answer a check.
    pub fn health_check_failed(&self, upstream: SocketAddr) {
        *locked(&self.health_checks).entry(upstream).or_default() += 1;
    }

    /// A question found all places taken.
    pub fn forward_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// A question found all upstreams down.
    pub fn all_upstreams_down(&self) {
        self.all_down.fetch_add(1, Ordering::Relaxed);
    }

    /// Answering a question ended in a panic.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A changed Corefile could not be used.
    pub fn reload_failed(&self) {
        self.reload_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// An error answer was kept back: the client had its share.
    pub fn error_kept_back(&self) {
        self.limited.fetch_add(1, Ordering::Relaxed);
    }

    /// How many entries there are in hosts tables.
    pub fn hosts_entries(&self, entries: usize) {
        self.hosts_entries.store(entries as u64, Ordering::Relaxed);
    }

    /// So long after the change that led to it, an endpoint is answered with. `headless`: by its address.
    pub fn programmed(&self, headless: bool, after: Duration) {
        let kind = if headless { "headless_with_selector" } else { "cluster_ip" };
        let buckets: Vec<f64> = (0..PROGRAMMING_BUCKETS).map(|n| 0.001 * f64::from(1u32 << n)).collect();
        let mut programming = locked(&self.programming);
        programming.entry(kind).or_insert_with(|| Histogram::new(&buckets)).observe(after.as_secs_f64());
    }

    /// All of it, in Prometheus' text format 0.0.4.
    pub fn text(&self) -> String {
        let mut text = Text::new();
        text.family("coredns_build_info", "gauge", "What answers here.");
        text.sample(
            "coredns_build_info",
            &[("version", env!("CARGO_PKG_VERSION")), ("revision", "signpost"), ("goversion", "")],
            1.0,
        );
        scope::write(&mut text, &locked(&self.scopes));
        self.write_forward(&mut text);
        self.write_caches(&mut text);
        text.family("coredns_plugin_enabled", "gauge", "The plugins of each server block.");
        for (server, zone, name) in locked(&self.enabled).iter() {
            text.sample(
                "coredns_plugin_enabled",
                &[("server", server), ("zone", zone), ("view", ""), ("name", name)],
                1.0,
            );
        }
        let name = "coredns_kubernetes_dns_programming_duration_seconds";
        text.family(name, "histogram", "From the change of a pod or Service to the answer that shows it.");
        for (kind, histogram) in locked(&self.programming).iter() {
            text.histogram(name, &[("service_kind", kind)], histogram);
        }
        for (name, kind, help, value) in [
            ("coredns_panics_total", "counter", "Panics.", &self.panics),
            (
                "coredns_reload_failed_total",
                "counter",
                "Changed Corefiles that could not be used.",
                &self.reload_failures,
            ),
            ("coredns_hosts_entries", "gauge", "Entries of hosts tables.", &self.hosts_entries),
            (
                "signpost_dns_errors_kept_back_total",
                "counter",
                "Error answers not sent to clients that had too many.",
                &self.limited,
            ),
        ] {
            text.family(name, kind, help);
            text.sample(name, &[], value.load(Ordering::Relaxed) as f64);
        }
        text.family("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970.");
        text.sample("process_start_time_seconds", &[], self.started_s);
        text.finish()
    }

    fn write_forward(&self, text: &mut Text) {
        let name = "coredns_proxy_request_duration_seconds";
        text.family(name, "histogram", "How long upstreams took.");
        for ((upstream, code), histogram) in locked(&self.upstreams).iter() {
            let to = upstream.to_string();
            text.histogram(name, &[("proxy_name", "forward"), ("to", &to), ("rcode", code)], histogram);
        }
        let name = "coredns_proxy_healthcheck_failures_total";
        text.family(name, "counter", "Checks of upstreams that failed.");
        for (upstream, count) in locked(&self.health_checks).iter() {
            let to = upstream.to_string();
            text.sample(name, &[("proxy_name", "forward"), ("to", &to)], *count as f64);
        }
        for (name, help, value) in [
            ("coredns_forward_healthcheck_broken_total", "Questions that found all upstreams down.", &self.all_down),
            ("coredns_forward_max_concurrent_rejects_total", "Questions that found too many waiting.", &self.rejected),
        ] {
            text.family(name, "counter", help);
            text.sample(name, &[], value.load(Ordering::Relaxed) as f64);
        }
    }

    fn write_caches(&self, text: &mut Text) {
        let caches = locked(&self.caches);
        let mut family = |name: &str, kind, help, rows: &[CacheRow]| {
            text.family(name, kind, help);
            for (server, numbers) in caches.iter() {
                for (sort, value) in rows {
                    let mut labels = vec![("server", &**server)];
                    labels.extend(sort.map(|sort| ("type", sort)));
                    labels.extend([("zones", "."), ("view", "")]);
                    text.sample(name, &labels, value(numbers).load(Ordering::Relaxed) as f64);
                }
            }
        };
        let (success, denial) = (Some("success"), Some("denial"));
        family(
            "coredns_cache_entries",
            "gauge",
            "Answers that are kept.",
            &[(success, |n| &n.entries), (denial, |n| &n.denial_entries)],
        );
        family(
            "coredns_cache_hits_total",
            "counter",
            "Questions answered from the cache.",
            &[(success, |n| &n.hits), (denial, |n| &n.denial_hits)],
        );
        family(
            "coredns_cache_misses_total",
            "counter",
            "Questions that the cache had nothing for.",
            &[(None, |n| &n.misses)],
        );
        family(
            "coredns_cache_prefetch_total",
            "counter",
            "Answers asked for before their time was over.",
            &[(None, |n| &n.prefetches)],
        );
        family(
            "coredns_cache_served_stale_total",
            "counter",
            "Answers given after their time.",
            &[(None, |n| &n.served_stale)],
        );
        let requests = "coredns_cache_requests_total";
        text.family(requests, "counter", "Questions that the cache was asked.");
        for (server, numbers) in caches.iter() {
            let all = [&numbers.hits, &numbers.denial_hits, &numbers.misses].map(|n| n.load(Ordering::Relaxed));
            text.sample(requests, &[("server", server), ("zones", "."), ("view", "")], all.iter().sum::<u64>() as f64);
        }
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Held for additions only: there is no half-done state after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

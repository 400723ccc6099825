//! The numbers of the daemon, as Prometheus reads them: kube-proxy's names where it has one for the thing.

mod services;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use signpost_core::object::Family;
use signpost_core::store::Kind;
use signpost_datapath::conntrack::Totals;

use crate::announce;
use crate::process::{self, Usage};
use crate::progress::{Outcome, Revisions};
use crate::prometheus::{Histogram, Text};

pub use services::Counted;

/// Buckets of the duration of a sync in seconds, as kube-proxy has them: 1 ms doubled 14 times.
const SYNC_BUCKETS: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// The registry. Every method is cheap and may be called from anywhere.
#[derive(Debug)]
pub struct Metrics {
    numbers: Mutex<Numbers>,
    /// What the announcer of load-balancer addresses counts.
    pub announcer: announce::numbers::Numbers,
}

#[derive(Debug)]
struct Numbers {
    families: BTreeMap<Family, FamilyNumbers>,
    network_programming: Histogram,
    last_queued: Option<f64>,
    last_synced: Option<f64>,
    service_changes: Changes,
    endpoint_changes: Changes,
    malformed: BTreeMap<&'static str, u64>,
    healthz: BTreeMap<u16, u64>,
    livez: BTreeMap<u16, u64>,
    service_health: ServiceHealth,
    findings: BTreeMap<&'static str, u64>,
    services: services::Labelled,
    rooms: BTreeMap<&'static str, [u64; 2]>,
}

/// Listeners for health checks of Services.
#[derive(Debug, Default)]
struct ServiceHealth {
    listening: usize,
    failed: usize,
    failures: u64,
}

#[derive(Debug)]
struct FamilyNumbers {
    all: Histogram,
    full: Histogram,
    partial: Histogram,
    failures: u64,
    withheld: u64,
    repairs: u64,
    flows: Option<Flows>,
}

/// What became of stale flows.
#[derive(Debug, Clone, Copy)]
struct Flows {
    deleted: u64,
    sweeps: u64,
    busy_s: f64,
}

#[derive(Debug, Default)]
struct Changes {
    total: u64,
    pending: u64,
}

impl Metrics {
    /// All zero.
    pub fn new() -> Metrics {
        // 0.25, 0.5, each second to a minute, every 5 s to two, every 30 s to five.
        let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30)).map(f64::from);
        let programming: Vec<f64> = [0.25, 0.5].into_iter().chain(seconds).collect();
        Metrics {
            announcer: announce::numbers::Numbers::default(),
            numbers: Mutex::new(Numbers {
                families: BTreeMap::new(),
                network_programming: Histogram::new(programming),
                last_queued: None,
                last_synced: None,
                service_changes: Changes::default(),
                endpoint_changes: Changes::default(),
                malformed: BTreeMap::new(),
                healthz: BTreeMap::new(),
                livez: BTreeMap::new(),
                service_health: ServiceHealth::default(),
                findings: BTreeMap::new(),
                services: services::Labelled::default(),
                rooms: BTreeMap::new(),
            }),
        }
    }

    /// An object came in.
    pub fn change_seen(&self, kind: Kind) {
        let mut numbers = self.numbers();
        let changes = match kind {
            Kind::Service => &mut numbers.service_changes,
            Kind::EndpointSlice => &mut numbers.endpoint_changes,
            Kind::Node | Kind::ServiceCidr => return,
        };
        changes.total += 1;
        changes.pending += 1;
    }

    /// A malformed object of this kind came in.
    pub fn malformed(&self, kind: &'static str) {
        *self.numbers().malformed.entry(kind).or_default() += 1;
    }

    /// So many health checks of Services are listened for, and so many are not since that failed.
    pub fn service_health(&self, listening: usize, failed: usize) {
        let mut numbers = self.numbers();
        numbers.service_health.listening = listening;
        numbers.service_health.failed = failed;
    }

    /// To listen for health checks of a Service failed.
    pub fn service_health_failed(&self) {
        self.numbers().service_health.failures += 1;
    }

    /// What the doctor finds on this node now, by the codes of causes.
    pub fn findings(&self, found: BTreeMap<&'static str, u64>) {
        let mut numbers = self.numbers();
        // A cause that is gone is told as gone.
        numbers.findings.values_mut().for_each(|count| *count = 0);
        numbers.findings.extend(found);
    }

    /// A change waits for the kernel.
    pub fn queued(&self) {
        self.numbers().last_queued = Some(seconds_since_1970());
    }

    /// A family was brought in step.
    pub fn synced(&self, family: Family, outcome: &Outcome, took: Duration) {
        let mut numbers = self.numbers();
        let family = numbers.families.entry(family).or_insert_with(FamilyNumbers::new);
        let took_s = took.as_secs_f64();
        match outcome {
            Outcome::Nothing | Outcome::Postponed => return,
            Outcome::Changed => family.partial.observe(took_s),
            Outcome::Compared => family.full.observe(took_s),
            Outcome::Repaired => {
                family.full.observe(took_s);
                family.repairs += 1;
            }
            Outcome::Failed => family.failures += 1,
        }
        family.all.observe(took_s);
    }

    /// So many Services are not in the kernel, since it refuses their rules.
    pub fn withheld(&self, family: Family, services: usize) {
        self.numbers().families.entry(family).or_insert_with(FamilyNumbers::new).withheld = services as u64;
    }

    /// How often a family's flows were compared with the plan, so far.
    pub fn flows(&self, family: Family, totals: Option<&Totals>) {
        let Some(totals) = totals else { return };
        let flows = Flows {
            deleted: totals.deleted.load(Ordering::Relaxed),
            sweeps: totals.sweeps.load(Ordering::Relaxed),
            busy_s: totals.busy_us.load(Ordering::Relaxed) as f64 / 1e6,
        };
        self.numbers().families.entry(family).or_insert_with(FamilyNumbers::new).flows = Some(flows);
    }

    /// All that was seen is in the kernel. `triggers_ms`: when the changes among it were made, in milliseconds since 1970.
    pub fn programmed(&self, triggers_ms: &[i64]) {
        let now_s = seconds_since_1970();
        let mut numbers = self.numbers();
        numbers.last_synced = Some(now_s);
        numbers.service_changes.pending = 0;
        numbers.endpoint_changes.pending = 0;
        for trigger_ms in triggers_ms {
            let waited_s = now_s - *trigger_ms as f64 / 1e3;
            numbers.network_programming.observe(waited_s.max(0.0));
        }
    }

    /// `/healthz` answered.
    pub fn healthz(&self, status: u16) {
        *self.numbers().healthz.entry(status).or_default() += 1;
    }

    /// `/livez` answered.
    pub fn livez(&self, status: u16) {
        *self.numbers().livez.entry(status).or_default() += 1;
    }

    /// So many entries of a map of the kernel are used, of so many.
    pub fn room(&self, map: &'static str, used: u64, most: u64) {
        self.numbers().rooms.insert(map, [used, most]);
    }

    /// All of it, in the text format 0.0.4. `counted`: what the kernel counted.
    pub fn text(&self, programmed: Option<Revisions>, counted: &Counted) -> String {
        let usage = process::usage();
        let mut numbers = self.numbers();
        let mut text = Text::new();
        numbers.write_syncs(&mut text);
        numbers.write_changes(&mut text);
        numbers.write_rooms(&mut text);
        numbers.services.write(&mut text, &counted.services);
        services::write_packets(&mut text, counted.packets);
        write_programmed(&mut text, programmed);
        self.announcer.write(&mut text);
        write_process(&mut text, usage);
        text.finish()
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // Held for additions only: there is no half-done state after a panic.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl FamilyNumbers {
    fn new() -> FamilyNumbers {
        let histogram = || Histogram::new(SYNC_BUCKETS.to_vec());
        FamilyNumbers {
            all: histogram(),
            full: histogram(),
            partial: histogram(),
            failures: 0,
            withheld: 0,
            repairs: 0,
            flows: None,
        }
    }
}

impl Numbers {
    fn write_syncs(&self, text: &mut Text) {
        type Part = fn(&FamilyNumbers) -> &Histogram;
        let histograms: [(&str, &str, Part); 3] = [
            ("kubeproxy_sync_proxy_rules_duration_seconds", "Time to bring the kernel in step", |f| &f.all),
            ("kubeproxy_sync_full_proxy_rules_duration_seconds", "The same, with the kernel compared", |f| &f.full),
            ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "The same, by a change alone", |f| &f.partial),
        ];
        for (name, help, part) in histograms {
            text.head(name, "histogram", help);
            for (family, numbers) in &self.families {
                text.histogram(name, &[("ip_family", ip_family(*family))], part(numbers));
            }
        }
        let name = "kubeproxy_network_programming_duration_seconds";
        text.head(name, "histogram", "From the change of a pod or Service to the kernel");
        text.histogram(name, &[], &self.network_programming);
        type Count = fn(&FamilyNumbers) -> u64;
        let counters: [(&str, &str, Count); 2] = [
            ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Refusals of the kernel", |f| f.failures),
            ("signpost_repairs_total", "Comparisons that found the kernel different", |f| f.repairs),
        ];
        for (name, help, count) in counters {
            text.head(name, "counter", help);
            for (family, numbers) in &self.families {
                text.sample(name, &[("ip_family", ip_family(*family))], count(numbers) as f64);
            }
        }
        let name = "signpost_services_refused_by_kernel";
        text.head(name, "gauge", "Services of which the kernel refuses the rules");
        for (family, numbers) in &self.families {
            text.sample(name, &[("ip_family", ip_family(*family))], numbers.withheld as f64);
        }
        self.write_flows(text);
        let times = [
            ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When all was last in step", self.last_synced),
            ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change last came", self.last_queued),
        ];
        for (name, help, time) in times {
            text.head(name, "gauge", help);
            text.sample(name, &[], time.unwrap_or_default());
        }
    }

    fn write_rooms(&self, text: &mut Text) {
        let names = ["signpost_map_entries", "signpost_map_max_entries"];
        let helps = ["Entries of a map of the kernel that are used", "The most that it may have"];
        for (at, (name, help)) in names.into_iter().zip(helps).enumerate() {
            text.head(name, "gauge", help);
            for (map, numbers) in &self.rooms {
                text.sample(name, &[("map", map)], numbers[at] as f64);
            }
        }
    }

    fn write_flows(&self, text: &mut Text) {
        let flows = || self.families.iter().filter_map(|(family, numbers)| Some((ip_family(*family), numbers.flows?)));
        let name = "kubeproxy_conntrack_reconciler_deleted_entries_total";
        text.head(name, "counter", "Flows that were deleted since their backend is gone");
        for (family, flows) in flows() {
            text.sample(name, &[("ip_family", family)], flows.deleted as f64);
        }
        let name = "kubeproxy_conntrack_reconciler_sync_duration_seconds";
        text.head(name, "summary", "Time to compare the flows with the plan");
        for (family, flows) in flows() {
            text.sample(&format!("{name}_sum"), &[("ip_family", family)], flows.busy_s);
            text.sample(&format!("{name}_count"), &[("ip_family", family)], flows.sweeps as f64);
        }
    }

    fn write_changes(&self, text: &mut Text) {
        for (what, changes) in [("service", &self.service_changes), ("endpoint", &self.endpoint_changes)] {
            let total = format!("kubeproxy_sync_proxy_rules_{what}_changes_total");
            text.head(&total, "counter", "Changes that came in");
            text.sample(&total, &[], changes.total as f64);
            let pending = format!("kubeproxy_sync_proxy_rules_{what}_changes_pending");
            text.head(&pending, "gauge", "Changes that are not in the kernel yet");
            text.sample(&pending, &[], changes.pending as f64);
        }
        let ServiceHealth { listening, failed, failures } = self.service_health;
        let name = "signpost_service_health_listeners";
        text.head(name, "gauge", "Listeners for healthCheckNodePort");
        text.sample(name, &[("state", "listening")], listening as f64);
        text.sample(name, &[("state", "failed")], failed as f64);
        let name = "signpost_service_health_listen_failures_total";
        text.head(name, "counter", "Tries to listen for healthCheckNodePort that failed");
        text.sample(name, &[], failures as f64);
        text.head("signpost_malformed_objects_total", "counter", "Objects of which something could not be served");
        for (kind, count) in &self.malformed {
            text.sample("signpost_malformed_objects_total", &[("kind", kind)], *count as f64);
        }
        let name = "signpost_doctor_findings";
        text.head(name, "gauge", "What the doctor finds on this node, by the code of its cause");
        for (code, count) in &self.findings {
            text.sample(name, &[("code", code)], *count as f64);
        }
        let probes = [("kubeproxy_proxy_healthz_total", &self.healthz), ("kubeproxy_proxy_livez_total", &self.livez)];
        for (name, answers) in probes {
            text.head(name, "counter", "Answers by their status");
            for (status, count) in answers {
                text.sample(name, &[("code", &status.to_string())], *count as f64);
            }
        }
    }
}

fn write_programmed(text: &mut Text, programmed: Option<Revisions>) {
    let name = "signpost_programmed_revision";
    text.head(name, "gauge", "The resourceVersion up to which everything is in the kernel");
    let programmed = programmed.unwrap_or_default();
    for kind in Kind::ALL {
        text.sample(name, &[("kind", &kind.to_string())], programmed.of(kind) as f64);
    }
}

fn write_process(text: &mut Text, usage: Option<Usage>) {
    text.head("signpost_build_info", "gauge", "Always 1");
    text.sample("signpost_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let Some(usage) = usage else { return };
    let samples = [
        ("process_resident_memory_bytes", "gauge", "Memory in use", usage.resident_bytes as f64),
        ("process_cpu_seconds_total", "counter", "Processor time used", usage.cpu_s),
        ("process_start_time_seconds", "gauge", "When the process began", usage.started_s),
    ];
    for (name, kind, help, value) in samples {
        text.head(name, kind, help);
        text.sample(name, &[], value);
    }
}

/// As kube-proxy labels it.
fn ip_family(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_kube_proxys_names_and_every_line_is_a_comment_or_a_sample() {
        let metrics = Metrics::new();
        metrics.synced(Family::Ipv4, &Outcome::Changed, Duration::from_millis(3));
        metrics.synced(Family::Ipv4, &Outcome::Failed, Duration::from_millis(3));
        metrics.change_seen(Kind::Service);
        metrics.healthz(200);
        metrics.findings(BTreeMap::from([("SP502", 1), ("SP505", 2)]));
        metrics.findings(BTreeMap::from([("SP505", 1)]));
        metrics.programmed(&[0]);
        let text = metrics.text(None, &Counted::default());
        for line in [
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"300\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"+Inf\"} 1",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "signpost_doctor_findings{code=\"SP502\"} 0",
            "signpost_doctor_findings{code=\"SP505\"} 1",
            "signpost_programmed_revision{kind=\"ServiceCIDR\"} 0",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is missing in\n{text}");
        }
        for line in text.lines() {
            let value = line.rsplit(' ').next().unwrap_or_default();
            assert!(line.starts_with("# ") || value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(text.contains("process_resident_memory_bytes"));
    }
}

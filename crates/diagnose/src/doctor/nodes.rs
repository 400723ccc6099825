//! Pure. The nodes: daemons, the comparison of objects, plans and kernels, what other proxies left, connection tracking.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::{Family, ObjectName};
use signpost_core::plan::{Frontend, FrontendKey};

use super::cause::Code;
use super::finding::{Diagnosis, Finding, Severity, Verdict};
use super::ground::{Ground, Plan};
use super::{flows, name, selector};
use crate::planned::backends;
use crate::snapshot::{ComparedWith, Difference, DifferenceKind, KernelState, NodeState, Unknown};

/// Of a Service: what its nodes hold of it. `passed`: the nodes on the ways that were walked.
pub(super) fn judge(ground: &Ground<'_>, service: &ObjectName, passed: &BTreeSet<String>) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in passed {
        let Some(state) = ground.node(name) else { continue };
        found.extend(daemon(name, state));
        found.extend(kernel(name, state, Some(service)));
        found.extend(plans(ground, name, state, service));
        found.extend(flows::stale(ground, name, service));
        found.extend(flows::ports_taken_by(ground, name, state, service));
        found.extend(conntrack(name, state));
        found.extend(leftovers(name, state));
    }
    found.extend(flows::uneven(ground, service));
    found.extend(mtu(ground, passed));
    found
}

/// The nodes as such.
pub(super) fn diagnosis(ground: &Ground<'_>) -> Diagnosis {
    let names: BTreeSet<String> = ground.snapshot.nodes.keys().cloned().collect();
    let mut findings = Vec::new();
    for name in &names {
        let Some(state) = ground.node(name) else { continue };
        findings.extend(daemon(name, state));
        findings.extend(kernel(name, state, None));
        findings.extend(conntrack(name, state));
        findings.extend(flows::ports_taken(name, state));
        findings.extend(leftovers(name, state));
    }
    findings.extend(selector::overlaps(ground));
    findings.extend(name::dns(ground));
    findings.extend(mtu(ground, &names));
    findings.retain(|finding| ground.is_founded(finding.code));
    let unknown: Vec<Unknown> = ground.unknown(&names);
    let mut diagnosis = Diagnosis {
        subject: "nodes".to_owned(),
        verdict: Verdict::Healthy,
        findings,
        steps: Vec::new(),
        ways: (0, 0),
        unknown,
    };
    diagnosis.settle();
    let known = diagnosis.unknown.is_empty() && names.iter().all(|name| ground.is_read(name));
    diagnosis.conclude(known);
    diagnosis
}

/// What a node finds in itself, without any object: told before it hurts.
pub(super) fn of_itself(name: &str, state: &NodeState) -> Vec<Finding> {
    let mut found = conntrack(name, state);
    found.extend(flows::ports_taken(name, state));
    found.extend(switches(name, state));
    found
}

/// Switches without which a node carries nothing for its pods.
fn switches(name: &str, state: &NodeState) -> Vec<Finding> {
    let switches = [
        ("net.ipv4.ip_forward", Code::NotForwarding, Family::Ipv4),
        ("net.ipv6.conf.all.forwarding", Code::NotForwardingIpv6, Family::Ipv6),
    ];
    let has = |family: Family| {
        let all = state.interfaces.iter().filter(|one| one.name != "lo").flat_map(|one| &one.addresses);
        all.map(ipnet::IpNet::addr).any(|address| {
            let is_link_local = matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local());
            Family::of(address) == family && !is_link_local
        })
    };
    let off = |name: &str| state.sysctls.get(name).is_some_and(|value| value == "0");
    let found = switches.into_iter().filter(|(switch, _, family)| off(switch) && has(*family));
    found
        .map(|(switch, code, family)| {
            Finding::new(code, Severity::Broken, format!("node {name} does not forward {family} packets"))
                .measured(format!("{switch} is 0"))
                .on(name)
        })
        .collect()
}

fn daemon(name: &str, state: &NodeState) -> Option<Finding> {
    let daemon = &state.daemon;
    if let Some(cilium) = state.proxies.iter().find(|trace| trace.of == "cilium" && trace.acts) {
        return Some(
            Finding::new(Code::AnotherProxy, Severity::Degraded, format!("Cilium is in charge of node {name}"))
                .measured(cilium.found.clone())
                .on(name),
        );
    }
    if !daemon.answers {
        let mut finding = Finding::new(
            Code::DaemonDown,
            Severity::Degraded,
            format!("the daemon of node {name} does not answer: what it programmed stays, changes do not come"),
        )
        .measured(daemon.problem.clone().unwrap_or_else(|| "no answer".to_owned()))
        .on(name)
        .next("kubectl -n kube-system get pods -o wide");
        for trace in &state.proxies {
            finding = finding.measured(format!("in the kernel: {}", trace.found));
        }
        return Some(finding);
    }
    if state.plans.is_empty() {
        let mode = daemon.mode.as_deref().unwrap_or("unknown");
        return Some(
            Finding::new(
                Code::AnotherProxy,
                Severity::Degraded,
                format!("another proxy answers on node {name}, in mode {mode}"),
            )
            .measured("it says no plan, as a signpost daemon does")
            .on(name),
        );
    }
    (daemon.live == Some(false)).then(|| {
        let waits = daemon
            .waiting_for
            .clone()
            .map_or("a change waits too long".to_owned(), |what| format!("it waits for {what}"));
        Finding::new(Code::DaemonBehind, Severity::Degraded, format!("the daemon of node {name} is behind: {waits}"))
            .measured("its /healthz says 503")
            .measured(format!("last in step at {}", daemon.last_updated.as_deref().unwrap_or("no time")))
            .on(name)
            .next(format!("on node {name}: signpost rules"))
    })
}

/// What the kernel lacks or has too much of: of one Service, or of nobody's in particular.
fn kernel(name: &str, state: &NodeState, service: Option<&ObjectName>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (family, kernel) in &state.kernel {
        let wanted = |difference: &&Difference| match (&difference.service_port, service) {
            (Some(port), Some(service)) => is_of(port, service),
            // Chains and sets that all Services share.
            (None, Some(_)) => difference.kind != DifferenceKind::Extra,
            (_, None) => true,
        };
        let differs: Vec<&Difference> = kernel.differences.iter().filter(wanted).collect();
        let Some(worst) = differs.iter().min_by_key(|difference| difference.kind) else { continue };
        found.push(difference(name, state, *family, kernel, &differs, worst));
    }
    found
}

fn difference(
    name: &str,
    state: &NodeState,
    family: Family,
    kernel: &KernelState,
    differs: &[&Difference],
    worst: &Difference,
) -> Finding {
    let severity = if worst.kind == DifferenceKind::Extra { Severity::Degraded } else { Severity::Broken };
    let against = match kernel.compared_with {
        ComparedWith::Program => "the daemon's rules",
        ComparedWith::Objects => "the objects, as no daemon answers",
    };
    let count = differs.len() + kernel.more;
    let mut finding = Finding::new(
        Code::KernelDiffers,
        severity,
        format!("the kernel of node {name} does not hold the {family} rules: {}", said(worst)),
    )
    .measured(format!("{count} differences from {against}, seen several times in a row"))
    .on(name)
    .next(format!("on node {name}: signpost rules -o wide"));
    for difference in differs.iter().take(5) {
        finding = finding.measured(said(difference));
    }
    let own = state.daemon.mode.as_deref().or_else(|| state.silent_mode());
    let others: BTreeSet<&str> =
        state.proxies.iter().map(|trace| trace.of.as_str()).filter(|of| Some(*of) != own).collect();
    if !others.is_empty() {
        let others = others.into_iter().collect::<Vec<_>>().join(", ");
        finding = finding.assumed(format!("who may have written there: {others}"));
    }
    finding
}

fn said(difference: &Difference) -> String {
    let how = match difference.kind {
        DifferenceKind::Missing => "is missing",
        DifferenceKind::Changed => "was changed",
        DifferenceKind::Extra => "is too much",
    };
    let whose = difference.service_port.as_ref().map(|port| format!(" (of {port})")).unwrap_or_default();
    format!("{}: {} {how}{whose}", difference.place, difference.what)
}

fn is_of(service_port: &str, service: &ObjectName) -> bool {
    let of = service_port.split_once(':').map_or(service_port, |(of, _)| of);
    of == service.to_string()
}

/// Where the daemon's plan of a Service is not what the objects ask for.
fn plans(ground: &Ground<'_>, name: &str, state: &NodeState, service: &ObjectName) -> Vec<Finding> {
    let mut found = Vec::new();
    for family in state.plans.keys().filter(|family| ground.plans_differ.contains(&(name, **family))) {
        let of = |plan| -> BTreeMap<&FrontendKey, &Frontend> {
            ground.frontends(name, *family, plan, service).iter().copied().collect()
        };
        let (has, wants) = (of(Plan::Said), of(Plan::Wanted));
        let keys: BTreeSet<&FrontendKey> = has.keys().chain(wants.keys()).copied().collect();
        for key in keys {
            let (has, wants) = (has.get(key), wants.get(key));
            if has == wants {
                continue;
            }
            let (cause, severity) = match (has, wants) {
                (None, _) => (format!("node {name} does not know the {family} frontend {key}"), Severity::Broken),
                (Some(_), None) => (format!("node {name} still serves {key}, which is gone"), Severity::Degraded),
                (Some(has), Some(wants)) => {
                    let (old, new) = (backends(has), backends(wants));
                    let severity =
                        if old.is_disjoint(&new) && !new.is_empty() { Severity::Broken } else { Severity::Degraded };
                    (format!("node {name} serves an older state of {key}"), severity)
                }
            };
            found.push(
                Finding::new(Code::PlanBehind, severity, cause)
                    .measured(format!("its plan leads to {}", list(has)))
                    .computed(format!("the objects ask for {}", list(wants)))
                    .on(name),
            );
        }
    }
    found
}

fn list(frontend: Option<&&Frontend>) -> String {
    let Some(frontend) = frontend else { return "nothing".to_owned() };
    let all = backends(frontend);
    if all.is_empty() {
        return "no backend".to_owned();
    }
    let shown: Vec<String> = all.iter().take(6).map(ToString::to_string).collect();
    let more = all.len().saturating_sub(shown.len());
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// The modes whose rules may stand beneath another's.
fn is_beneath(of: &str, mode: &str) -> bool {
    of == mode
        || (of == "nftables" && mode == "ebpf")
        || (of == "iptables" && mode == "ipvs")
        || (of == "iptables-legacy" && mode == "iptables")
}

fn leftovers(name: &str, state: &NodeState) -> Vec<Finding> {
    let mut found = Vec::new();
    let has = |of: &str| state.proxies.iter().any(|trace| trace.of == of);
    if has("iptables") && has("iptables-legacy") {
        found.push(
            Finding::new(
                Code::BothIptables,
                Severity::Degraded,
                format!("both sorts of iptables of node {name} hold rules of a Service proxy"),
            )
            .measured(state.proxies.iter().map(|trace| trace.found.clone()).collect::<Vec<_>>().join("; "))
            .on(name),
        );
    }
    let Some(mode) = state.daemon.mode.as_deref().filter(|_| !state.plans.is_empty()) else { return found };
    for trace in state.proxies.iter().filter(|trace| trace.acts && trace.of != "cilium" && !is_beneath(&trace.of, mode))
    {
        found.push(
            Finding::new(
                Code::Leftovers,
                Severity::Degraded,
                format!("node {name} is in mode {mode}, and holds rules of {}", trace.of),
            )
            .measured(trace.found.clone())
            .on(name),
        );
    }
    found
}

fn conntrack(name: &str, state: &NodeState) -> Vec<Finding> {
    let mut found = Vec::new();
    let look = || format!("on node {name}: conntrack -S; sysctl net.netfilter.nf_conntrack_max");
    if let (Some(count), Some(max)) = (state.conntrack.count, state.conntrack.max)
        && max > 0
    {
        let told = format!("{count} of {max} entries");
        // A full one makes room for a new entry now and then: a thousandth comes and goes.
        if count + max / 1000 >= max {
            found.push(
                Finding::new(
                    Code::ConntrackFull,
                    Severity::Broken,
                    format!("connection tracking of node {name} is full"),
                )
                .measured(told)
                .on(name)
                .next(look()),
            );
        } else if count * 10 > max * 9 {
            found.push(
                Finding::new(
                    Code::ConntrackNearlyFull,
                    Severity::Degraded,
                    format!("connection tracking of node {name} is nearly full"),
                )
                .measured(told)
                .on(name)
                .next(look()),
            );
        }
    }
    let counter = |name: &str| state.conntrack.counters.get(name).copied().unwrap_or(0);
    let (failed, entries) = (counter("insert_failed"), counter("insert").max(state.conntrack.count.unwrap_or(0)));
    if failed > 100 && failed * 100 > entries {
        found.push(
            Finding::new(
                Code::InsertFailed,
                Severity::Degraded,
                format!("flows clash in the connection tracking of node {name}"),
            )
            .measured(format!("insert_failed is {failed}"))
            .on(name)
            .next(look()),
        );
    }
    found
}

/// The interfaces between nodes have one size, or large packets are lost.
fn mtu(ground: &Ground<'_>, names: &BTreeSet<String>) -> Option<Finding> {
    let mut sizes: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for name in names {
        let Some(state) = ground.node(name) else { continue };
        let Some(object) = ground.nodes.get(name.as_str()) else { continue };
        let own = crate::listed::internal_addresses(object);
        let towards = state
            .interfaces
            .iter()
            .find(|one| one.addresses.iter().any(|address| own.contains(&address.addr())) && one.mtu_bytes > 0);
        if let Some(interface) = towards {
            sizes.entry(interface.mtu_bytes).or_default().push(name);
        }
    }
    (sizes.len() > 1).then(|| {
        let told: Vec<String> = sizes.iter().map(|(size, nodes)| format!("{size} on {}", nodes.join(", "))).collect();
        Finding::new(
            Code::MtuDiffers,
            Severity::Degraded,
            format!("the nodes' interfaces have different MTUs: {}", told.join("; ")),
        )
        .measured("ip link")
    })
}

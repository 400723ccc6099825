//! Pure. What the ways of a packet meet: refusals and drops explained, and what stands in the way of those that should be
//! answered.

use std::collections::BTreeSet;
use std::net::IpAddr;

use signpost_core::object::{Family, ObjectName};
use signpost_core::packet::{Entry, Packet};
use signpost_core::plan::{Frontend, FrontendKind};
use signpost_core::walk;

use super::case::Case;
use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::PodObject;
use crate::firewall::{Seen, stopped};
use crate::network::{Listener, route_to};
use crate::predict::{Answerer, Done, Fate, Step, Way};
use crate::snapshot::NodeState;

/// What was met.
#[derive(Default)]
pub(super) struct Met {
    pub(super) findings: Vec<Finding>,
    /// So many ways are answered, as far as is known.
    pub(super) answered: usize,
    /// The nodes on the ways.
    pub(super) nodes: BTreeSet<String>,
}

pub(super) fn judge(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>) -> Met {
    let mut met = Met::default();
    let mut failing = Vec::new();
    let mut checked = Checked::new();
    for way in &case.ways {
        for node in nodes(way) {
            if !met.nodes.contains(node) {
                met.nodes.insert(node.to_owned());
            }
        }
        let blocks = blocks(ground, case, way, &mut checked);
        match (&way.fate, blocks.is_empty()) {
            (Fate::Reached { .. }, true) => met.answered += 1,
            (Fate::Reached { .. }, false) => failing.extend(blocks),
            (_, true) => failing.push(explain(ground, name, case, way)),
            (_, false) => failing.extend(blocks.into_iter().chain([explain(ground, name, case, way)])),
        }
    }
    let severity = if met.answered == 0 { Severity::Broken } else { Severity::Degraded };
    for mut finding in failing {
        finding.severity = finding.severity.max(severity);
        let share = case.ways.len() - met.answered;
        if finding.facts.len() < 8 {
            let told =
                format!("from {} to {}: {share} of {} ways fail", case.from, case.packet.destination, case.ways.len());
            finding = finding.computed(told);
        }
        if case.asked || finding.next.starts_with("signpost explain") {
            finding.next = format!("signpost trace {} {}", case.from, super::text::target(&case.to));
        }
        met.findings.push(finding);
    }
    met
}

/// What the rules of a node say to a packet that all ways of a case have in common was looked at.
type Checked<'a> = Vec<(&'a str, Packet, Option<Finding>)>;

fn nodes(way: &Way) -> impl Iterator<Item = &str> {
    way.steps.iter().filter_map(|step| match step {
        Step::AtSocket { node, .. } | Step::Ruled { node, .. } => Some(node.as_str()),
        Step::Carried { to, .. } => Some(to),
        Step::Arrived { node, .. } => node.as_deref(),
        Step::Sent { .. } => None,
    })
}

/// Why a way has no answer.
fn explain(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>, way: &Way) -> Finding {
    let rewritten = way.steps.iter().any(|step| {
        matches!(
            step,
            Step::AtSocket { done: Done::Rewritten { .. }, .. } | Step::Ruled { done: Done::Rewritten { .. }, .. }
        )
    });
    let found = match way.steps.last() {
        Some(
            Step::AtSocket { node, before, done: Done::Rejected, .. }
            | Step::Ruled { node, before, done: Done::Rejected, .. },
        ) => refused(ground, name, case, node, before),
        Some(Step::Ruled { node, before, done: Done::Dropped, .. }) => dropped(ground, name, case, node, before),
        Some(Step::Arrived { by: None, pod: Some(pod), packet, .. }) => {
            silent(ground, case, ground.pod(&pod.namespace, &pod.name), packet, rewritten)
        }
        Some(Step::Arrived { by: None, pod: None, packet, .. }) if way.fate == Fate::Lost => Some(
            Finding::new(
                Code::EndpointOfNobody,
                Severity::Broken,
                format!("{} is an endpoint, and no pod has this address", packet.destination),
            )
            .measured("no living pod of the cluster has it")
            .next(format!(
                "kubectl get endpointslices -n {} -l kubernetes.io/service-name={} -o yaml",
                name.namespace, name.name
            )),
        ),
        Some(Step::Arrived { by: Some(_), .. }) if way.fate == Fate::Lost => Some(stranger(way)),
        _ => None,
    };
    found.or_else(|| nowhere(ground, name, case, way)).unwrap_or_else(|| {
        let hops: Vec<String> = way.steps.iter().filter_map(last_words).collect();
        Finding::new(Code::Unexplained, Severity::Broken, format!("the packet ends as: {}", way.fate))
            .computed(hops.join("; "))
    })
}

fn last_words(step: &Step) -> Option<String> {
    match step {
        Step::AtSocket { node, done, .. } | Step::Ruled { node, done, .. } => Some(format!("{node}: {done:?}")),
        Step::Arrived { packet, .. } => Some(format!("arrives at {}", packet.destination)),
        _ => None,
    }
}

/// A refusal at a frontend is told by the judge of endpoints; what is left are ports that are none.
fn refused(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>, node: &str, packet: &Packet) -> Option<Finding> {
    let plan = case.stage.plan(node)?;
    if let Some((_, frontend)) = walk::frontend(plan, packet) {
        return super::endpoints::none_for(ground, &frontend.service_port, case.stage.family);
    }
    Some(no_such_port(ground, name, packet))
}

fn no_such_port(ground: &Ground<'_>, name: &ObjectName, packet: &Packet) -> Finding {
    let (protocol, port) = (packet.protocol, packet.destination.port());
    let ports = ground.service(name).map(|service| service.ports()).unwrap_or_default();
    let has: Vec<String> = ports.iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect();
    let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
    if let Some(other) = ports.iter().find(|one| one.port == port) {
        return Finding::new(
            Code::OtherProtocol,
            Severity::Broken,
            format!("port {port} of {name} is {}, and {protocol} was asked for", other.protocol),
        )
        .measured(format!("its ports are {has}"));
    }
    let finding = Finding::new(Code::UndeclaredPort, Severity::Broken, format!("{name} has no port {port}/{protocol}"))
        .measured(format!("its ports are {has}"));
    match ports.iter().find(|one| one.target == Ok(port)) {
        Some(one) => finding
            .measured(format!("{port} is the targetPort of its port {}", one.port))
            .fix(format!("dial {}", one.port)),
        None => finding,
    }
}

fn dropped(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>, node: &str, packet: &Packet) -> Option<Finding> {
    let plan = case.stage.plan(node)?;
    let source = packet.source.ip();
    let Some((key, frontend)) = walk::frontend(plan, packet) else {
        let own = ground.service(name).is_some_and(|one| one.cluster_ips().contains(&packet.destination.ip()));
        if own {
            return no_frontend(
                ground,
                name,
                node,
                packet,
                "the node drops addresses of a Service range that it does not know",
            );
        }
        let range = plan.service_cidrs.iter().find(|range| range.contains(&packet.destination.ip()))?;
        return Some(
            Finding::new(
                Code::AddressOfNobody,
                Severity::Broken,
                format!("no Service has the address {}", packet.destination.ip()),
            )
            .measured(format!("it lies in {range}, which Services get their addresses from"))
            .on(node),
        );
    };
    if !frontend.source_ranges.is_empty() && !frontend.source_ranges.iter().any(|range| range.contains(&source)) {
        let ranges: Vec<String> = frontend.source_ranges.iter().map(ToString::to_string).collect();
        return Some(
            Finding::new(Code::SourceRanges, Severity::Broken, format!("{source} may not use {key}"))
                .measured(format!("loadBalancerSourceRanges allows {}", ranges.join(", ")))
                .on(node),
        );
    }
    Some(local(ground, name, node, frontend, case.asked))
}

fn local(ground: &Ground<'_>, name: &ObjectName, node: &str, frontend: &Frontend, asked: bool) -> Finding {
    let (code, field) = match frontend.kind {
        FrontendKind::ClusterIp => (Code::InternalLocal, "internalTrafficPolicy"),
        _ => (Code::ExternalLocal, "externalTrafficPolicy"),
    };
    let elsewhere = others(ground, name, node);
    // Whoever chose the policy may mean just that; only who asked for this very way is told that it is broken.
    let severity = if asked { Severity::Broken } else { Severity::Degraded };
    Finding::new(code, severity, format!("{field} is Local, and node {node} has no ready endpoint"))
        .measured(format!("ready endpoints are on {elsewhere}"))
        .on(node)
        .next(format!(
            "kubectl get endpointslices -n {} -l kubernetes.io/service-name={} -o wide",
            name.namespace, name.name
        ))
}

fn others(ground: &Ground<'_>, name: &ObjectName, node: &str) -> String {
    let mut nodes = BTreeSet::new();
    for endpoint in ground.slices_of(name).iter().flat_map(|slice| slice.endpoints()) {
        if super::object::endpoint_ready(endpoint)
            && let Some(on) = endpoint.get("nodeName").and_then(serde_json::Value::as_str)
        {
            nodes.insert(on);
        }
    }
    nodes.remove(node);
    if nodes.is_empty() { "no node".to_owned() } else { nodes.into_iter().collect::<Vec<_>>().join(", ") }
}

/// A pod that has the address and does not answer.
fn silent(
    ground: &Ground<'_>,
    case: &Case<'_>,
    pod: Option<PodObject<'_>>,
    packet: &Packet,
    rewritten: bool,
) -> Option<Finding> {
    let pod = pod?;
    let (protocol, port) = (packet.protocol, packet.destination.port());
    let state = ground.snapshot.pods.get(&pod.full_name())?;
    let with_port: Vec<&Listener> = state.listeners.iter().filter(|one| one.port == port).collect();
    let same: Vec<&&Listener> = with_port.iter().filter(|one| one.protocol == protocol).collect();
    let who = pod.full_name();
    let sockets = |all: &[&&Listener]| {
        all.iter()
            .map(|one| std::net::SocketAddr::new(one.address, one.port).to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (code, cause) = if !same.is_empty() && same.iter().all(|one| one.address.is_loopback()) {
        (Code::ListensOnLoopback, format!("{who} listens on {} only", sockets(&same)))
    } else if !same.is_empty() {
        (Code::OtherFamilyOnly, format!("{who} listens on {} only, and {} is asked", sockets(&same), case.stage.family))
    } else if let Some(other) = with_port.first() {
        (Code::ListensOtherProtocol, format!("{who} listens on {port}/{}, not on {port}/{protocol}", other.protocol))
    } else {
        (Code::NothingListens, format!("nothing listens on {port}/{protocol} in {who}"))
    };
    let open: Vec<String> = state
        .listeners
        .iter()
        .filter(|one| !one.address.is_loopback() && one.protocol == protocol)
        .map(|one| one.port.to_string())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let open = if open.is_empty() { "no port".to_owned() } else { open.join(", ") };
    let mut finding = Finding::new(code, Severity::Broken, cause)
        .measured(format!("sockets of its network: {protocol} {open}"))
        .next(format!("kubectl exec -n {} {} -- cat /proc/net/{protocol}", pod.namespace(), pod.name()));
    if !rewritten {
        finding = finding.computed("the pod itself was asked, not a Service");
    }
    Some(finding)
}

/// The answer comes from somebody the client did not ask.
fn stranger(way: &Way) -> Finding {
    let rewriter = way.steps.iter().find_map(|step| match step {
        Step::Ruled { node, done: Done::Rewritten { to, masqueraded: false, .. }, .. } => Some((node.clone(), *to)),
        _ => None,
    });
    let (node, to) = rewriter.map_or((String::new(), String::new()), |(node, to)| (node, to.to_string()));
    Finding::new(
        Code::MasqueradeMissing,
        Severity::Broken,
        format!("{node} rewrites the request to {to} and leaves its source: the answer goes past {node}"),
    )
    .computed("conntrack of that node never sees the answer, so the client gets it from an address that it did not ask")
    .on(&node)
}

/// The packet leaves the nodes as it is, or has nowhere to go.
fn nowhere(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>, way: &Way) -> Option<Finding> {
    if way.fate == Fate::Refused && matches!(way.steps.last(), Some(Step::Arrived { by: None, pod: None, .. })) {
        return at_node(ground, name, case, way);
    }
    if way.fate != Fate::Lost {
        return None;
    }
    let Some(Step::Ruled { node, after, done, .. }) = way.steps.last() else {
        return outside(ground, name, case);
    };
    if matches!(done, Done::Rewritten { .. }) {
        return Some(
            Finding::new(
                Code::EndpointOfNobody,
                Severity::Broken,
                format!("{} is an endpoint, and leads nowhere", after.destination),
            )
            .computed("no node and no pod has the address")
            .on(node),
        );
    }
    let service = ground.service(name)?;
    if !service.cluster_ips().contains(&after.destination.ip()) && *done == Done::Untouched {
        return outside(ground, name, case);
    }
    let how = "the packet passes the node's rules as it is, and no router knows the address";
    no_frontend(ground, name, node, after, how)
}

/// A node that knows nothing of a cluster address of the Service.
fn no_frontend(ground: &Ground<'_>, name: &ObjectName, node: &str, packet: &Packet, how: &str) -> Option<Finding> {
    // What is left to another proxy is told so.
    ground.service(name)?.label(signpost_cluster::convert::SERVICE_PROXY_NAME).is_none().then(|| {
        let cause = format!("node {node} has no rule for {}", packet.destination);
        Finding::new(Code::NoFrontendOnNode, Severity::Broken, cause).computed(how).on(node)
    })
}

/// An address of the node where nothing answers.
fn at_node(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>, way: &Way) -> Option<Finding> {
    let Some(Step::Arrived { node: Some(node), packet, .. }) = way.steps.last() else { return None };
    let service = ground.service(name)?;
    let port = packet.destination.port();
    let plan = case.stage.plan(node)?;
    let is_node_port = service.ports().iter().any(|one| one.node_port == Some(port) && one.protocol == packet.protocol);
    if is_node_port && !plan.node_port_addresses.contains(&packet.destination.ip()) {
        let at: Vec<String> = plan.node_port_addresses.iter().map(ToString::to_string).collect();
        return Some(
            Finding::new(
                Code::NodePortAddress,
                Severity::Broken,
                format!("node ports do not answer at {} of node {node}", packet.destination.ip()),
            )
            .measured(format!("they do at {}", at.join(", ")))
            .on(node),
        );
    }
    None
}

fn outside(ground: &Ground<'_>, name: &ObjectName, case: &Case<'_>) -> Option<Finding> {
    let service = ground.service(name)?;
    let address = case.packet.destination.ip();
    let external = service.external_ips().contains(&address);
    (external || service.ingress().contains(&address)).then(|| {
        // What leads to the nodes of a real cluster besides its own announcers is not seen from here.
        let (what, severity, known) = match (external, ground.snapshot.lab) {
            (true, _) => ("external address", Severity::Broken, "no node has it, and none is known to announce it"),
            (false, true) => (
                "load-balancer address",
                Severity::Broken,
                "no node announces it by ARP, NDP or BGP, and no route leads to it",
            ),
            (false, false) => (
                "load-balancer address",
                Severity::Degraded,
                "no node says that it announces it; what else may lead there is not seen",
            ),
        };
        Finding::new(Code::ExternalIpUnrouted, severity, format!("nothing leads to the {what} {address}"))
            .computed(known)
    })
}

/// What stands in the way of a packet that the rules let through.
fn blocks<'w>(ground: &Ground<'_>, case: &Case<'_>, way: &'w Way, checked: &mut Checked<'w>) -> Vec<Finding> {
    let mut found = Vec::new();
    for step in &way.steps {
        match step {
            Step::Ruled { node, before, after, done } => {
                if let Some(state) = ground.node(node) {
                    let known = checked.iter().position(|(of, packet, _)| *of == node.as_str() && packet == before);
                    let known = known.unwrap_or_else(|| {
                        checked.push((node, *before, program_differs(case, node, before)));
                        checked.len() - 1
                    });
                    found.extend(checked[known].2.clone());
                    found.extend(at_hooks(case, node, state, before, after, *done));
                }
            }
            Step::Carried { from, to, packet } => {
                found.extend(
                    ground.node(to).and_then(|state| link(to, state, packet.source.ip(), from.as_deref(), case)),
                );
            }
            _ => {}
        }
    }
    found.extend(hairpin(ground, way));
    found
}

fn at_hooks(
    case: &Case<'_>,
    node: &str,
    state: &NodeState,
    before: &Packet,
    after: &Packet,
    done: Done,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if matches!(done, Done::Rejected | Done::Dropped) {
        return found;
    }
    let to = after.destination.ip();
    let own = case.index.node(node).is_some_and(|view| view.addresses.contains(&to));
    let forwarded = before.entry == Entry::Interface && !own;
    if forwarded {
        found.extend(forwarding(node, state, Family::of(to)));
    }
    if !own {
        found.extend(route(node, state, to));
    }
    let hook = match (before.entry, own) {
        (Entry::Interface, true) => "input",
        (Entry::Interface, false) => "forward",
        (Entry::Local, _) => "output",
    };
    let first = Seen {
        protocol: before.protocol,
        source: before.source.ip(),
        destination: before.destination.ip(),
        port: before.destination.port(),
        hook: if before.entry == Entry::Local { "" } else { "prerouting" },
    };
    let rewritten = Seen { destination: to, port: after.destination.port(), hook, ..first };
    let masqueraded = matches!(done, Done::Rewritten { masqueraded: true, .. });
    for seen in [first, rewritten] {
        // Our chain KUBE-FORWARD lets through what is masqueraded, before others see it.
        let is_let_through = masqueraded && seen.hook == "forward" && state.daemon.mode.as_deref() == Some("iptables");
        if let Some(stop) = stopped(&state.firewall, &seen).filter(|stop| stop.sure && !is_let_through) {
            let how = if stop.refused { "refuses" } else { "drops" };
            let mut finding = Finding::new(
                Code::Firewall,
                Severity::Broken,
                format!("a rule on node {node} {how} {} to {}: {}", seen.source, after.destination, stop.place),
            )
            .measured(format!("hook {}: {}", seen.hook, stop.rule))
            .on(node)
            .next(format!("on node {node}: nft list ruleset; iptables-save -c"));
            if let Some(packets) = stop.packets.filter(|packets| *packets > 0) {
                finding = finding.measured(format!("its counter says {packets} packets"));
            }
            found.push(finding);
        }
    }
    found
}

/// The rules that a daemon made of its plan do to this packet what the plan does not say.
fn program_differs(case: &Case<'_>, node: &str, packet: &Packet) -> Option<Finding> {
    let state = case.stage.snapshot.nodes.get(node)?;
    let plan = state.plans.get(&case.stage.family)?;
    let program = state.programs.get(&case.stage.family)?;
    let (by_plan, by_rules) = (program.walk_plan(plan, packet, None), program.walk(packet, None));
    (by_plan != by_rules).then(|| {
        let cause = format!("the rules of node {node} say otherwise than its plan of {}", packet.destination);
        Finding::new(Code::ProgramWrong, Severity::Broken, cause)
            .computed(format!("by the plan {by_plan:?}, by the rules {by_rules:?}"))
            .on(node)
    })
}

fn forwarding(node: &str, state: &NodeState, family: Family) -> Option<Finding> {
    let (name, code) = match family {
        Family::Ipv4 => ("net.ipv4.ip_forward", Code::NotForwarding),
        Family::Ipv6 => ("net.ipv6.conf.all.forwarding", Code::NotForwardingIpv6),
    };
    (state.sysctls.get(name)? == "0").then(|| {
        Finding::new(code, Severity::Broken, format!("node {node} does not forward {family} packets"))
            .measured(format!("{name} is 0"))
            .on(node)
            .next(format!("on node {node}: sysctl {name}"))
    })
}

fn route(node: &str, state: &NodeState, to: IpAddr) -> Option<Finding> {
    let of_family = |route: &&crate::network::Route| Family::of(route.to.addr()) == Family::of(to);
    // None at all of this family: they were not read.
    state.routes.iter().find(of_family)?;
    let next = || format!("on node {node}: ip route get {to}");
    let Some(route) = route_to(&state.routes, to) else {
        return Some(
            Finding::new(Code::NoRoute, Severity::Broken, format!("node {node} has no route to {to}"))
                .measured(format!("none of its {} routes fits", state.routes.len()))
                .on(node)
                .next(next()),
        );
    };
    if route.kind != "unicast" {
        return Some(
            Finding::new(
                Code::NoRoute,
                Severity::Broken,
                format!("node {node} has a route to {to} that is {}", route.kind),
            )
            .measured(format!("route {} {}", route.kind, route.to))
            .on(node)
            .next(next()),
        );
    }
    let device = route.device.as_ref()?;
    let interface = state.interfaces.iter().find(|one| one.name == *device)?;
    if !interface.up {
        return Some(
            Finding::new(Code::LinkDown, Severity::Broken, format!("interface {device} of node {node} is down"))
                .measured(format!("the route to {to} leads out of it"))
                .on(node)
                .next(format!("on node {node}: ip link show {device}")),
        );
    }
    let hop = route.via.unwrap_or(to);
    let failed =
        state.neighbours.iter().find(|one| one.address == hop && one.device == *device && one.state == "FAILED")?;
    Some(
        Finding::new(Code::NeighbourFailed, Severity::Degraded, format!("{hop} does not answer node {node}"))
            .measured(format!("neighbour {} on {device} is FAILED", failed.address))
            .on(node)
            .next(format!("on node {node}: ip neighbour show {hop}")),
    )
}

/// The receiving side of a link.
fn link(node: &str, state: &NodeState, source: IpAddr, from: Option<&str>, case: &Case<'_>) -> Option<Finding> {
    let peer = from.and_then(|from| case.index.node(from)).map_or(source, |from| from.primary);
    let device = route_to(&state.routes, peer)?.device.as_ref()?;
    let interface = state.interfaces.iter().find(|one| one.name == *device)?;
    if !interface.up {
        return Some(
            Finding::new(Code::LinkDown, Severity::Broken, format!("interface {device} of node {node} is down"))
                .measured(format!("packets from {} come in by it", from.unwrap_or("the router")))
                .on(node)
                .next(format!("on node {node}: ip link show {device}")),
        );
    }
    let filter = |name: &str| {
        state.sysctls.get(&format!("net.ipv4.conf.{name}.rp_filter")).and_then(|value| value.parse::<u8>().ok())
    };
    let strict = filter("all").max(filter(device)) == Some(1);
    let back = route_to(&state.routes, source)?;
    (strict && source.is_ipv4() && back.device.as_ref().is_some_and(|out| out != device)).then(|| {
        Finding::new(
            Code::StrictReversePath,
            Severity::Broken,
            format!("node {node} drops packets from {source} that come in by {device}"),
        )
        .measured(format!(
            "rp_filter is 1, and the route to {source} leads out of {}",
            back.device.as_deref().unwrap_or("?")
        ))
        .on(node)
    })
}

/// A pod that is led back to itself, over a bridge that sends nothing back.
fn hairpin(ground: &Ground<'_>, way: &Way) -> Option<Finding> {
    let Some(Step::Sent { by: crate::address::Source::Pod(sender), .. }) = way.steps.first() else { return None };
    let Some(Step::Arrived { node: Some(node), by: Some(Answerer::Pod(pod)), .. }) = way.steps.last() else {
        return None;
    };
    let through_rules = way.steps.iter().any(|step| matches!(step, Step::Ruled { .. }));
    if sender != pod || !through_rules {
        return None;
    }
    let state = ground.node(node)?;
    let ports: Vec<_> = state.interfaces.iter().filter(|one| one.bridge.is_some()).collect();
    // Packets that the node itself rewrote and routed come out of the bridge anew, unless it is a bridge that filters.
    let called = state.sysctls.get("net.bridge.bridge-nf-call-iptables").is_some_and(|value| value == "1");
    let off = !ports.is_empty() && ports.iter().all(|port| port.hairpin == Some(false));
    (called && off).then(|| {
        Finding::new(
            Code::HairpinOff,
            Severity::Broken,
            format!("the bridge of node {node} does not send packets of {pod} back to it"),
        )
        .measured("hairpin is off on every port of it")
        .on(node)
    })
}

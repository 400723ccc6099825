//! Pure. From the steps of one way to hops that a person can follow, and the answer's hops back.

use std::net::IpAddr;

use signpost_core::object::Family;
use signpost_core::packet::{Entry, Packet};
use signpost_core::walk;
use signpost_datapath::locate::{Location, Place};

use super::compute::{Stage, node_with};
use super::{Evidence, Header, Hop, WayTraced};
use crate::address::Source;
use crate::network::route_to;
use crate::predict::{Answerer, Done, Fate, Step, Way};

/// A way with its hops.
pub(super) fn traced(stage: &Stage<'_>, way: &Way) -> WayTraced {
    let mut forward = Hops { stage, hops: Vec::new() };
    for step in &way.steps {
        forward.step(step);
    }
    let answers = matches!(way.fate, Fate::Reached { .. });
    let somebody = matches!(way.steps.last(), Some(Step::Arrived { by: Some(_), .. }));
    let mut reply = Hops { stage, hops: Vec::new() };
    if somebody {
        reply.back(&way.steps, answers);
    }
    own_addresses(stage, &mut forward.hops, &mut reply.hops);
    let mut number = 0;
    for hop in forward.hops.iter_mut().chain(&mut reply.hops) {
        number += 1;
        hop.number = number;
    }
    WayTraced { share: way.share, fate: way.fate.to_string(), answers, forward: forward.hops, reply: reply.hops }
}

/// The kernel masquerades by the address of the interface that a packet leaves by; the walk knows a node by its first
/// address.
fn own_addresses(stage: &Stage<'_>, forward: &mut [Hop], reply: &mut [Hop]) {
    for at in 0..forward.len() {
        let hop = &forward[at];
        let Some(node) = hop.node.clone().filter(|_| hop.place == POSTROUTING) else { continue };
        let (known, to) = (hop.after.source.ip(), hop.after.destination.ip());
        let Some(state) = stage.snapshot.nodes.get(&node) else { continue };
        let device = route_to(&state.routes, to).and_then(|route| route.device.as_ref());
        let interface = device.and_then(|device| state.interfaces.iter().find(|one| one.name == *device));
        let is_fit = |address: &IpAddr| Family::of(*address) == stage.family && !is_link_local(*address);
        let mut addresses = interface.into_iter().flat_map(|one| one.addresses.iter().map(ipnet::IpNet::addr));
        let Some(own) = addresses.find(is_fit).filter(|own| *own != known) else { continue };
        forward[at].after.source.set_ip(own);
        for later in &mut forward[at + 1..] {
            for header in [&mut later.before, &mut later.after] {
                if header.source.ip() == known {
                    header.source.set_ip(own);
                }
            }
        }
        for hop in reply.iter_mut() {
            let undoes = hop.place == CONNTRACK && hop.node.as_ref() == Some(&node);
            let headers = if undoes { vec![&mut hop.before] } else { vec![&mut hop.before, &mut hop.after] };
            for header in headers {
                if header.destination.ip() == known {
                    header.destination.set_ip(own);
                }
            }
            if undoes {
                break;
            }
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

const POSTROUTING: &str = "hook postrouting";
const CONNTRACK: &str = "conntrack";

struct Hops<'a> {
    stage: &'a Stage<'a>,
    hops: Vec<Hop>,
}

fn header(packet: &Packet) -> Header {
    Header { source: packet.source, destination: packet.destination }
}

fn reversed(header: Header) -> Header {
    Header { source: header.destination, destination: header.source }
}

impl Hops<'_> {
    fn push(
        &mut self,
        node: Option<&str>,
        place: String,
        before: Header,
        after: Header,
        action: String,
        rules: Vec<String>,
    ) {
        let evidence = node.map_or(Evidence::Computed, |node| self.stage.evidence(node));
        let node = node.map(str::to_owned);
        self.hops.push(Hop { number: 0, node, place, before, after, action, rules, evidence, took_us: None });
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Sent { by, packet } => {
                let (node, place) = self.home(by);
                let at = header(packet);
                self.push(node.as_deref(), place, at, at, "sends".to_owned(), Vec::new());
            }
            Step::AtSocket { node, before, after, done } => self.at_socket(node, before, after, *done),
            Step::Ruled { node, before, after, done } => self.ruled(node, before, after, *done),
            Step::Carried { from, to, packet } => {
                let from = from.as_deref().unwrap_or("router");
                let at = header(packet);
                self.push(None, format!("wire {from} to {to}"), at, at, "is carried".to_owned(), Vec::new());
            }
            Step::Arrived { node, by, pod, packet } => {
                let at = header(packet);
                let (place, action) = match (by, pod) {
                    (Some(Answerer::Pod(pod)), _) => (format!("pod {pod}"), "receives it".to_owned()),
                    (Some(Answerer::Address(address)), _) => {
                        (format!("process at {address}"), "receives it".to_owned())
                    }
                    (None, Some(pod)) => (format!("pod {pod}"), "refuses it: nothing listens there".to_owned()),
                    (None, None) => {
                        let local = node.as_deref().is_some_and(|node| self.is_address_of(node, at.destination.ip()));
                        let action = if local { "refuses it: nothing listens there" } else { "nobody has the address" };
                        (at.destination.ip().to_string(), action.to_owned())
                    }
                };
                self.push(node.as_deref(), place, at, at, action, Vec::new());
            }
        }
    }

    fn home(&self, source: &Source) -> (Option<String>, String) {
        match source {
            Source::Pod(name) => {
                let pod = self.stage.view.pod(name);
                let on_host = if pod.is_some_and(|pod| pod.host_network) { " (in the node's network)" } else { "" };
                (pod.map(|pod| pod.node.clone()), format!("pod {name}{on_host}"))
            }
            Source::Node(name) => (Some(name.clone()), format!("process on {name}")),
            Source::Outside => (None, "outside".to_owned()),
        }
    }

    fn is_address_of(&self, node: &str, address: IpAddr) -> bool {
        self.stage.view.node(node).is_some_and(|node| node.addresses.contains(&address))
    }

    fn at_socket(&mut self, node: &str, before: &Packet, after: &Packet, done: Done) {
        let action = match done {
            Done::Untouched => return,
            Done::Rejected => "is refused",
            Done::Dropped => "is dropped",
            Done::Rewritten { .. } => "destination is replaced before there is a packet",
        };
        let rules = self.rules(node, before, after, true);
        self.push(Some(node), "socket".to_owned(), header(before), header(after), action.to_owned(), rules);
    }

    fn ruled(&mut self, node: &str, before: &Packet, after: &Packet, done: Done) {
        let hook = match before.entry {
            Entry::Interface => "prerouting",
            Entry::Local => "output",
        };
        let (first, last) = (header(before), header(after));
        let between = Header { source: first.source, destination: last.destination };
        match done {
            Done::Untouched => {
                let action = "passes: no Service has this destination".to_owned();
                self.push(Some(node), format!("hook {hook}"), first, first, action, Vec::new());
            }
            Done::Rejected => {
                let rules = self.rules(node, before, after, false);
                self.push(Some(node), format!("hook {hook}"), first, first, "is refused".to_owned(), rules);
                return;
            }
            Done::Dropped => {
                let rules = self.rules(node, before, after, false);
                self.push(Some(node), format!("hook {hook}"), first, first, "is dropped".to_owned(), rules);
                return;
            }
            Done::Rewritten { .. } => {
                let rules = self.rules(node, before, after, false);
                // The address is the node's own there: IPVS takes the packet on its way in, or out.
                let (place, action) = match self.stage.program(node).map(|program| program.mode()) {
                    Some("ipvs") if before.entry == Entry::Interface => {
                        ("IPVS behind hook input".to_owned(), "destination is rewritten by the virtual server")
                    }
                    Some("ipvs") => {
                        ("IPVS behind hook output".to_owned(), "destination is rewritten by the virtual server")
                    }
                    _ => (format!("hook {hook}"), "destination is rewritten (DNAT)"),
                };
                self.push(Some(node), place, first, between, action.to_owned(), rules);
            }
        }
        self.route(node, between);
        if let Done::Rewritten { masqueraded: true, .. } = done {
            let rules = self.masquerade_rule(node);
            let action = "source becomes the node's (masquerade)".to_owned();
            self.push(Some(node), POSTROUTING.to_owned(), between, last, action, rules);
        }
    }

    fn route(&mut self, node: &str, at: Header) {
        let to = at.destination.ip();
        let routes = self.stage.snapshot.nodes.get(node).map_or(&[][..], |state| &state.routes);
        let action = if self.is_address_of(node, to) {
            "is for the node itself".to_owned()
        } else {
            match route_to(routes, to) {
                Some(route) => {
                    let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
                    let device = route.device.as_deref().unwrap_or(&route.kind);
                    format!("goes to {}{via}, {device}", route.to)
                }
                None if routes.is_empty() => "goes on by the node's routes".to_owned(),
                None => "has no route".to_owned(),
            }
        };
        self.push(Some(node), "routing".to_owned(), at, at, action, Vec::new());
    }

    /// The rules that a packet meets, from its frontend to its backend.
    fn rules(&self, node: &str, before: &Packet, after: &Packet, at_socket: bool) -> Vec<String> {
        let Some(program) = self.stage.program(node) else { return Vec::new() };
        let Some((key, _)) = self.stage.plan(node).and_then(|plan| walk::frontend(plan, before)) else {
            return vec![format!("{}: cluster addresses and ranges of Services", program.mode())];
        };
        let to = after.destination.to_string();
        // Of the endpoints, the one that was chosen.
        let met = |at: &&Location| {
            let ends = ["-endpoints-", " KUBE-SEP-", "bpf slots"];
            let is_endpoint = ends.iter().any(|end| at.name.contains(end));
            !is_endpoint || at.leads_to == to
        };
        let all = program.locate(self.stage.family, key);
        all.iter()
            .filter(|at| at.name.starts_with("bpf ") == at_socket)
            .filter(met)
            .filter(|at| at.kind != Place::Chain || !at.name.contains(" KUBE-FW-"))
            .map(ToString::to_string)
            .collect()
    }

    fn masquerade_rule(&self, node: &str) -> Vec<String> {
        let ip = if self.stage.family == Family::Ipv4 { "ip" } else { "ip6" };
        match self.stage.program(node).map(|program| program.mode()) {
            Some("nftables" | "ebpf") => vec![format!("{ip} kube-proxy masquerading")],
            Some("iptables" | "ipvs") => vec!["nat KUBE-POSTROUTING -> MASQUERADE".to_owned()],
            _ => Vec::new(),
        }
    }

    /// The answer: the way back, with each rewriting undone where it was done.
    fn back(&mut self, steps: &[Step], comes_back: bool) {
        let Some(Step::Arrived { node, by: Some(by), packet, .. }) = steps.last() else { return };
        let mut at = reversed(header(packet));
        let place = match by {
            Answerer::Pod(pod) => format!("pod {pod}"),
            Answerer::Address(address) => format!("process at {address}"),
        };
        self.push(node.as_deref(), place, at, at, "answers".to_owned(), Vec::new());
        if !comes_back {
            let action = "goes past the node that rewrote the request: the client gets an answer from a stranger";
            self.push(None, "wire".to_owned(), at, at, action.to_owned(), Vec::new());
            return;
        }
        // Where the answer is: it is carried when it has to get to another node.
        let mut here = node.clone();
        for step in steps.iter().rev() {
            match step {
                // The application is shown the address that it asked for; the answer itself is not rewritten.
                Step::AtSocket { .. } => {}
                Step::Ruled { node, before, after, done: Done::Rewritten { .. } } => {
                    if here.as_ref() != Some(node) {
                        self.carry(here.as_deref(), Some(node), at);
                        here = Some(node.clone());
                    }
                    let undone = Header { source: before.destination, destination: before.source };
                    let is_its = at == reversed(header(after));
                    if is_its {
                        let action = "conntrack undoes the rewriting of the request".to_owned();
                        self.push(Some(node), CONNTRACK.to_owned(), at, undone, action, Vec::new());
                        at = undone;
                    }
                }
                Step::Sent { by, .. } => {
                    let (node, place) = self.home(by);
                    if node != here {
                        let to_router = node.is_none();
                        self.carry(here.as_deref(), node.as_deref().or(to_router.then_some("router")), at);
                    }
                    let action = "receives the answer".to_owned();
                    self.push(node.as_deref(), place, at, at, action, Vec::new());
                }
                _ => {}
            }
        }
    }

    fn carry(&mut self, from: Option<&str>, to: Option<&str>, at: Header) {
        let owner = node_with(&self.stage.view, at.destination.ip());
        let to = to.or(owner).unwrap_or("router");
        let place = format!("wire {} to {to}", from.unwrap_or("router"));
        self.push(None, place, at, at, "is carried".to_owned(), Vec::new());
    }
}

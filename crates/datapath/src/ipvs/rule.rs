//! Pure. The rules that stand around the virtual servers, in iptables' words. All look things up in sets, so there are as
//! many at any number of Services.
//!
//! ```text
//! mangle  PREROUTING, OUTPUT ──▶ KUBE-PROXY-FIREWALL (who may not use a load balancer's address is dropped)
//!                            ──▶ KUBE-IPVS-MARK      (who meets a server of his own gets its mark)
//! nat     PREROUTING, OUTPUT ──▶ KUBE-SERVICES ──▶ KUBE-LOAD-BALANCER, KUBE-NODE-PORT ──▶ KUBE-MARK-MASQ
//! filter  INPUT, FORWARD     ──▶ KUBE-IPVS-FILTER ──▶ KUBE-CLUSTER-IPS, KUBE-REJECT
//!         ··· here IPVS takes what comes for a server; what the node sends it takes before filter's OUTPUT ···
//! filter  OUTPUT             ──▶ KUBE-IPVS-FILTER, for what IPVS did not take
//! nat     POSTROUTING        ──▶ KUBE-POSTROUTING (masquerade)
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::NodePlan;

use super::layout::{DROP_MARK, MASQUERADE, REJECT_MARK, SERVER_MARK, SERVER_MARK_MASK};
use super::set::Set;

/// A table, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Marks.
    Mangle,
    /// Masquerades.
    Nat,
    /// Refuses and drops.
    Filter,
}

impl Table {
    /// All.
    pub const ALL: [Table; 3] = [Table::Mangle, Table::Nat, Table::Filter];

    /// As iptables writes it.
    pub fn name(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Nat => "nat",
            Table::Filter => "filter",
        }
    }
}

/// A chain: the kernel's own or one of ours, by name.
pub type Chain = &'static str;

/// One rule: if all matches hold, the action is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// For people; empty: none.
    pub comment: &'static str,
    /// All must hold.
    pub matches: Vec<Match>,
    /// What is done.
    pub action: Action,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// From this range.
    Source(IpNet),
    /// From an address of this machine.
    SourceIsLocal,
    /// To this range.
    Destination(IpNet),
    /// Of this protocol.
    Protocol(Protocol),
    /// In a set.
    In(Set),
    /// Not in a set.
    NotIn(Set),
    /// From an address that is in a set of addresses.
    SourceIn(Set),
    /// These bits of the mark are so.
    Mark(u32, u32),
    /// They are not.
    NotMark(u32, u32),
    /// The first packet of a flow.
    New,
    /// Of a flow that is known, or belongs to one.
    Known,
    /// IPVS translated it.
    Translated,
    /// It did not.
    NotTranslated,
}

/// What is done to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Goes through another chain, and comes back if nothing there ended its way.
    Jump(Chain),
    /// Goes on behind the rule that jumped here.
    Return,
    /// Ends its way through this table.
    Accept,
    /// Is thrown away.
    Drop,
    /// Is refused with a message of ICMP.
    Reject,
    /// Is refused with a reset of TCP.
    Reset,
    /// Gets the mark that its element in the set has; none if there is none.
    MarkFrom(Set),
    /// Gets the bit for masquerade.
    Mark,
    /// Loses it.
    Unmark,
    /// Gets the source address of the interface it leaves through.
    Masquerade,
}

const FIREWALL: Chain = "KUBE-PROXY-FIREWALL";
const MARKS: Chain = "KUBE-IPVS-MARK";
const SERVICES: Chain = "KUBE-SERVICES";
const LOAD_BALANCER: Chain = "KUBE-LOAD-BALANCER";
const NODE_PORT: Chain = "KUBE-NODE-PORT";
const MARK_MASQ: Chain = "KUBE-MARK-MASQ";
const POSTROUTING: Chain = "KUBE-POSTROUTING";
const FILTER: Chain = "KUBE-IPVS-FILTER";
const FORWARD: Chain = "KUBE-FORWARD";
/// By this chain it is known that this program, not kube-proxy, made the rules: the mode iptables has it too.
pub const CLUSTER_IPS: Chain = "KUBE-CLUSTER-IPS";
const REFUSAL: Chain = "KUBE-REJECT";

/// The chains of ours, with their tables.
pub const CHAINS: [(Table, Chain); 11] = [
    (Table::Mangle, FIREWALL),
    (Table::Mangle, MARKS),
    (Table::Nat, SERVICES),
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, NODE_PORT),
    (Table::Nat, MARK_MASQ),
    (Table::Nat, POSTROUTING),
    (Table::Filter, FILTER),
    (Table::Filter, FORWARD),
    (Table::Filter, CLUSTER_IPS),
    (Table::Filter, REFUSAL),
];

/// Chains that kube-proxy has besides, in this mode.
const OF_KUBE_PROXY: [Chain; 3] = ["KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-NODE-PORT"];

/// Whether a chain is a Service proxy's, in this mode or in the mode iptables, whose names are much the same.
pub fn is_ours(name: &str) -> bool {
    CHAINS.iter().any(|(_, chain)| *chain == name)
        || OF_KUBE_PROXY.contains(&name)
        || crate::iptables::names::is_ours(name)
}

/// Whether only this mode has it.
pub fn is_of_this_mode(table: Table, name: &str) -> bool {
    let alone = [MARKS, LOAD_BALANCER, NODE_PORT, FILTER];
    alone.contains(&name) || OF_KUBE_PROXY.contains(&name) || (table == Table::Mangle && name == FIREWALL)
}

/// The kernel's chains that have rules of ours.
pub fn bases(table: Table) -> &'static [Chain] {
    match table {
        Table::Mangle => &["PREROUTING", "OUTPUT"],
        Table::Nat => &["PREROUTING", "OUTPUT", "POSTROUTING"],
        Table::Filter => &["INPUT", "FORWARD", "OUTPUT"],
    }
}

fn rule(comment: &'static str, matches: impl Into<Vec<Match>>, action: Action) -> Rule {
    Rule { comment, matches: matches.into(), action }
}

/// The rules of a chain of ours, or of ours in one of the kernel's.
pub fn rules(plan: &NodePlan, table: Table, chain: &str) -> Vec<Rule> {
    match (table, chain) {
        (Table::Mangle, "PREROUTING") => to_each(&[], &[(FIREWALL, SOURCES), (MARKS, OWN_SERVERS)]),
        (Table::Mangle, "OUTPUT") => to_each(&[Match::NotTranslated], &[(FIREWALL, SOURCES), (MARKS, OWN_SERVERS)]),
        (Table::Mangle, FIREWALL) => firewall(),
        (Table::Mangle, MARKS) => mark_rules(plan),
        (Table::Nat, "PREROUTING" | "OUTPUT") => to_each(&[], &[(SERVICES, "kubernetes service portals")]),
        (Table::Nat, "POSTROUTING") => to_each(&[], &[(POSTROUTING, "kubernetes masquerade")]),
        (Table::Nat, SERVICES) => service_rules(plan),
        (Table::Nat, LOAD_BALANCER) => vec![
            rule("external Local policy", [Match::In(Set::LoadBalancerLocal)], Action::Return),
            rule("", [], Action::Jump(MARK_MASQ)),
        ],
        (Table::Nat, NODE_PORT) => node_port_rules(),
        (Table::Nat, MARK_MASQ) => vec![rule("", [], Action::Mark)],
        (Table::Nat, POSTROUTING) => masquerade_rules(),
        (Table::Filter, "INPUT") => to_each(&[Match::New], &[(FILTER, REFUSALS)]),
        (Table::Filter, "OUTPUT") => to_each(&[Match::New, Match::NotTranslated], &[(FILTER, REFUSALS)]),
        (Table::Filter, "FORWARD") => {
            let mut rules = to_each(&[Match::New], &[(FILTER, REFUSALS)]);
            rules.extend(to_each(&[], &[(FORWARD, "kubernetes forwarding")]));
            rules
        }
        (Table::Filter, FILTER) => filter_rules(plan),
        (Table::Filter, FORWARD) => vec![
            rule("kubernetes forwarding, masqueraded", [Match::Mark(MASQUERADE, MASQUERADE)], Action::Accept),
            rule("kubernetes forwarding, known flows", [Match::Known], Action::Accept),
        ],
        (Table::Filter, CLUSTER_IPS) => vec![rule("cluster IPs that no service has", [], Action::Drop)],
        (Table::Filter, REFUSAL) => {
            vec![rule("", [Match::Protocol(Protocol::Tcp)], Action::Reset), rule("", [], Action::Reject)]
        }
        _ => Vec::new(),
    }
}

const SOURCES: &str = "kubernetes load balancer sources";
const OWN_SERVERS: &str = "clients with a server of their own";
const REFUSALS: &str = "kubernetes services without endpoints";

fn to_each(matches: &[Match], chains: &[(Chain, &'static str)]) -> Vec<Rule> {
    chains.iter().map(|(chain, comment)| rule(comment, matches, Action::Jump(chain))).collect()
}

fn firewall() -> Vec<Rule> {
    let matches = [Match::New, Match::In(Set::LoadBalancerFirewall), Match::NotIn(Set::LoadBalancerSources)];
    vec![rule("loadBalancerSourceRanges", matches, Action::Drop)]
}

/// Every packet is marked, not only a flow's first: IPVS may look for a server again.
fn mark_rules(plan: &NodePlan) -> Vec<Rule> {
    let mut rules = Vec::new();
    let pods = plan.cluster_cidrs.iter().map(|range| Match::Source(range.trunc()));
    for (from, set) in pods.map(|from| (from, Set::FromPod)).chain([(Match::SourceIsLocal, Set::FromNode)]) {
        rules.push(rule("", [from.clone()], Action::MarkFrom(set)));
        rules.push(rule("", [from], Action::Return));
    }
    rules.push(rule("", [], Action::MarkFrom(Set::FromElsewhere)));
    rules
}

fn service_rules(plan: &NodePlan) -> Vec<Rule> {
    let mut rules = vec![
        rule("the mark says it", [Match::Mark(SERVER_MARK, SERVER_MARK_MASK)], Action::Accept),
        rule("masquerade all", [Match::In(Set::ClusterIpMasquerade)], Action::Jump(MARK_MASQ)),
        rule("masquerade all", [Match::In(Set::ClusterIpMasquerade)], Action::Accept),
    ];
    for range in &plan.cluster_cidrs {
        let matches = [Match::Source(range.trunc()), Match::In(Set::ClusterIp)];
        rules.push(rule("cluster IP, from pods", matches, Action::Accept));
    }
    if !plan.cluster_cidrs.is_empty() {
        rules.push(rule("cluster IP", [Match::In(Set::ClusterIp)], Action::Jump(MARK_MASQ)));
    }
    rules.extend([
        rule("cluster IP", [Match::In(Set::ClusterIp)], Action::Accept),
        rule("external IP, Local policy", [Match::In(Set::ExternalIpLocal)], Action::Accept),
        rule("external IP", [Match::In(Set::ExternalIp)], Action::Jump(MARK_MASQ)),
        rule("external IP", [Match::In(Set::ExternalIp)], Action::Accept),
        rule("loadbalancer IP", [Match::In(Set::LoadBalancer)], Action::Jump(LOAD_BALANCER)),
        rule("loadbalancer IP", [Match::In(Set::LoadBalancer)], Action::Accept),
    ]);
    let to_node = plan.node_port_addresses.iter().map(|address| Match::Destination(IpNet::from(*address)));
    rules.extend(to_node.map(|to| rule("kubernetes service nodeports", [to], Action::Jump(NODE_PORT))));
    rules
}

fn node_port_rules() -> Vec<Rule> {
    let of = |protocol| {
        let at = |set| [Match::Protocol(protocol), Match::In(set)];
        [
            rule("external Local policy", at(Set::NodePortLocal(protocol)), Action::Return),
            rule("node port", at(Set::NodePort(protocol)), Action::Jump(MARK_MASQ)),
        ]
    };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().flat_map(of).collect()
}

fn masquerade_rules() -> Vec<Rule> {
    vec![
        rule("to itself", [Match::Translated, Match::In(Set::LoopBack)], Action::Masquerade),
        // What the node sends has the Service's own address as its source: the kernel takes it for the nearest.
        rule("from this node", [Match::Translated, Match::SourceIn(Set::IpvsIps)], Action::Masquerade),
        rule("", [Match::NotMark(MASQUERADE, MASQUERADE)], Action::Return),
        // So that a packet which meets these rules again, inside a tunnel, is not masqueraded twice.
        rule("", [], Action::Unmark),
        rule("kubernetes masquerade", [], Action::Masquerade),
    ]
}

fn filter_rules(plan: &NodePlan) -> Vec<Rule> {
    let mut rules = vec![
        rule("has a server of its own", [Match::Mark(SERVER_MARK, SERVER_MARK_MASK)], Action::Return),
        rule("", [Match::Mark(DROP_MARK, !MASQUERADE)], Action::Drop),
        rule("", [Match::Mark(REJECT_MARK, !MASQUERADE)], Action::Jump(REFUSAL)),
        rule("no endpoints", [Match::In(Set::NoEndpoints)], Action::Jump(REFUSAL)),
        rule("no local endpoints", [Match::In(Set::NoLocalEndpoints)], Action::Drop),
    ];
    let served = [Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal, Set::LoadBalancer];
    rules.extend(served.map(|set| rule("", [Match::In(set)], Action::Return)));
    rules.push(rule("no port of a service", [Match::In(Set::IpvsIps)], Action::Jump(REFUSAL)));
    let ranges: BTreeSet<IpNet> = plan.service_cidrs.iter().map(IpNet::trunc).collect();
    // A node's address is in none of the Services' ranges, but if it is, its node ports are served all the same.
    let inside = |address: &&IpAddr| ranges.iter().any(|range| range.contains(*address));
    for address in plan.node_port_addresses.iter().filter(inside) {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let to = Match::Destination(IpNet::from(*address));
            let matches = [to, Match::Protocol(protocol), Match::In(Set::NodePort(protocol))];
            rules.push(rule("node port", matches, Action::Return));
        }
    }
    let to_range = ranges.into_iter().map(Match::Destination);
    rules.extend(to_range.map(|to| rule("kubernetes cluster IPs", [to], Action::Jump(CLUSTER_IPS))));
    rules
}

impl Rule {
    /// Its text without the chain, as `iptables-save` orders it: source, destination, protocol, then the rest.
    pub fn write(&self, family: Family, out: &mut String) {
        for asked in &self.matches {
            match asked {
                Match::Source(range) if range.prefix_len() > 0 => push(out, format_args!("-s {range} ")),
                Match::Destination(range) if range.prefix_len() > 0 => push(out, format_args!("-d {range} ")),
                _ => {}
            }
        }
        for asked in &self.matches {
            if let Match::Protocol(protocol) = asked {
                push(out, format_args!("-p {protocol} "));
            }
        }
        if !self.comment.is_empty() {
            push(out, format_args!("-m comment --comment \"{}\" ", self.comment));
        }
        for asked in &self.matches {
            asked.write_module(family, out);
        }
        self.action.write(family, out);
    }
}

impl Match {
    fn write_module(&self, family: Family, out: &mut String) {
        match self {
            Match::SourceIsLocal => out.push_str("-m addrtype --src-type LOCAL "),
            Match::In(set) => {
                push(out, format_args!("-m set --match-set {} {} ", set.name(family), set.directions()));
            }
            Match::NotIn(set) => {
                push(out, format_args!("-m set ! --match-set {} {} ", set.name(family), set.directions()));
            }
            Match::SourceIn(set) => push(out, format_args!("-m set --match-set {} src ", set.name(family))),
            Match::Mark(value, mask) => push(out, format_args!("-m mark --mark {value:#x}/{mask:#x} ")),
            Match::NotMark(value, mask) => push(out, format_args!("-m mark ! --mark {value:#x}/{mask:#x} ")),
            Match::New => out.push_str("-m conntrack --ctstate NEW "),
            Match::Known => out.push_str("-m conntrack --ctstate RELATED,ESTABLISHED "),
            Match::Translated => out.push_str("-m ipvs --ipvs "),
            Match::NotTranslated => out.push_str("-m ipvs ! --ipvs "),
            Match::Source(_) | Match::Destination(_) | Match::Protocol(_) => {}
        }
    }
}

impl Action {
    fn write(&self, family: Family, out: &mut String) {
        match self {
            Action::Jump(chain) => push(out, format_args!("-j {chain}")),
            Action::Return => out.push_str("-j RETURN"),
            Action::Accept => out.push_str("-j ACCEPT"),
            Action::Drop => out.push_str("-j DROP"),
            Action::Reject => out.push_str(match family {
                Family::Ipv4 => "-j REJECT --reject-with icmp-port-unreachable",
                Family::Ipv6 => "-j REJECT --reject-with icmp6-port-unreachable",
            }),
            Action::Reset => out.push_str("-j REJECT --reject-with tcp-reset"),
            Action::MarkFrom(set) => {
                push(out, format_args!("-j SET --map-set {} dst,dst --map-mark", set.name(family)))
            }
            Action::Mark => push(out, format_args!("-j MARK --set-xmark {MASQUERADE:#x}/{MASQUERADE:#x}")),
            Action::Unmark => push(out, format_args!("-j MARK --set-xmark {MASQUERADE:#x}/0x0")),
            Action::Masquerade => out.push_str("-j MASQUERADE --random-fully"),
        }
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

/// The text of rules, a line each.
pub fn text(family: Family, rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        rule.write(family, &mut text);
        text.push('\n');
    }
    text
}

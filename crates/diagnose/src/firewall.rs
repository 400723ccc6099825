//! Pure. Rules that others wrote: what nftables and iptables hold besides our own, and whether they stop a packet.
//!
//! Only what can be understood is judged: a rule with a condition that is not known here *may* hold, and what follows
//! from it is said to be assumed.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use signpost_core::object::{Family, Protocol};

mod iptables;
mod nftables;

pub use iptables::read as read_iptables;
pub use nftables::read as read_nftables;

/// A chain of somebody else's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Chain {
    /// `nft` or `iptables`.
    pub tool: String,
    /// The families whose packets it sees.
    pub families: Vec<Family>,
    /// Its table, as the tool names it.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where it hangs: `prerouting`, `input`, `forward`, `output`, `postrouting`; `None`: others lead to it.
    pub hook: Option<String>,
    /// The order of chains at one hook.
    pub priority: i64,
    /// Whether it drops what it does not decide.
    pub drops_the_rest: bool,
    /// How many packets its policy met, if counted.
    pub dropped: Option<u64>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// For people.
    pub text: String,
    /// What must hold; all of it.
    pub conditions: Vec<Condition>,
    /// What then happens.
    pub verdict: Verdict,
    /// How many packets met it, if counted.
    pub packets: Option<u64>,
}

/// What must hold of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// Its source is in one of these, or (`true`) in none.
    Source(Vec<IpNet>, bool),
    /// Its destination.
    Destination(Vec<IpNet>, bool),
    /// Its protocol is one of these, by number or name, or in none.
    Protocol(Vec<String>, bool),
    /// Its destination port lies in one of these ranges, or in none.
    Port(Vec<(u16, u16)>, bool),
    /// The state of its flow is one of these, or none.
    State(Vec<String>, bool),
    /// Something that is not understood here.
    Unknown(String),
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Lets it go on to the next chain.
    Accept,
    /// Drops it.
    Drop,
    /// Refuses it.
    Reject,
    /// Goes to another chain, and comes back.
    Jump(String),
    /// Goes to another chain, and does not come back to this one.
    Goto(String),
    /// Back to where it came from.
    Return,
    /// Something that ends nothing.
    Continue,
}

/// The first packet of a flow at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Its destination port.
    pub port: u16,
    /// The hook.
    pub hook: &'static str,
}

/// What stops a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Where: tool, table, chain.
    pub place: String,
    /// The rule, or the policy.
    pub rule: String,
    /// Refused, not dropped.
    pub refused: bool,
    /// Whether it surely holds; else a condition is not understood.
    pub sure: bool,
    /// How many packets met it, if counted.
    pub packets: Option<u64>,
}

/// What stops the packet at its hook, if anything does. A chain that surely accepts it lets it come to the next.
pub fn stopped(chains: &[Chain], seen: &Seen) -> Option<Stopped> {
    let family = Family::of(seen.destination);
    let mut at_hook: Vec<&Chain> = chains
        .iter()
        .filter(|chain| chain.hook.as_deref() == Some(seen.hook) && chain.families.contains(&family))
        .collect();
    at_hook.sort_by_key(|chain| chain.priority);
    at_hook.into_iter().find_map(|chain| match walk(chains, chain, seen, true, 0) {
        Outcome::Stopped(stopped) => Some(stopped),
        Outcome::Accepted => None,
        Outcome::Passed(sure) => chain.drops_the_rest.then(|| Stopped {
            place: chain.place(),
            rule: "policy drop".to_owned(),
            refused: false,
            sure,
            packets: chain.dropped,
        }),
    })
}

impl Chain {
    fn place(&self) -> String {
        format!("{} {} {}", self.tool, self.table, self.name)
    }
}

enum Outcome {
    Stopped(Stopped),
    Accepted,
    /// Nothing decided; whether that is sure.
    Passed(bool),
}

/// No packet needs more jumps; a kernel refuses a loop.
const MOST_JUMPS: usize = 16;

fn walk(chains: &[Chain], chain: &Chain, seen: &Seen, sure_so_far: bool, depth: usize) -> Outcome {
    let mut sure = sure_so_far;
    if depth > MOST_JUMPS {
        return Outcome::Passed(false);
    }
    for rule in &chain.rules {
        let Some(certain) = holds(rule, seen) else { continue };
        match &rule.verdict {
            Verdict::Accept | Verdict::Return if !certain => sure = false,
            Verdict::Accept => return Outcome::Accepted,
            Verdict::Return => return Outcome::Passed(sure),
            // What only may stop it is told only if nothing else speaks against it: a doubt is no finding.
            Verdict::Drop | Verdict::Reject if !certain => sure = false,
            Verdict::Drop | Verdict::Reject => {
                return Outcome::Stopped(Stopped {
                    place: chain.place(),
                    rule: rule.text.clone(),
                    refused: rule.verdict == Verdict::Reject,
                    sure,
                    packets: rule.packets,
                });
            }
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let next = chains
                    .iter()
                    .find(|other| other.tool == chain.tool && other.table == chain.table && other.name == *to);
                let Some(next) = next else {
                    sure = false;
                    continue;
                };
                match walk(chains, next, seen, sure && certain, depth + 1) {
                    Outcome::Accepted if !certain => sure = false,
                    Outcome::Passed(still) if matches!(rule.verdict, Verdict::Jump(_)) => sure = still,
                    other => return other,
                }
            }
            Verdict::Continue => {}
        }
    }
    Outcome::Passed(sure)
}

/// `None`: it does not hold; else whether that is certain.
fn holds(rule: &Rule, seen: &Seen) -> Option<bool> {
    let mut certain = true;
    for condition in &rule.conditions {
        let (fits, not) = match condition {
            Condition::Source(ranges, not) => (ranges.iter().any(|range| range.contains(&seen.source)), *not),
            Condition::Destination(ranges, not) => (ranges.iter().any(|range| range.contains(&seen.destination)), *not),
            Condition::Protocol(names, not) => (names.iter().any(|name| is_protocol(name, seen)), *not),
            Condition::Port(ranges, not) => (ranges.iter().any(|(from, to)| (*from..=*to).contains(&seen.port)), *not),
            // It is the first packet of its flow.
            Condition::State(states, not) => (states.iter().any(|state| state.eq_ignore_ascii_case("new")), *not),
            Condition::Unknown(_) => {
                certain = false;
                continue;
            }
        };
        if fits == not {
            return None;
        }
    }
    Some(certain)
}

fn is_protocol(name: &str, seen: &Seen) -> bool {
    let number = match seen.protocol {
        Protocol::Tcp => "6",
        Protocol::Udp => "17",
        Protocol::Sctp => "132",
    };
    name == number || name.eq_ignore_ascii_case(&seen.protocol.to_string()) || name == "all"
}

fn ranges_of(value: &Value) -> Option<Vec<IpNet>> {
    let parse = |text: &str| text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok();
    match value {
        Value::String(text) => Some(vec![parse(text)?]),
        Value::Object(_) => {
            if let Some(set) = value.get("set").and_then(Value::as_array) {
                let each: Option<Vec<Vec<IpNet>>> = set.iter().map(ranges_of).collect();
                return each.map(|each| each.concat());
            }
            let prefix = value.get("prefix")?;
            let address = prefix.get("addr")?.as_str()?;
            let length = prefix.get("len")?.as_u64()?;
            Some(vec![parse(&format!("{address}/{length}"))?])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(hook: &'static str) -> Seen {
        Seen {
            protocol: Protocol::Tcp,
            source: "10.244.1.2".parse().unwrap(),
            destination: "10.244.2.2".parse().unwrap(),
            port: 8080,
            hook,
        }
    }

    const DOCKER: &str = "*filter\n:INPUT ACCEPT [1:2]\n:FORWARD DROP [7:420]\n:DOCKER - [0:0]\n\
        -A FORWARD -j DOCKER\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
        -A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A DOCKER -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j ACCEPT\nCOMMIT\n";

    #[test]
    fn a_policy_that_drops_stops_what_nothing_accepts() {
        let chains = read_iptables("iptables", Family::Ipv4, DOCKER);
        let stop = stopped(&chains, &seen("forward")).unwrap();
        assert_eq!((stop.rule.as_str(), stop.packets, stop.sure), ("policy drop", Some(7), false));
        assert_eq!(stopped(&chains, &seen("input")), None);
        let plain = DOCKER.replace("-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n", "");
        assert!(stopped(&read_iptables("iptables", Family::Ipv4, &plain), &seen("forward")).unwrap().sure);
        let allowed = DOCKER.replace("COMMIT", "-A FORWARD -s 10.244.0.0/16 -j ACCEPT\nCOMMIT");
        assert_eq!(stopped(&read_iptables("iptables", Family::Ipv4, &allowed), &seen("forward")), None);
    }

    #[test]
    fn a_rule_of_nftables_that_drops_is_found_behind_a_jump() {
        let value = json!({"nftables": [
            {"table": {"family": "inet", "name": "fw"}},
            {"chain": {"family": "inet", "table": "fw", "name": "forward", "hook": "forward", "prio": 0, "policy": "accept"}},
            {"chain": {"family": "inet", "table": "fw", "name": "pods"}},
            {"rule": {"family": "inet", "table": "fw", "chain": "forward", "expr": [{"jump": {"target": "pods"}}]}},
            {"rule": {"family": "inet", "table": "fw", "chain": "pods", "expr": [
                {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
                           "right": {"prefix": {"addr": "10.244.2.0", "len": 24}}}},
                {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 8080}},
                {"counter": {"packets": 3, "bytes": 180}}, {"drop": null}]}},
        ]});
        let chains = read_nftables(&value);
        let stop = stopped(&chains, &seen("forward")).unwrap();
        assert!(stop.sure && stop.packets == Some(3) && stop.place == "nft inet fw pods", "{stop:?}");
        assert_eq!(stopped(&chains, &Seen { port: 81, ..seen("forward") }), None);
        assert_eq!(stopped(&chains, &seen("output")), None);
    }

    #[test]
    fn a_condition_that_is_not_understood_makes_no_finding_of_a_drop() {
        let value = json!({"nftables": [
            {"chain": {"family": "ip", "table": "fw", "name": "f", "hook": "forward", "prio": 0, "policy": "accept"}},
            {"rule": {"family": "ip", "table": "fw", "chain": "f", "expr": [
                {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eth9"}}, {"drop": null}]}},
        ]});
        assert_eq!(stopped(&read_nftables(&value), &seen("forward")), None);
    }
}

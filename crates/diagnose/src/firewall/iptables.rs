//! Pure. `iptables-save`, as far as it is understood. Chains of Service proxies are left out: they are compared elsewhere.

use ipnet::IpNet;
use signpost_core::object::Family;
use signpost_datapath::iptables::names::is_ours;

use super::{Chain, Condition, Rule, Verdict};

/// The chains of the tables filter, raw and mangle that are not ours.
pub fn read(tool: &str, family: Family, saved: &str) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut table = String::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            name.trim().clone_into(&mut table);
        } else if table == "nat" {
            // It rewrites and filters nothing.
        } else if let Some(head) = line.strip_prefix(':') {
            chains.extend(chain(tool, family, &table, head));
        } else if let Some((name, rest)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
            && let Some(chain) = chains.iter_mut().find(|chain| chain.table == table && chain.name == name)
        {
            chain.rules.extend(rule(rest));
        }
    }
    chains.retain(|chain| !chain.rules.is_empty() || chain.drops_the_rest);
    chains
}

fn chain(tool: &str, family: Family, table: &str, head: &str) -> Option<Chain> {
    let mut words = head.split(' ');
    let (name, policy) = (words.next()?, words.next()?);
    if is_ours(name) {
        return None;
    }
    let packets = words.next().and_then(|counts| counts.trim_matches(['[', ']']).split_once(':')?.0.parse().ok());
    let hook = match name {
        "PREROUTING" => Some("prerouting"),
        "INPUT" => Some("input"),
        "FORWARD" => Some("forward"),
        "OUTPUT" => Some("output"),
        "POSTROUTING" => Some("postrouting"),
        _ => None,
    };
    let priority = match table {
        "raw" => -300,
        "mangle" => -150,
        _ => 0,
    };
    Some(Chain {
        tool: tool.to_owned(),
        families: vec![family],
        table: table.to_owned(),
        name: name.to_owned(),
        hook: hook.map(str::to_owned),
        priority,
        drops_the_rest: policy == "DROP",
        dropped: packets,
        rules: Vec::new(),
    })
}

/// `None`: it leads to a chain of ours.
fn rule(text: &str) -> Option<Rule> {
    let mut rule = Rule { text: text.to_owned(), conditions: Vec::new(), verdict: Verdict::Continue, packets: None };
    let mut words = text.split(' ').peekable();
    let mut not = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word {
            "!" => {
                not = true;
                continue;
            }
            "-s" => rule.conditions.push(range(value(), not, Condition::Source)),
            "-d" => rule.conditions.push(range(value(), not, Condition::Destination)),
            "-p" => rule.conditions.push(Condition::Protocol(vec![value().to_owned()], not)),
            // The module's own options say what it asks for.
            "-m" => {
                value();
            }
            "--dport" | "--dports" => rule.conditions.push(ports(value(), not)),
            "--ctstate" | "--state" => {
                let states = value().split(',').map(str::to_owned).collect();
                rule.conditions.push(Condition::State(states, not));
            }
            "--comment" => {
                // Quoted, if a blank is in it.
                let mut part = value();
                if part.starts_with('"') {
                    while !(part.ends_with('"') && part.len() > 1) {
                        match words.next() {
                            Some(next) => part = next,
                            None => break,
                        }
                    }
                }
            }
            "-j" | "-g" => {
                let target = value();
                if is_ours(target) {
                    return None;
                }
                rule.verdict = verdict(word, target);
                // What follows are the target's options.
                break;
            }
            other => {
                rule.conditions.push(Condition::Unknown(other.to_owned()));
                if other.starts_with('-') && words.peek().is_some_and(|next| !next.starts_with('-')) {
                    words.next();
                }
            }
        }
        not = false;
    }
    Some(rule)
}

fn verdict(word: &str, target: &str) -> Verdict {
    match target {
        "ACCEPT" => Verdict::Accept,
        "DROP" => Verdict::Drop,
        "REJECT" => Verdict::Reject,
        "RETURN" => Verdict::Return,
        "LOG" | "MARK" | "CONNMARK" | "TCPMSS" | "NFLOG" | "TRACE" | "CT" | "NOTRACK" | "CHECKSUM" | "CLASSIFY" => {
            Verdict::Continue
        }
        other if word == "-g" => Verdict::Goto(other.to_owned()),
        other => Verdict::Jump(other.to_owned()),
    }
}

fn range(text: &str, not: bool, make: impl Fn(Vec<IpNet>, bool) -> Condition) -> Condition {
    let parsed = text.parse::<IpNet>().or_else(|_| text.parse().map(|address: std::net::IpAddr| IpNet::from(address)));
    parsed.map_or_else(|_| Condition::Unknown(text.to_owned()), |range| make(vec![range], not))
}

fn ports(text: &str, not: bool) -> Condition {
    let one = |part: &str| {
        let (from, to) = part.split_once(':').unwrap_or((part, part));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    let all: Option<Vec<(u16, u16)>> = text.split(',').map(one).collect();
    all.map_or_else(|| Condition::Unknown(text.to_owned()), |ranges| Condition::Port(ranges, not))
}

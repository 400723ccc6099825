//! Pure. What the kernel holds, out of `iptables-save`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use signpost_core::object::Protocol;

use super::chain::{Base, Chain, Table};
use super::names::is_ours;

/// The chains of ours and the kernel's own, of both tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// By name; the rules as text without the chain's name, a line each.
    chains: BTreeMap<Table, BTreeMap<String, String>>,
}

/// In KUBE-POSTROUTING; kube-proxy's chain of that name says something else.
const OWN_COMMENT: &str = "\"kubernetes masquerade\"";

const BASES: [Base; 5] = [Base::Prerouting, Base::Input, Base::Forward, Base::Output, Base::Postrouting];

impl Observed {
    /// Out of what `iptables-save` prints. Other tables and others' chains are passed over.
    pub fn of(saved: &str) -> Observed {
        let mut observed = Observed::default();
        observed.read(saved.lines());
        observed
    }

    /// Adds what `iptables-save` prints.
    pub fn read<'a>(&mut self, lines: impl Iterator<Item = &'a str>) {
        let mut table = None;
        for line in lines {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name.trim());
            } else if let Some((name, _)) = line.strip_prefix(':').and_then(|chain| chain.split_once(' ')) {
                self.rules(table, name);
            } else if let Some((name, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
                && let Some(rules) = self.rules(table, name)
            {
                rules.push_str(rule);
                rules.push('\n');
            }
        }
    }

    fn rules(&mut self, table: Option<Table>, name: &str) -> Option<&mut String> {
        let counts = is_ours(name) || BASES.iter().any(|base| base.name() == name);
        let chains = self.chains.entry(table.filter(|_| counts)?).or_default();
        Some(chains.entry(name.to_owned()).or_default())
    }

    /// The rules of a chain, if it is there.
    pub fn chain(&self, table: Table, name: &str) -> Option<&str> {
        self.chains.get(&table)?.get(name).map(String::as_str)
    }

    /// The names of chains of ours.
    pub fn ours(&self, table: Table) -> impl Iterator<Item = &str> {
        let chains = self.chains.get(&table).into_iter().flatten();
        chains.map(|(name, _)| name.as_str()).filter(|name| is_ours(name))
    }

    /// The kernel's own chains that were listed.
    pub fn all_bases(&self, table: Table) -> impl Iterator<Item = Base> {
        BASES.into_iter().filter(move |base| self.chain(table, base.name()).is_some())
    }

    /// Whether anything of a Service proxy's is there.
    pub fn is_empty(&self) -> bool {
        Table::ALL.into_iter().all(|table| self.ours(table).next().is_none())
    }

    /// Whether a Service proxy that is not this program left it. Each table tells by itself: a process may have died after
    /// it wrote the first.
    pub fn is_foreign(&self) -> bool {
        let masquerade = self.chain(Table::Nat, &Chain::Postrouting.name()).unwrap_or_default();
        self.chain(Table::Nat, &Chain::Services.name()).is_some()
            && self.chain(Table::Filter, &Chain::ClusterIps.name()).is_none()
            && !masquerade.contains(OWN_COMMENT)
    }

    /// The lines that make the rules of ours in a chain of the kernel's own what is wanted: all together, in order, each
    /// once. None if they are. Rules of others keep their place; those of ours come before them.
    pub fn put_right(&self, table: Table, base: Base, wanted: &str) -> Vec<String> {
        let there = self.chain(table, base.name()).unwrap_or_default();
        let ours: Vec<&str> = there.lines().filter(|rule| leads_to_ours(rule)).collect();
        if ours.iter().map(|rule| canonical(rule)).eq(wanted.lines().map(canonical)) {
            return Vec::new();
        }
        let (name, wanted) = (base.name(), wanted.lines().rev());
        let deleted = ours.into_iter().map(|rule| format!("-D {name} {rule}"));
        deleted.chain(wanted.map(|rule| format!("-I {name} 1 {rule}"))).collect()
    }

    /// Where UDP frontends were, by the rules of nat.
    pub fn udp_frontends(&self) -> Vec<SocketAddr> {
        let mut node_port_addresses: Vec<IpAddr> = Vec::new();
        let mut frontends = Vec::new();
        let rules = |chain: Chain| self.chain(Table::Nat, &chain.name()).unwrap_or_default().lines();
        for rule in rules(Chain::Services) {
            let Some(address) = option(rule, "-d").and_then(|to| Some(to.parse::<IpNet>().ok()?.addr())) else {
                continue;
            };
            match udp_port(rule) {
                Some(port) => frontends.push(SocketAddr::new(address, port)),
                None if option(rule, "-j") == Some(&Chain::NodePorts.name()) => node_port_addresses.push(address),
                None => {}
            }
        }
        for port in rules(Chain::NodePorts).filter_map(udp_port) {
            frontends.extend(node_port_addresses.iter().map(|address| SocketAddr::new(*address, port)));
        }
        frontends
    }
}

/// A frontend's protocol and port, out of a rule that matches both.
pub(super) fn protocol_and_port(rule: &str) -> Option<(Protocol, NonZeroU16)> {
    let protocol = match option(rule, "-p")? {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return None,
    };
    Some((protocol, option(rule, "--dport")?.parse().ok()?))
}

fn udp_port(rule: &str) -> Option<u16> {
    option(rule, "-p").filter(|protocol| *protocol == "udp")?;
    option(rule, "--dport")?.parse().ok()
}

/// The word behind an option.
pub(super) fn option<'a>(rule: &'a str, name: &str) -> Option<&'a str> {
    let mut words = rule.split(' ');
    words.find(|word| *word == name)?;
    words.next()
}

fn leads_to_ours(rule: &str) -> bool {
    rule.rsplit_once("-j ").is_some_and(|(_, target)| is_ours(target.split(' ').next().unwrap_or_default()))
}

/// Whether two texts are the same rules.
pub fn same_rules(a: &str, b: &str) -> bool {
    a == b || (a.lines().count() == b.lines().count() && a.lines().zip(b.lines()).all(|(a, b)| same_rule(a, b)))
}

fn same_rule(a: &str, b: &str) -> bool {
    a == b || canonical(a) == canonical(b)
}

/// A rule's parts in an order of their own: versions of iptables differ in where they put what, and in how they write
/// addresses.
pub(super) fn canonical(rule: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut negated = false;
    for word in words(rule) {
        let begins = matches!(word.as_str(), "-s" | "-d" | "-p" | "-m" | "-j" | "-i" | "-o" | "-g");
        if word == "!" && parts.last().is_none_or(|part| !part.starts_with("-m")) {
            negated = true;
        } else if begins {
            parts.push(if negated { format!("! {word}") } else { word });
            negated = false;
        } else if let Some(part) = parts.last_mut() {
            part.push(' ');
            part.push_str(&same_address(word));
        } else {
            parts.push(word);
        }
    }
    parts.sort();
    parts
}

fn same_address(word: String) -> String {
    if let Ok(range) = word.parse::<IpNet>() {
        return range.to_string();
    }
    let address = word.parse::<IpAddr>().map(|address| IpNet::from(address).to_string());
    address.or_else(|_| word.parse::<SocketAddr>().map(|socket| socket.to_string())).unwrap_or(word)
}

/// Words as `iptables-save` writes them: quoted where a blank is inside.
pub(super) fn words(rule: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    let mut is_word = false;
    for c in rule.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => {
                quoted = !quoted;
                is_word = true;
            }
            ' ' if !quoted => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            _ => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

//! Pure. A packet as it was seen: the first packet of a flow at every interface that it passed, its answer, and the rules
//! that the kernel says it met.
//!
//! ```text
//! tcpdump at each place ─▶ lines ─▶ Sighting ─▶ of one flow, in order of time ─┐
//! nft monitor trace at each node ─▶ RuleSeen ─────────────────────────────────┼─▶ Measured ─┬─▶ text
//!                                                          Trace (computed) ──┴─────────────┴─▶ agrees?
//! ```
//!
//! Rewriting changes addresses and ports, but not the number of a connection's first byte, nor what a datagram carries: by
//! that the packet is known wherever it comes. An answer by UDP is what comes back where the request passed. All places are
//! network namespaces of one machine, so that their clocks are one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Protocol;

use super::kernel_trace::RuleSeen;
use super::{Header, Hop, Trace, WayTraced};

/// A packet at an interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sighting {
    /// Seconds since 1970.
    pub at_s: f64,
    /// Where: `node n1`, `pod client`.
    pub place: String,
    /// The interface.
    pub interface: String,
    /// Whether it comes in.
    pub comes_in: bool,
    /// Its addresses.
    pub header: Header,
    /// Whether it is the answer.
    pub is_reply: bool,
    #[serde(skip)]
    key: Key,
}

/// By what a packet is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Key {
    /// The number of the connection's first byte.
    FirstByte(u32),
    /// What the datagram carries, as hexadecimal digits.
    Payload(String),
    #[default]
    None,
}

/// A flow as it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// How the connection ended, in words.
    pub outcome: String,
    /// Where the request was seen, in order.
    pub request: Vec<Sighting>,
    /// Where the answer was.
    pub reply: Vec<Sighting>,
    /// The rules that the kernel says the request met, node by node.
    pub rules: Vec<RuleSeen>,
    /// Where it differs from what was computed; empty: it does not.
    pub disagreements: Vec<String>,
    /// What looking costs, if an answer came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// How long the connection or the answer took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Of the packet that was followed, in microseconds.
    pub watched_us: f64,
    /// Of those before, which nobody looked at: the middle one, in microseconds.
    pub unwatched_us: f64,
}

/// The first packets of connections and their answers, and datagrams with what they carry, of what
/// `tcpdump -i any -nn -tt -S -x` prints at a place.
pub fn sightings(place: &str, output: &str) -> Vec<Sighting> {
    let mut all: Vec<Option<Sighting>> = Vec::new();
    for line in output.lines() {
        match (line.strip_prefix('\t'), all.last_mut()) {
            (Some(hex), Some(Some(Sighting { key: Key::Payload(payload), .. }))) => {
                let digits = hex.split_once(':').map_or(hex, |(_, digits)| digits);
                payload.extend(digits.chars().filter(char::is_ascii_hexdigit));
            }
            (Some(_), _) => {}
            (None, _) => all.push(sighting(place, line)),
        }
    }
    all.into_iter().flatten().collect()
}

fn sighting(place: &str, line: &str) -> Option<Sighting> {
    let mut words = line.split_whitespace();
    let at_s = words.next()?.parse().ok()?;
    let interface = words.next()?.to_owned();
    let comes_in = match words.next()? {
        "In" => true,
        "Out" => false,
        _ => return None,
    };
    if !matches!(words.next()?, "IP" | "IP6") {
        return None;
    }
    let source = socket(words.next()?)?;
    words.next().filter(|arrow| *arrow == ">")?;
    let destination = socket(words.next()?.strip_suffix(':')?)?;
    let rest: Vec<&str> = words.collect();
    let (is_reply, key) =
        if rest.first() == Some(&"UDP,") { (false, Key::Payload(String::new())) } else { connection(&rest)? };
    Some(Sighting {
        at_s,
        place: place.to_owned(),
        interface,
        comes_in,
        header: Header { source, destination },
        is_reply,
        key,
    })
}

/// Of a TCP packet that begins a connection or answers to that.
fn connection(rest: &[&str]) -> Option<(bool, Key)> {
    let after = |word: &str| {
        let at = rest.iter().position(|one| *one == word)?;
        rest.get(at + 1)?.trim_end_matches(',').parse::<u32>().ok()
    };
    match rest.get(1)?.trim_end_matches(',') {
        "[S]" | "[SEW]" => Some((false, Key::FirstByte(after("seq")?))),
        // A refusal acknowledges the first byte as an acceptance does.
        "[S.]" | "[S.E]" | "[R.]" => Some((true, Key::FirstByte(after("ack")?.wrapping_sub(1)))),
        _ => None,
    }
}

/// `10.0.0.1.80`, `fd00::1.80`.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once('.')?;
    Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
}

/// What was done to measure, and what came of it.
#[derive(Debug, Clone)]
pub struct Attempt<'a> {
    /// The sender's place.
    pub from: &'a str,
    /// Its own socket, as far as it is known.
    pub client: SocketAddr,
    /// What a datagram carried; of TCP nothing.
    pub payload: &'a [u8],
    /// How it ended, in words.
    pub outcome: String,
}

/// The flow that was begun, out of all that was seen.
pub fn measured(all: Vec<Sighting>, rules: Vec<RuleSeen>, attempt: &Attempt<'_>, computed: &Trace) -> Measured {
    let mut all = all;
    all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let (request, reply) = match computed.protocol {
        Protocol::Udp => datagrams(&all, attempt),
        _ => of_connection(&all, attempt),
    };
    let outcome = attempt.outcome.clone();
    if request.is_empty() {
        let disagreements = vec!["the packet was seen nowhere".to_owned()];
        return Measured { outcome, request, reply, rules, disagreements, cost: None };
    }
    // One that was lost is sent again: the first time counts.
    let (request, reply) = (once(request), once(reply));
    let mut disagreements = disagreements(&request, &reply, attempt.client, computed);
    if disagreements.is_empty() {
        disagreements = rules_differ(&request, &rules, computed);
    }
    Measured { outcome, request, reply, rules, disagreements, cost: None }
}

/// The nodes that the packet or its answer passes by the way that it took, and where it was not seen yet: each place tells in
/// its own time what it saw.
pub fn unseen<'a>(found: &Measured, computed: &'a Trace) -> BTreeSet<&'a str> {
    let Some(way) = way_taken(&found.request, computed) else { return BTreeSet::new() };
    let missing = |hops: &'a [Hop], seen: &[Sighting]| -> BTreeSet<&'a str> {
        let nodes = hops.iter().filter_map(|hop| hop.node.as_deref());
        let is_seen = |node: &&str| seen.iter().any(|one| one.place.strip_prefix("node ") == Some(node));
        nodes.filter(|node| !is_seen(node)).collect()
    };
    &missing(&way.forward, &found.request) | &missing(&way.reply, &found.reply)
}

fn of_connection(all: &[Sighting], attempt: &Attempt<'_>) -> (Vec<Sighting>, Vec<Sighting>) {
    let is_first = |seen: &&Sighting| {
        !seen.is_reply && seen.place == attempt.from && seen.header.source.port() == attempt.client.port()
    };
    let Some(first) = all.iter().find(is_first) else { return Default::default() };
    let (reply, request) = all.iter().filter(|seen| seen.key == first.key).cloned().partition(|seen| seen.is_reply);
    (request, reply)
}

/// What carries the payload is the request; what comes back at a place where that passed is its answer.
fn datagrams(all: &[Sighting], attempt: &Attempt<'_>) -> (Vec<Sighting>, Vec<Sighting>) {
    let mut wanted = String::new();
    for byte in attempt.payload {
        let _ = write!(wanted, "{byte:02x}");
    }
    let (mut request, mut reply): (Vec<Sighting>, Vec<Sighting>) = Default::default();
    for seen in all {
        let Key::Payload(carries) = &seen.key else { continue };
        let back = Header { source: seen.header.destination, destination: seen.header.source };
        if request.iter().any(|passed| passed.place == seen.place && passed.header == back) {
            reply.push(Sighting { is_reply: true, ..seen.clone() });
        } else if carries.contains(&wanted) {
            request.push(seen.clone());
        }
    }
    (request, reply)
}

fn once(all: Vec<Sighting>) -> Vec<Sighting> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|one| seen.insert((one.place.clone(), one.interface.clone(), one.comes_in))).collect()
}

/// The addresses in order, each change once. Ports of sources are left out: a computed one is a guess, and masquerading may
/// choose another.
fn changes(headers: impl Iterator<Item = Header>, is_reply: bool) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for header in headers {
        let one = if is_reply {
            (header.source.to_string(), header.destination.ip().to_string())
        } else {
            (header.source.ip().to_string(), header.destination.to_string())
        };
        if all.last() != Some(&one) {
            all.push(one);
        }
    }
    all
}

/// The packet as it is where it can be seen: what happens between two interfaces of one node shows as one change. What a
/// process asked for before its socket was given another destination was never on a wire.
fn on_wire(hops: &[Hop]) -> Vec<Header> {
    let socket = hops.iter().position(|hop| hop.place == "socket" && hop.changed().1).map_or(0, |at| at + 1);
    let is_seen = |hop: &&Hop| hop.place.starts_with("wire") || hop.place.starts_with("pod ") || hop.place == "outside";
    hops[socket..].iter().filter(is_seen).map(|hop| hop.after).collect()
}

/// The computed way that the packet took.
fn way_taken<'a>(request: &[Sighting], computed: &'a Trace) -> Option<&'a WayTraced> {
    let seen = changes(request.iter().map(|one| one.header), false);
    computed.ways.iter().find(|way| changes(on_wire(&way.forward).into_iter(), false) == seen)
}

/// Where the kernel says that a rule rewrote the packet, and the computed way knows of none there, or the reverse.
fn rules_differ(request: &[Sighting], rules: &[RuleSeen], computed: &Trace) -> Vec<String> {
    let mut found = Vec::new();
    let Some(way) = way_taken(request, computed) else { return found };
    let nodes: BTreeSet<&str> = way.forward.iter().filter_map(|hop| hop.node.as_deref()).collect();
    for node in nodes {
        let hop = way.forward.iter().find(|hop| {
            hop.node.as_deref() == Some(node)
                && matches!(&*hop.place, "hook prerouting" | "hook output")
                && hop.changed().1
        });
        let seen = rules.iter().find(|rule| rule.node == node && rule.rewrites());
        match (hop, seen) {
            (Some(hop), Some(rule)) if !hop.rules.iter().any(|told| told.contains(rule.chain())) => {
                let told = hop.rules.join(", ");
                found.push(format!("node {node} rewrote it in {}, and computed is {told}", rule.place));
            }
            (Some(_), None) => {
                found.push(format!("no rule of node {node} was seen to rewrite it, and one was computed"))
            }
            (None, Some(rule)) => {
                found.push(format!("node {node} rewrote it in {}, which was not computed", rule.place))
            }
            _ => {}
        }
    }
    found
}

fn disagreements(request: &[Sighting], reply: &[Sighting], client: SocketAddr, computed: &Trace) -> Vec<String> {
    let mut found = Vec::new();
    let seen = changes(request.iter().map(|one| one.header), false);
    match way_taken(request, computed) {
        None => {
            let wanted: Vec<String> =
                computed.ways.iter().map(|way| said(&changes(on_wire(&way.forward).into_iter(), false))).collect();
            found.push(format!("the request was seen as {}, and computed as {}", said(&seen), wanted.join(" or ")));
        }
        Some(way) => {
            let back = changes(reply.iter().map(|one| one.header), true);
            let wanted = changes(on_wire(&way.reply).into_iter(), true);
            let refused = !way.answers;
            if !refused && back != wanted {
                found.push(format!("the answer was seen as {}, and computed as {}", said(&back), said(&wanted)));
            }
        }
    }
    if request.first().is_some_and(|first| first.header.source.ip() != client.ip()) {
        found.push(format!("the request left with another source than {}", client.ip()));
    }
    found
}

fn said(changes: &[(String, String)]) -> String {
    if changes.is_empty() {
        return "nothing".to_owned();
    }
    changes.iter().map(|(from, to)| format!("{from} -> {to}")).collect::<Vec<_>>().join(", then ")
}

/// As text, to stand below a computed trace.
pub fn text(measured: &Measured) -> String {
    let cost = measured.cost.map_or(String::new(), |cost| {
        let ms = cost.unwatched_us / 1e3;
        format!("; {ms:.2} ms while nobody looks: looking costs {:.0} us", cost.watched_us - cost.unwatched_us)
    });
    let mut out = format!("measured: {}{cost}\n", measured.outcome);
    let all = || measured.request.iter().chain(&measured.reply);
    let width = all().map(|seen| seen.place.chars().count()).max().unwrap_or(0);
    let device = all().map(|seen| seen.interface.chars().count()).max().unwrap_or(0);
    let mut last = measured.request.first().map_or(0.0, |first| first.at_s);
    for (title, list) in [("request", &measured.request), ("answer", &measured.reply)] {
        if !list.is_empty() {
            let _ = writeln!(out, "{title}");
        }
        for seen in list {
            let direction = if seen.comes_in { "in " } else { "out" };
            let took_us = (seen.at_s - last) * 1e6;
            let _ = writeln!(
                out,
                "  {:<width$}  {:<device$} {direction}  {} -> {}  +{took_us:.0} us",
                seen.place, seen.interface, seen.header.source, seen.header.destination
            );
            last = seen.at_s;
        }
    }
    if !measured.rules.is_empty() {
        out.push_str("rules, as the kernel tells\n");
    }
    for rule in &measured.rules {
        let _ = writeln!(out, "  node {}  {}  {}  ({})", rule.node, rule.place, rule.text, rule.verdict);
    }
    if measured.disagreements.is_empty() {
        out.push_str("√ measured and computed agree\n");
    }
    for disagreement in &measured.disagreements {
        let _ = writeln!(out, "× measured and computed disagree: {disagreement}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "1764511111.100000 eth0  Out IP 10.244.2.3.41234 > 10.96.0.10.80: Flags [S], seq 4294967295, win 64240, options [mss 1460], length 0\n\
        1764511111.100900 eth0  In  IP 10.96.0.10.80 > 10.244.2.3.41234: Flags [S.], seq 77, ack 0, win 65160, length 0\n\
        listening on any\n";
    const NODE: &str = "1764511111.100100 veth2 In  IP 10.244.2.3.41234 > 10.96.0.10.80: Flags [S], seq 4294967295, win 1, length 0\n\
        1764511111.100200 eth0  Out IP 10.244.2.3.41234 > 10.244.1.2.8080: Flags [S], seq 4294967295, win 1, length 0\n\
        1764511111.100300 eth0  Out IP 10.244.2.3.50000 > 10.244.1.2.8080: Flags [S], seq 5, win 1, length 0\n\
        1764511111.100700 eth0  In  IP 10.244.1.2.8080 > 10.244.2.3.41234: Flags [S.], seq 77, ack 0, win 1, length 0\n";

    #[test]
    fn a_connection_is_followed_through_its_rewriting() {
        let all = [sightings("pod client", CLIENT), sightings("node n2", NODE)].concat();
        assert_eq!(all.len(), 6);
        let computed: Trace = serde_json::from_value(serde_json::json!({
            "apiVersion": "signpost.io/v1", "kind": "Trace", "from": "client", "to": "10.96.0.10:80",
            "packet": {"source": "10.244.2.3:40000", "destination": "10.96.0.10:80"}, "protocol": "TCP", "family": "ipv4",
            "frontend": null, "vanishesAt": null, "backends": [], "outcome": "", "reached": true, "ways": [],
            "assumptions": [],
        }))
        .unwrap();
        let attempt = Attempt {
            from: "pod client",
            client: "10.244.2.3:41234".parse().unwrap(),
            payload: &[],
            outcome: "connected".to_owned(),
        };
        let found = measured(all, Vec::new(), &attempt, &computed);
        assert_eq!((found.request.len(), found.reply.len()), (3, 2));
        assert_eq!(found.request[2].header.destination, "10.244.1.2:8080".parse().unwrap());
        // Nothing was computed, so that they disagree, and both are told.
        assert!(found.disagreements[0].contains("10.244.2.3 -> 10.96.0.10:80, then 10.244.2.3 -> 10.244.1.2:8080"));
        assert!(text(&found).contains("+100 us"));
        let cost = Some(Cost { watched_us: 410.0, unwatched_us: 120.0 });
        let told = text(&Measured { cost, ..found });
        assert!(told.starts_with("measured: connected; 0.12 ms while nobody looks: looking costs 290 us\n"), "{told}");
    }

    #[test]
    fn a_node_on_the_way_that_told_nothing_yet_is_waited_for() {
        let hop = |node: Option<&str>, place: &str, destination: &str| {
            let header = serde_json::json!({"source": "10.244.2.3:40000", "destination": destination});
            serde_json::json!({
                "number": 1, "node": node, "place": place, "action": "", "before": header, "after": header, "rules": [],
                "evidence": "computed",
            })
        };
        let forward = [
            hop(Some("n2"), "pod client", "10.96.0.10:80"),
            hop(None, "wire n2 to n1", "10.244.1.2:8080"),
            hop(Some("n1"), "pod web", "10.244.1.2:8080"),
        ];
        let way = serde_json::json!({"fate": "", "share": 1.0, "answers": true, "forward": forward, "reply": []});
        let computed: Trace = serde_json::from_value(serde_json::json!({
            "apiVersion": "signpost.io/v1", "kind": "Trace", "from": "client", "to": "10.96.0.10:80",
            "packet": {"source": "10.244.2.3:40000", "destination": "10.96.0.10:80"}, "protocol": "TCP", "family": "ipv4",
            "frontend": null, "vanishesAt": null, "backends": [], "outcome": "", "reached": true, "ways": [way],
            "assumptions": [],
        }))
        .unwrap();
        let mut found = Measured {
            outcome: String::new(),
            request: [sightings("pod client", CLIENT), sightings("pod web", &NODE.replace("Out", "In "))].concat(),
            reply: Vec::new(),
            rules: Vec::new(),
            disagreements: Vec::new(),
            cost: None,
        };
        found.request.retain(|seen| !seen.is_reply && seen.key == Key::FirstByte(u32::MAX));
        assert_eq!(unseen(&found, &computed), BTreeSet::from(["n1", "n2"]));
        let by_node = sightings("node n2", NODE).into_iter().filter(|seen| !seen.is_reply);
        found.request.extend(by_node.take(1));
        found.request.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        assert_eq!(unseen(&found, &computed), BTreeSet::from(["n1"]));
    }

    #[test]
    fn a_datagram_is_known_by_what_it_carries_and_its_answer_by_where_it_comes_back() {
        let client = "1.0 eth0 Out IP 10.244.2.3.4000 > 10.96.0.10.53: UDP, length 4\n\t0x0000:  4500 0020 6162\n\t0x0010:  6364\n\
            1.1 eth0 Out IP 10.244.2.3.4001 > 10.96.0.10.53: UDP, length 4\n\t0x0000:  4500 0020 7777\n\
            1.4 eth0 In IP 10.96.0.10.53 > 10.244.2.3.4000: UDP, length 4\n\t0x0000:  4500 0020 6162 6364\n";
        let pod = "1.2 eth0 In IP 10.244.2.3.4000 > 10.244.1.2.5353: UDP, length 4\n\t0x0000:  4500 0020 6162 6364\n\
            1.3 eth0 Out IP 10.244.1.2.5353 > 10.244.2.3.4000: UDP, length 4\n\t0x0000:  4500 0020 6f6b\n";
        let all = [sightings("pod client", client), sightings("pod dns", pod)].concat();
        let attempt = Attempt {
            from: "pod client",
            client: "10.244.2.3:4000".parse().unwrap(),
            payload: b"abcd",
            outcome: String::new(),
        };
        let (request, reply) = datagrams(&all, &attempt);
        let at = |all: &[Sighting]| all.iter().map(|seen| seen.place.clone()).collect::<Vec<_>>();
        assert_eq!((at(&request), at(&reply).len()), (vec!["pod client".to_owned(), "pod dns".to_owned()], 2));
    }

    #[test]
    fn ipv6_and_refusals_are_read_and_garbage_is_not() {
        let line = "1.5 eth0 In IP6 fd00::1.80 > fd00::2.41234: Flags [R.], seq 0, ack 6, win 0, length 0\n";
        let found = sightings("node n1", line);
        assert!(found[0].is_reply && found[0].key == Key::FirstByte(5));
        assert!(sightings("x", "a b c\n1.5 eth0 In IP 1.2.3.4 > 1.2.3.5: ICMP echo\n\n1.5 eth0 P IP\n").is_empty());
    }
}

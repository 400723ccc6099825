//! Pure. A packet as it was seen: the first packet of a TCP connection at every interface that it passed, and its answer.
//!
//! ```text
//! tcpdump at each place ─▶ lines ─▶ Sighting ─▶ of one connection, in order of time ─▶ Measured ─┬─▶ text
//!                                                          Trace (computed) ──────────────────────┴─▶ agrees?
//! ```
//!
//! Rewriting changes addresses and ports, but not the number of the connection's first byte: by that the packet is known
//! wherever it comes. All places are network namespaces of one machine, so that their clocks are one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Header, Trace};

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
    first_byte: u32,
}

/// A connection as it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// How the connection ended, in words.
    pub outcome: String,
    /// Where the request was seen, in order.
    pub request: Vec<Sighting>,
    /// Where the answer was.
    pub reply: Vec<Sighting>,
    /// Where it differs from what was computed; empty: it does not.
    pub disagreements: Vec<String>,
}

/// The first packets of connections and their answers, of what `tcpdump -i any -nn -tt -S` prints at a place.
pub fn sightings(place: &str, output: &str) -> Vec<Sighting> {
    output.lines().filter_map(|line| sighting(place, line)).collect()
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
    let after = |word: &str| {
        let at = rest.iter().position(|one| *one == word)?;
        rest.get(at + 1)?.trim_end_matches(',').parse::<u32>().ok()
    };
    let flags = rest.get(1)?.trim_end_matches(',');
    let (is_reply, first_byte) = match flags {
        "[S]" | "[SEW]" => (false, after("seq")?),
        // A refusal acknowledges the first byte as an acceptance does.
        "[S.]" | "[S.E]" | "[R.]" => (true, after("ack")?.wrapping_sub(1)),
        _ => return None,
    };
    Some(Sighting {
        at_s,
        place: place.to_owned(),
        interface,
        comes_in,
        header: Header { source, destination },
        is_reply,
        first_byte,
    })
}

/// `10.0.0.1.80`, `fd00::1.80`.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once('.')?;
    Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
}

/// The connection that a client began from a port, out of all that was seen.
pub fn measured(all: Vec<Sighting>, from: &str, client: SocketAddr, outcome: String, computed: &Trace) -> Measured {
    let first =
        all.iter().find(|seen| !seen.is_reply && seen.place == from && seen.header.source.port() == client.port());
    let Some(number) = first.map(|first| first.first_byte) else {
        let disagreements = vec!["the packet was seen nowhere".to_owned()];
        return Measured { outcome, request: Vec::new(), reply: Vec::new(), disagreements };
    };
    let mut own: Vec<Sighting> = all.into_iter().filter(|seen| seen.first_byte == number).collect();
    own.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let (reply, request): (Vec<Sighting>, Vec<Sighting>) = own.into_iter().partition(|seen| seen.is_reply);
    // One that was lost is sent again: the first time counts.
    let request = once(request);
    let reply = once(reply);
    let disagreements = disagreements(&request, &reply, client, computed);
    Measured { outcome, request, reply, disagreements }
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

fn disagreements(request: &[Sighting], reply: &[Sighting], client: SocketAddr, computed: &Trace) -> Vec<String> {
    let mut found = Vec::new();
    let seen = changes(request.iter().map(|one| one.header), false);
    // What happens between two interfaces of one node shows as one change: only what is on a wire can be compared.
    let wire = |hops: &[super::Hop]| -> Vec<Header> {
        let on_wire = |hop: &&super::Hop| {
            hop.place.starts_with("wire") || hop.place.starts_with("pod ") || hop.place == "outside"
        };
        hops.iter().filter(on_wire).map(|hop| hop.after).collect()
    };
    let same_way = computed.ways.iter().find(|way| changes(wire(&way.forward).into_iter(), false) == seen);
    match same_way {
        None => {
            let wanted: Vec<String> =
                computed.ways.iter().map(|way| said(&changes(wire(&way.forward).into_iter(), false))).collect();
            found.push(format!("the request was seen as {}, and computed as {}", said(&seen), wanted.join(" or ")));
        }
        Some(way) => {
            let back = changes(reply.iter().map(|one| one.header), true);
            let wanted = changes(wire(&way.reply).into_iter(), true);
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
    let mut out = format!("measured: {}\n", measured.outcome);
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
        let found = measured(all, "pod client", "10.244.2.3:41234".parse().unwrap(), "connected".to_owned(), &computed);
        assert_eq!((found.request.len(), found.reply.len()), (3, 2));
        assert_eq!(found.request[2].header.destination, "10.244.1.2:8080".parse().unwrap());
        // Nothing was computed, so that they disagree, and both are told.
        assert!(found.disagreements[0].contains("10.244.2.3 -> 10.96.0.10:80, then 10.244.2.3 -> 10.244.1.2:8080"));
        assert!(text(&found).contains("+100 us"));
    }

    #[test]
    fn ipv6_and_refusals_are_read_and_garbage_is_not() {
        let line = "1.5 eth0 In IP6 fd00::1.80 > fd00::2.41234: Flags [R.], seq 0, ack 6, win 0, length 0\n";
        let found = sightings("node n1", line);
        assert!(found[0].is_reply && found[0].first_byte == 5);
        assert!(sightings("x", "a b c\n1.5 eth0 In IP 1.2.3.4 > 1.2.3.5: ICMP echo\n\n1.5 eth0 P IP\n").is_empty());
    }
}

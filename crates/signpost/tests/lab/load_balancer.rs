//! A load balancer on bare metal, walked through as a lesson does it: a pool, an advertisement, and every command by which a
//! person finds out which node has the address.

use std::time::{Duration, Instant};

use crate::person::{Name, well};

/// The pool and advertisement of the lesson; a lab of IPv6 takes another range.
const LESSON: &str = "\
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata:
  name: default
  namespace: metallb-system
spec:
  addresses:
    - RANGE
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata:
  name: default
  namespace: metallb-system
spec:
  ipAddressPools:
    - default
";

/// A lab with two pods behind a Service `web`; its addresses.
fn announced(name: &Name, how: &str, families: &str) -> Vec<String> {
    well(name.lab(&["up", "--nodes", "2", "--lb", how, "--families", families]));
    if how == "l2" {
        let range =
            if families == "ipv4" { "172.18.15.200-172.18.15.210" } else { "fd00:172:18::15:200-fd00:172:18::15:210" };
        name.kubectl_with(&["apply", "-f", "-"], &LESSON.replace("RANGE", range));
    }
    name.kubectl(&["create", "deployment", "web", "--image=signpost/echo", "--replicas=2"]);
    name.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080", "--type=LoadBalancer"]);
    if families == "dual" {
        let both = r#"{"spec":{"ipFamilyPolicy":"PreferDualStack"}}"#;
        name.kubectl(&["patch", "service", "web", "-p", both]);
    }
    let wanted = if families == "dual" { 2 } else { 1 };
    let mut addresses = Vec::new();
    until("the Service has its addresses", || {
        let text = name.kubectl(&["get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"]);
        addresses = text.split_whitespace().map(str::to_owned).collect();
        addresses.len() == wanted
    });
    addresses
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn reached(name: &Name, address: &str) {
    let url = if address.contains(':') { format!("http://[{address}]/") } else { format!("http://{address}/") };
    until("the client outside is answered", || {
        let answer = name.lab(&["exec", "outside", "--", "curl", "-gsm", "3", &url]);
        String::from_utf8_lossy(&answer.stdout).contains("\"pod\":\"web-")
    });
}

/// The lines of a text with this in them.
fn grep(text: &str, what: &str) -> Vec<String> {
    let what = what.to_lowercase();
    text.lines().filter(|line| line.to_lowercase().contains(&what)).map(str::to_owned).collect()
}

#[test]
fn three_ways_tell_which_node_has_an_address_of_l2() {
    for families in ["ipv4", "ipv6"] {
        let name = Name::new(&format!("l2-{families}"));
        let address = &announced(&name, "l2", families)[0];
        reached(&name, address);
        // By the object.
        let mut node = String::new();
        until("the status names the node", || {
            let table = name.kubectl(&["get", "servicel2statuses.metallb.io", "-n", "metallb-system"]);
            node = grep(&table, " web ")
                .first()
                .and_then(|line| line.split_whitespace().nth(1))
                .unwrap_or_default()
                .to_owned();
            !node.is_empty()
        });
        // By the speaker's log.
        for other in ["n1", "n2"] {
            let log = name.kubectl(&["logs", "-n", "metallb-system", &format!("speaker-{other}")]);
            let lines: Vec<String> =
                grep(&log, "serviceAnnounced").into_iter().filter(|line| line.contains(address.as_str())).collect();
            assert_eq!(!lines.is_empty(), other == node, "{other}: {lines:?}");
        }
        // By the neighbour's Ethernet address.
        let mac = if families == "ipv4" {
            let asked = well(name.lab(&["exec", "router", "--", "arping", "-c", "1", address]));
            let answer = grep(&asked, "reply from").remove(0);
            answer[answer.find('[').unwrap() + 1..answer.find(']').unwrap()].to_owned()
        } else {
            let neighbours = well(name.lab(&["exec", "router", "--", "ip", "-6", "neigh"]));
            let line = grep(&neighbours, address).remove(0);
            line.split("lladdr ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
        };
        let neighbours = if families == "ipv4" {
            well(name.lab(&["exec", "router", "--", "arp", "-n"]))
        } else {
            well(name.lab(&["exec", "router", "--", "ip", "-6", "neigh"]))
        };
        let own = name.kubectl(&["get", "node", &node, "-o", "jsonpath={.status.addresses[0].address}"]);
        let found = grep(&neighbours, &mac);
        assert!(found.iter().any(|line| line.starts_with(&format!("{own} "))), "{mac} {own} {neighbours}");
    }
}

#[test]
fn a_router_shows_a_next_hop_per_node_by_bgp() {
    let name = Name::new("bgp");
    let addresses = announced(&name, "bgp", "dual");
    for address in &addresses {
        reached(&name, address);
        let (prefix, hops): (String, [&str; 2]) = if address.contains(':') {
            (format!("{address}/128"), ["fd00:172:18::11", "fd00:172:18::12"])
        } else {
            (format!("{address}/32"), ["172.18.0.11", "172.18.0.12"])
        };
        let mut shown = String::new();
        until("BIRD has both routes", || {
            shown = well(name.lab(&["exec", "router", "--", "birdc", "show", "route", &prefix]));
            hops.iter().all(|hop| shown.contains(&format!("via {hop} on nodes")))
        });
        assert!(shown.contains("AS64512"), "{shown}");
        until("the router's kernel shares packets out", || {
            let route = well(name.lab(&["exec", "router", "--", "ip", "route", "get", address]));
            let all = well(name.lab(&[
                "exec",
                "router",
                "--",
                "ip",
                if address.contains(':') { "-6" } else { "-4" },
                "route",
                "show",
                address,
            ]));
            hops.iter().all(|hop| all.contains(&format!("via {hop} "))) && route.contains("via ")
        });
    }
    for node in ["n1", "n2"] {
        let log = name.kubectl(&["logs", "-n", "metallb-system", &format!("speaker-{node}")]);
        let lines = grep(&log, "serviceAnnounced");
        assert!(
            lines.iter().any(|line| line.contains("protocol=\"bgp\"") && line.contains(&addresses[0])),
            "{node}: {lines:?}"
        );
    }
    let table = name.kubectl(&["get", "servicebgpstatuses.metallb.io", "-n", "metallb-system"]);
    assert_eq!(grep(&table, " web ").len(), 2, "{table}");
    let sessions = name.kubectl(&["get", "bgpsessionstates.frrk8s.metallb.io", "-n", "metallb-system"]);
    assert_eq!(grep(&sessions, "Established").len(), 2, "{sessions}");
}

//! Sessions with routers that others wrote: BIRD, GoBGP, FRR, ExaBGP. Each runs in a network namespace of its own beside the
//! node's; a program that is missing fails its test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod frr;
mod hops;
mod network;
mod trouble;

use std::time::{Duration, Instant};

use network::{Network, Side};

const BIRD: &str = "
log stderr all;
router id 10.9.0.1;
protocol device {}
";

/// BIRD's side of one session; `more` goes into it.
fn bird(more: &str) -> String {
    format!(
        "{BIRD}protocol bgp node {{ local 10.9.0.1 as 64513; neighbor 10.9.0.2 as 64512; connect delay time 1; \
         error wait time 1, 2; {more} ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n"
    )
}

#[test]
fn bird_learns_routes_over_a_session_that_is_signed_and_that_both_sides_begin() {
    Network::new().with_node(async |network| {
        // Not passive: both connect, and one of two connections stays.
        let bird = network.bird(&bird("password \"secret\";"));
        let mut node = network.node();
        node.options.password = Some("secret".to_owned());
        let session = node.start();
        session.established().await;
        bird.says(&["show", "route", "all"], &["203.0.113.200/32", "2001:db8:113::200/128", "(64512,7)"]).await;
        // Whoever lost the decision about two connections does not try again and break the one that stands.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(session.state(), "Established");
    });
}

#[test]
fn bird_that_never_connects_and_bird_that_only_connects_are_both_peers() {
    for more in ["passive on;", ""] {
        Network::new().with_node(async |network| {
            let bird = network.bird(&bird(more));
            let mut node = network.node();
            // Where nobody listens: the session can come about by the router's connection alone.
            if more.is_empty() {
                node.options.address.set_port(1);
            }
            let session = node.start();
            session.established().await;
            bird.says(&["show", "route"], &["203.0.113.200/32", "2001:db8:113::200/128"]).await;
            session.end().await;
            bird.says_no_more(&["show", "route"], "203.0.113.200/32").await;
        });
    }
}

#[test]
fn bird_keeps_the_routes_of_a_node_that_restarts_gracefully() {
    Network::new().with_node(async |network| {
        let bird = network.bird(&bird("passive on; graceful restart on;"));
        let mut node = network.node();
        node.options.graceful_restart = true;
        let session = node.start();
        session.established().await;
        bird.says(&["show", "route"], &["203.0.113.200/32"]).await;
        session.end().await;
        // The router has seen the end of the session, and still has the route.
        bird.says(&["show", "protocols"], &["node"]).await;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            assert!(bird.ask(&["show", "route"]).contains("203.0.113.200/32"), "the route went");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut node = network.node();
        node.options.graceful_restart = true;
        let session = node.start();
        session.established().await;
        bird.says(&["show", "route"], &["203.0.113.200/32"]).await;
    });
}

#[test]
fn gobgp_learns_routes_of_both_families() {
    Network::new().with_node(async |network| {
        let config = "
[global.config]
  as = 64513
  router-id = \"10.9.0.1\"
[[neighbors]]
  [neighbors.config]
    neighbor-address = \"10.9.0.2\"
    peer-as = 64512
  [neighbors.transport.config]
    passive-mode = true
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv4-unicast\"
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv6-unicast\"
";
        let path = network.file("gobgp.toml", config);
        let _gobgp = network.start(Side::Router, network::tool("gobgpd"), &["-t", "toml", "-f", &path]);
        let session = network.node().start();
        session.established().await;
        for (family, prefix) in [("ipv4", "203.0.113.200/32"), ("ipv6", "2001:db8:113::200/128")] {
            let ask = || network.ask(Side::Router, network::tool("gobgp"), &["global", "rib", "-a", family]);
            network::until(&format!("GoBGP has {prefix}"), || ask().contains(prefix)).await;
        }
        let ask = || network.ask(Side::Router, network::tool("gobgp"), &["global", "rib", "-j"]);
        network::until("GoBGP has the community", || ask().contains(&(64512_u32 << 16 | 7).to_string())).await;
    });
}

#[test]
fn exabgp_decodes_what_it_is_told() {
    Network::new().with_node(async |network| {
        let heard = network.path("heard");
        // Its output stays open: a helper that closes it counts as dead.
        let script = network.file("hear", &format!("#!/bin/sh\ncat > {heard}\n"));
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let config = format!(
            "process hear {{ run {script}; encoder json; }}
neighbor 10.9.0.2 {{
  router-id 10.9.0.1; local-address 10.9.0.1; local-as 64513; peer-as 64512; passive;
  family {{ ipv4 unicast; ipv6 unicast; }}
  api {{ processes [ hear ]; neighbor-changes; receive {{ parsed; update; }} }}
}}
"
        );
        let path = network.file("exabgp.conf", &config);
        let python = network::tools().join("exabgp");
        let settings = [
            "exabgp.daemon.user=root".to_owned(),
            "exabgp.tcp.bind=10.9.0.1".to_owned(),
            "exabgp.tcp.port=179".to_owned(),
            "exabgp.api.cli=false".to_owned(),
            "PYTHONDONTWRITEBYTECODE=1".to_owned(),
            format!("PYTHONPATH={}", python.display()),
        ];
        assert!(python.join("exabgp/__main__.py").exists(), "ExaBGP is missing: tools/setup.sh brings it");
        let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
        arguments.extend(["python3", "-m", "exabgp", &path]);
        let _exabgp = network.start(Side::Router, "env".into(), &arguments);
        let session = network.node().start();
        session.established().await;
        let wanted = [
            "203.0.113.200/32",
            "2001:db8:113::200/128",
            "\"community\": [ [ 64512, 7 ] ]",
            "\"as-path\": [ 64512 ]",
            "\"10.9.0.2\": [",
            "\"fd09::2\": [",
        ];
        let text = || std::fs::read_to_string(&heard).unwrap_or_default();
        network::until("ExaBGP has heard it all", || wanted.iter().all(|part| text().contains(part))).await;
        session.end().await;
        network::until("ExaBGP has heard of the end", || text().contains("\"state\": \"down\"")).await;
    });
}

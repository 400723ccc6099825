use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::config::{Pattern, Policy, ServerBlock, Upstream};
use crate::zone::PodNames;

fn parse(text: &str) -> Result<Config, CorefileError> {
    read(text, |name| (name == "UPSTREAM").then(|| "192.0.2.7".to_owned()))
}

fn one(plugins: &str) -> ServerBlock {
    let mut config = parse(&format!(".:53 {{\n{plugins}\n}}\n")).unwrap_or_else(|error| panic!("{error}"));
    config.servers.remove(0)
}

fn names(names: &[hickory_proto::rr::Name]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn a_nodes_cache_takes_ports_that_are_free_on_a_node() {
    let config = read(&node_cache_text("cluster.local"), |_| None).unwrap();
    let [server] = &config.servers[..] else { panic!("one block") };
    assert_eq!(server.health.unwrap().address, "127.0.0.1:9254".parse().unwrap());
    assert_eq!(server.ready.unwrap().address, "127.0.0.1:9255".parse().unwrap());
    assert_eq!(server.prometheus.unwrap().port(), 9253);
}

#[test]
fn the_file_that_kubeadm_writes_is_read() {
    let config = parse(
        ".:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
",
    )
    .unwrap();
    let server = &config.servers[0];
    let kubernetes = server.kubernetes.as_ref().unwrap();
    assert_eq!(names(&kubernetes.settings.zones), ["cluster.local.", "in-addr.arpa.", "ip6.arpa."]);
    assert_eq!((kubernetes.settings.pods, kubernetes.settings.ttl_s), (PodNames::Insecure, 30));
    assert_eq!(names(&kubernetes.falls_through), ["in-addr.arpa.", "ip6.arpa."]);
    assert_eq!(server.forwards[0].to, [Upstream::ResolvConf(PathBuf::from("/etc/resolv.conf"))]);
    assert_eq!(server.forwards[0].max_concurrent, 1000);
    assert_eq!(server.health.unwrap().lameduck, Duration::from_secs(5));
    assert_eq!(server.prometheus, Some("[::]:9153".parse().unwrap()));
    assert_eq!(server.cache.as_ref().unwrap().success.most_ttl, Duration::from_secs(30));
    assert!(server.errors && server.detect_loops && server.loadbalance && server.reload.is_some());
    assert_eq!(parse(&default_text("cluster.local")).unwrap().servers.len(), 1);
}

#[test]
fn stub_domains_hosts_rewrites_and_the_node_caches_file_are_read() {
    let config = parse(
        "cluster.local:53 { # the cluster
    errors
    cache {
        success 9984 30
        denial 9984 5
        serve_stale 1h verify
    }
    reload
    loop
    bind 169.254.20.10 10.96.0.10
    forward . 10.96.0.11 {
        force_tcp
        policy sequential
    }
    prometheus :9253
    health 169.254.20.10:8080
}
example.org, example.net:1053 {
    hosts {
        192.0.2.1 one.example.org two.example.org
        fallthrough
    }
    rewrite stop name suffix .example.net. .example.org. answer auto
    rewrite name old.example.org new.example.org
    forward example.org {$UPSTREAM}:5353 [2001:db8::1]:53 dns://2001:db8::2
}
10.0.0.0/8 {
    forward . 192.0.2.1
}
",
    )
    .unwrap();
    let [node, stub, reverse] = &config.servers[..] else { panic!("{config:?}") };
    assert_eq!(node.bind, ["169.254.20.10".parse::<std::net::IpAddr>().unwrap(), "10.96.0.10".parse().unwrap()]);
    assert!(node.forwards[0].force_tcp && node.forwards[0].policy == Policy::Sequential);
    assert!(node.cache.as_ref().unwrap().serve_stale.unwrap().verify);
    assert_eq!((names(&stub.zones), stub.port), (vec!["example.org.".into(), "example.net.".into()], Some(1053)));
    assert_eq!(stub.hosts.as_ref().unwrap().inline, ["192.0.2.1 one.example.org two.example.org"]);
    assert_eq!(stub.rewrites.len(), 2);
    assert!(matches!(&stub.rewrites[0].from, Pattern::Suffix(name) if name.to_string() == "example.net."));
    let to =
        ["192.0.2.7:5353", "[2001:db8::1]:53", "[2001:db8::2]:53"].map(|to| Upstream::Address(to.parse().unwrap()));
    assert_eq!(stub.forwards[0].to, to);
    assert_eq!(names(&reverse.zones), ["10.in-addr.arpa."]);
}

#[test]
fn the_forward_with_the_longest_domain_comes_first() {
    let server = one("forward . 192.0.2.1\nforward corp.example 192.0.2.2\nforward a.corp.example 192.0.2.3");
    let order: Vec<String> = server.forwards.iter().map(|forward| forward.from.to_string()).collect();
    assert_eq!(order, ["a.corp.example.", "corp.example.", "."]);
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, line, told) in [
        (
            ". {\n  template ANY ANY {\n    rcode NXDOMAIN\n  }\n}",
            2,
            "the plugin template is not supported here (rewrite name",
        ),
        (". {\n  import /etc/coredns/custom/*.override\n}", 2, "write the lines here instead"),
        (". {\n\n  kuberntes cluster.local\n}", 3, "there is no plugin kuberntes; there are autopath, bind,"),
        (". {\n  cache 30\n  cache 40\n}", 3, "cache can stand only once"),
        (
            ". {\n  kubernetes cluster.local {\n    labels a=b\n  }\n}",
            3,
            "kubernetes has no option labels here; it has",
        ),
        (". {\n  forward .\n}", 2, "forward is written forward FROM TO"),
        (". {\n  forward . tls://192.0.2.1\n}", 2, "\"tls://192.0.2.1\" is not an upstream"),
        (". {\n  rewrite name regex a b\n}", 2, "rewrite is written"),
        (". {\n  rewrite type ANY HINFO\n}", 2, "rewrite is written"),
        (". {\n  health {\n    lameduck 5\n  }\n}", 3, "\"5\" is not a duration"),
        (". {\n  errors\n", 1, "the file ends inside of a block"),
        (". {\n errors \"a\n}", 2, "the file ends inside"),
        ("\n}", 2, "\"}\" is not expected here"),
        ("", 1, "there is no server block"),
        ("tls://. {\n}", 1, "is not a zone such as"),
        (". {\n}\nexample.org . {\n}", 3, "the zone . is served at this port by a block further up"),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(told), "{text}: {error}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(
        words in proptest::collection::vec(proptest::prop_oneof!["[ -~]{0,12}", "[{}\n#\"]", "(forward|cache|kubernetes|rewrite|hosts|health|ttl|name|suffix|success|[.:/0-9]{1,9})"], 0..40),
    ) {
        let text = words.join(" ");
        if let Err(error) = parse(&text) {
            assert!(error.line <= text.lines().count().max(1), "{error}");
        }
        let inside = format!(". {{\n{text}\n}}");
        drop(parse(&inside));
    }
}

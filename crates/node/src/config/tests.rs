//! Files and flags, and what they come to.

use super::*;

fn options(flags: Flags, text: &str) -> Result<NodeOptions, ConfigError> {
    NodeOptions::new(flags, parse(Path::new("config.yaml"), text)?, Some("Host.Example".to_owned()))
}

fn error_of(text: &str) -> String {
    options(Flags::default(), text).unwrap_err().to_string()
}

#[test]
fn nothing_said_gives_kube_proxys_defaults() {
    let options = options(Flags::default(), "").unwrap();
    assert_eq!(&*options.node, "host.example");
    assert_eq!(options.mode, ModeName::Auto);
    assert_eq!(options.healthz, Some("0.0.0.0:10256".parse().unwrap()));
    assert_eq!(options.metrics, Some("127.0.0.1:10249".parse().unwrap()));
    assert_eq!(options.node_port_addresses, NodePortAddresses::Primary);
    assert_eq!(options.pods, PodRanges::Cluster(vec![]));
    assert_eq!((options.sync_period, options.min_sync_period), (Duration::from_secs(30), Duration::ZERO));
    assert!(options.ignored.is_empty());
}

/// As `kubeadm init` writes it, every field present.
const KUBEADM: &str = r#"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;

#[test]
fn a_file_that_kubeadm_wrote_is_taken_as_it_is() {
    let options = options(Flags::default(), KUBEADM).unwrap();
    assert_eq!(options.kubeconfig, Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
    assert_eq!(
        options.pods,
        PodRanges::Cluster(vec!["10.244.0.0/16".parse().unwrap(), "fd00:10:244::/48".parse().unwrap()])
    );
    assert_eq!(&*options.node, "host.example");
    assert_eq!(options.sync_period, Duration::from_secs(30));
    assert_eq!(options.healthz, Some("0.0.0.0:10256".parse().unwrap()));
    assert!(options.ignored.is_empty(), "{:?}", options.ignored);
}

#[test]
fn a_flag_wins_over_the_file() {
    let flags = Flags {
        hostname_override: Some("n1".to_owned()),
        cluster_cidr: Some("10.0.0.0/8".parse().unwrap()),
        healthz_bind_address: Some("".parse().unwrap()),
        metrics_bind_address: Some("[::1]:9".parse().unwrap()),
        proxy_mode: Some("nftables".parse().unwrap()),
        min_sync_period: Some("5ms".parse().unwrap()),
        nodeport_addresses: Some("172.18.0.0/16,10.0.0.0/8".parse().unwrap()),
        ..Flags::default()
    };
    let options = options(
        flags,
        "hostnameOverride: n9\nclusterCIDR: 10.9.0.0/16\nnftables: {minSyncPeriod: 1s, masqueradeAll: true}\n",
    )
    .unwrap();
    assert_eq!(&*options.node, "n1");
    assert_eq!(options.pods, PodRanges::Cluster(vec!["10.0.0.0/8".parse().unwrap()]));
    assert_eq!((options.healthz, options.metrics), (None, Some("[::1]:9".parse().unwrap())));
    assert_eq!((options.mode, options.masquerade_all), (ModeName::Nftables, true));
    assert_eq!(options.min_sync_period, Duration::from_millis(5));
    assert!(matches!(&options.node_port_addresses, NodePortAddresses::Cidrs(ranges) if ranges.len() == 2));
}

#[test]
fn an_error_names_file_line_and_field() {
    for (text, expected) in [
        (
            "nftables:\n  minSyncPeriod: 3x\n",
            "config.yaml:2:18: nftables.minSyncPeriod: \"3x\" is not a duration such as 30s, 1m30s or 500ms",
        ),
        (
            "mode: iptable\n",
            "config.yaml:1:7: mode: \"iptable\" is not a proxy mode: there are auto, nftables, ebpf, ipvs and iptables",
        ),
        (
            "clusterCIDR: 10.244.0.0\n",
            "config.yaml:1:14: clusterCIDR: \"10.244.0.0\" is not an address range such as 10.244.0.0/16",
        ),
        (
            "metricsBindAddress: localhost:1\n",
            "config.yaml:1:21: metricsBindAddress: \"localhost:1\" is not an address such as 0.0.0.0:10256 or [::]:10256",
        ),
        ("apiVersion: v1\n", "config.yaml:1:13: apiVersion: \"v1\" is not kubeproxy.config.k8s.io/v1alpha1"),
        ("kind: Pod\n", "config.yaml:1:7: kind: \"Pod\" is not KubeProxyConfiguration"),
    ] {
        assert_eq!(error_of(text), expected);
    }
    let unknown = error_of("nftables:\n  syncPeriod: 1s\n  minSynPeriod: 1s\n");
    assert!(unknown.starts_with("config.yaml:3:3: nftables.minSynPeriod: unknown field `minSynPeriod`"), "{unknown}");
    let wrong_type = error_of("nodePortAddresses: primary\n");
    assert!(wrong_type.starts_with("config.yaml:1:20: nodePortAddresses: "), "{wrong_type}");
}

#[test]
fn what_is_not_built_is_refused_or_named() {
    assert!(error_of("detectLocalMode: Somehow").contains("is none of ClusterCIDR, NodeCIDR"));
    let error = error_of("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: \"\"}");
    assert!(error.contains("needs detectLocal.bridgeInterface (or --pod-bridge-interface)"), "{error}");
    assert!(error_of("detectLocalMode: ClusterCIDR").contains("needs clusterCIDR"));
    let options = options(Flags::default(), "conntrack: {min: 1}\nfeatureGates: {A: true}\nipvs: {scheduler: lc}\n");
    assert_eq!(options.unwrap().ignored, ["conntrack.maxPerCore, min", "featureGates"]);
}

#[test]
fn a_node_needs_a_name_that_an_object_can_have() {
    for (name, expected) in [("", "has no name"), ("a b", "is not a node name"), ("x/../y", "is not a node name")] {
        let flags = Flags { hostname_override: Some(name.to_owned()), ..Flags::default() };
        let error = NodeOptions::new(flags, KubeProxyConfiguration::default(), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, ms) in [
        ("0", Some(0)),
        ("0s", Some(0)),
        ("30s", Some(30_000)),
        ("1h2m3s", Some(3_723_000)),
        ("1.5s", Some(1_500)),
        ("250ms", Some(250)),
        ("", None),
        ("5", None),
        ("s", None),
        ("-1s", None),
        ("1d", None),
        ("1s ", None),
        ("99999999999999999999999h", None),
    ] {
        assert_eq!(text.parse::<GoDuration>().ok(), ms.map(|ms| GoDuration(Duration::from_millis(ms))), "{text}");
    }
}

#[test]
fn the_field_of_a_line_is_found_by_its_indentation() {
    let text = "# head\na:\n  b:\n  - c: 1\n    d: 2\n  - x\n  e: 3\nf: [1,\n  2]\n";
    for (line, field) in
        [(2, "a"), (3, "a.b"), (4, "a.b[].c"), (5, "a.b[].d"), (6, "a.b[]"), (7, "a.e"), (8, "f"), (9, "f")]
    {
        assert_eq!(path::field_at(text, line), field, "line {line}");
    }
}

#[test]
fn pods_are_told_by_their_interfaces() {
    let of = |text: &str| options(Flags::default(), text).unwrap().pods;
    let text = "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\nclusterCIDR: 10.0.0.0/8\n";
    assert_eq!(of(text), PodRanges::Interfaces(PodInterfaces::Bridge("cni0".to_owned())));
    let text = "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n";
    assert_eq!(of(text), PodRanges::Interfaces(PodInterfaces::Prefix("cali".to_owned())));
}

#[test]
fn what_changes_the_kernels_settings_and_who_may_use_node_ports_is_read() {
    let of = |text: &str| options(Flags::default(), text).unwrap();
    let default = of("hostnameOverride: n1\n");
    assert_eq!(
        (default.localhost_node_ports, default.tcp_be_liberal, default.source_ranges_on_node_ports),
        (true, false, false)
    );
    let asked = of(
        "iptables: {localhostNodePorts: false}\nconntrack: {tcpBeLiberal: true}\nloadBalancerSourceRangesOnNodePorts: true\n",
    );
    assert_eq!(
        (asked.localhost_node_ports, asked.tcp_be_liberal, asked.source_ranges_on_node_ports),
        (false, true, true)
    );
    assert!(asked.ignored.is_empty(), "{:?}", asked.ignored);
}

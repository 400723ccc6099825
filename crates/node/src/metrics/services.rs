//! Pure. What became of connections, by Service port: as many as there are names to be had, since each costs whoever keeps the metrics.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::{Family, ServicePortName};
use signpost_datapath::counts::{BackendCounts, PacketCounts, PortCounts};

use super::ip_family;
use crate::prometheus::Text;

/// By family and Service port.
pub type Counts = BTreeMap<Family, BTreeMap<ServicePortName, PortCounts>>;

/// All that the kernel counted.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// What became of connections through Services.
    pub services: Counts,
    /// What rules of no Service counted, in all families together; `None`: the mode has none.
    pub packets: Option<PacketCounts>,
}

/// Writes what rules of no Service counted, under kube-proxy's names.
pub(super) fn write_packets(text: &mut Text, packets: Option<PacketCounts>) {
    let Some(packets) = packets else { return };
    let samples = [
        (
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "Connections to node ports at loopback",
            packets.localhost_node_ports,
        ),
        (
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "Packets that conntrack took for no part of their flow, dropped",
            packets.out_of_flow,
        ),
    ];
    for (name, help, count) in samples {
        text.head(name, "counter", help);
        text.sample(name, &[], count as f64);
    }
}

/// So many Service ports are named; the others are added up under no name.
const MOST_NAMED: usize = 1_000;

/// The Service ports that are named. One stays named as long as something is counted of it, so that no sample jumps.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    named: BTreeSet<(Family, ServicePortName)>,
}

/// The reason, if it counts failures, and what it is of one Service port, given the total of its backends.
type Sample = (Option<&'static str>, fn(&PortCounts, &BackendCounts) -> u64);

/// Of what few Service ports ask for, or no node unless it is told to, only samples that are not 0 are written.
const IF_ANY: [&str; 3] = [REBALANCED, SENT_PACKETS, RECEIVED_PACKETS];
const SENT_PACKETS: &str = "signpost_service_sent_packets_total";
const RECEIVED_PACKETS: &str = "signpost_service_received_packets_total";
const REBALANCED: &str = "signpost_service_rebalanced_connections_total";

/// Name, help, and what stands under the name.
const SAMPLES: [(&str, &str, &[Sample]); 7] = [
    (
        "signpost_service_connections_total",
        "Connections that were led to a backend",
        &[(None, |_, all| all.connections)],
    ),
    (
        "signpost_service_failures_total",
        "Connections that came to nothing",
        &[(Some("no endpoint"), |port, _| port.refused), (Some("unanswered"), |_, all| all.unanswered)],
    ),
    ("signpost_service_sent_bytes_total", "What ended connections had sent", &[(None, |_, all| all.sent_bytes)]),
    ("signpost_service_received_bytes_total", "What they had received", &[(None, |_, all| all.received_bytes)]),
    (SENT_PACKETS, "What ended connections had sent, in packets", &[(None, |_, all| all.sent_packets)]),
    (RECEIVED_PACKETS, "What they had received, in packets", &[(None, |_, all| all.received_packets)]),
    (REBALANCED, "Connections that were closed to reach new endpoints", &[(None, |port, _| port.rebalanced)]),
];

impl Labelled {
    /// Writes what was counted; nothing, where the mode does not count.
    pub(super) fn write(&mut self, text: &mut Text, counts: &Counts) {
        if counts.values().all(BTreeMap::is_empty) {
            return;
        }
        self.named.retain(|(family, port)| counts.get(family).is_some_and(|ports| ports.contains_key(port)));
        let mut rows: Vec<(Family, Option<&ServicePortName>, PortCounts, BackendCounts)> = Vec::new();
        for (family, ports) in counts {
            let mut others = PortCounts::default();
            for (port, counted) in ports {
                let key = (*family, port.clone());
                if self.named.contains(&key) || self.named.len() < MOST_NAMED {
                    self.named.insert(key);
                    rows.push((*family, Some(port), counted.clone(), counted.total()));
                } else {
                    others.add(counted);
                }
            }
            if others != PortCounts::default() {
                let total = others.total();
                rows.push((*family, None, others, total));
            }
        }
        for (name, help, samples) in SAMPLES {
            text.head(name, "counter", help);
            for (family, port, counted, total) in &rows {
                let (namespace, service, port) = match port {
                    Some(port) => (&*port.service.namespace, &*port.service.name, &*port.port),
                    None => ("", "", ""),
                };
                for (reason, count) in samples {
                    let number = count(counted, total);
                    if number == 0 && IF_ANY.contains(&name) {
                        continue;
                    }
                    let labels = [("namespace", namespace), ("service", service), ("port", port)];
                    let family = [("ip_family", ip_family(*family))];
                    let reason = reason.map(|reason| ("reason", reason));
                    let labels: Vec<_> = labels.into_iter().chain(family).chain(reason).collect();
                    text.sample(name, &labels, number as f64);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use signpost_core::object::ObjectName;

    use super::*;

    fn port(number: usize) -> ServicePortName {
        ServicePortName { service: ObjectName::new("default", &format!("web-{number:05}")), port: "http".into() }
    }

    fn written(labelled: &mut Labelled, ports: impl Iterator<Item = usize>) -> String {
        let counts = |number| BackendCounts { connections: number as u64, unanswered: 2, ..BackendCounts::default() };
        let backend = "10.244.1.2:80".parse().unwrap();
        let one = |number| {
            (
                port(number),
                PortCounts { refused: 3, backends: [(backend, counts(number))].into(), ..PortCounts::default() },
            )
        };
        let mut text = Text::new();
        labelled.write(&mut text, &[(Family::Ipv4, ports.map(one).collect())].into());
        text.finish()
    }

    #[test]
    fn a_service_port_has_its_connections_and_its_failures_by_reason() {
        let text = written(&mut Labelled::default(), 7..8);
        let labels = "namespace=\"default\",service=\"web-00007\",port=\"http\",ip_family=\"IPv4\"";
        for line in [
            format!("signpost_service_connections_total{{{labels}}} 7"),
            format!("signpost_service_failures_total{{{labels},reason=\"no endpoint\"}} 3"),
            format!("signpost_service_failures_total{{{labels},reason=\"unanswered\"}} 2"),
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("signpost_service_rebalanced_connections_total{"), "nobody asked for it");
        assert!(!text.contains("packets_total{"), "they are not counted");
        assert_eq!(written(&mut Labelled::default(), 0..0), "");
    }

    #[test]
    fn packets_and_what_was_spread_anew_are_told_where_there_are_any() {
        let counts = BackendCounts { sent_packets: 5, received_packets: 7, ..BackendCounts::default() };
        let backends = [("10.244.1.2:80".parse().unwrap(), counts)].into();
        let counted = PortCounts { rebalanced: 9, backends, ..PortCounts::default() };
        let mut text = Text::new();
        Labelled::default().write(&mut text, &[(Family::Ipv4, [(port(1), counted)].into())].into());
        let text = text.finish();
        for (name, number) in [("sent_packets", 5), ("received_packets", 7), ("rebalanced_connections", 9)] {
            let name = format!("signpost_service_{name}_total{{");
            let is_it = |line: &&str| line.starts_with(&name) && line.ends_with(&format!(" {number}"));
            assert_eq!(text.lines().filter(is_it).count(), 1, "{name} {number} in\n{text}");
        }
    }

    #[test]
    fn samples_stay_few_however_many_services_and_backends_there_are() {
        let backends = (0..200_u16).map(|number| {
            (([10, 0, 0, 1], 1 + number).into(), BackendCounts { connections: 1, ..BackendCounts::default() })
        });
        let counted = PortCounts { backends: backends.collect(), ..PortCounts::default() };
        let many = (0..3 * MOST_NAMED).map(|number| (port(number), counted.clone()));
        let mut text = Text::new();
        let counts: BTreeMap<_, _> = many.collect();
        Labelled::default().write(&mut text, &[(Family::Ipv4, counts.clone()), (Family::Ipv6, counts)].into());
        let text = text.finish();
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        // Five for each that is named, and for what is left in each family: two of failures, one each of connections and bytes.
        assert_eq!(samples, 5 * (MOST_NAMED + 2));
        let all = "signpost_service_connections_total{";
        let sum: f64 = text
            .lines()
            .filter(|line| line.starts_with(all))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum();
        assert_eq!(sum, 2.0 * 3.0 * MOST_NAMED as f64 * 200.0, "none is left out");
    }

    #[test]
    fn only_so_many_are_named_and_those_stay_named() {
        let mut labelled = Labelled::default();
        let named =
            |text: &str| text.lines().filter(|line| line.starts_with("signpost_service_connections_total{")).count();
        assert_eq!(named(&written(&mut labelled, 10..10 + MOST_NAMED)), MOST_NAMED);
        // Ten that come before them in the alphabet are added up: 0 + 1 + ... + 9.
        let text = written(&mut labelled, 0..10 + MOST_NAMED);
        assert_eq!(named(&text), MOST_NAMED + 1);
        let others = "signpost_service_connections_total{namespace=\"\",service=\"\",port=\"\",ip_family=\"IPv4\"} 45";
        assert!(text.lines().any(|line| line == others), "{text}");
    }
}

//! What the loop has to tell whoever owns an object: Events on the Node and on Services.

use signpost_cluster::ObjectReference;
use signpost_cluster::events::{Notice, Reporter};
use signpost_core::object::{Family, ObjectName, ServicePortName};
use signpost_datapath::Datapath;
use signpost_datapath::counts::{Rebalancing, Room};

use crate::sync::SyncLoop;

/// Tells what is new since the last call. The Reporter tells the same only once in a while.
pub fn report<D: Datapath>(sync: &mut SyncLoop<D>, node: &str, reporter: &Reporter) {
    for (family, reason) in sync.refusals() {
        reporter.report(refusal(node, family, reason));
    }
    for (family, service, reason) in sync.take_withheld() {
        reporter.report(withheld(node, family, &service, &reason));
    }
    for room in sync.take_crowded() {
        reporter.report(crowded(node, &room));
    }
    for (family, port, what) in sync.take_rebalancing() {
        reporter.report(rebalancing(node, family, &port, what));
    }
}

fn on_node(node: &str) -> ObjectReference {
    // A Node's Events carry its name as uid: so the kubelet does it, and so they are looked for.
    ObjectReference { api_version: "v1", kind: "Node", namespace: "".into(), name: node.into(), uid: node.into() }
}

fn on_service(service: &ObjectName) -> ObjectReference {
    let (namespace, name) = (service.namespace.clone(), service.name.clone());
    ObjectReference { api_version: "v1", kind: "Service", namespace, name, uid: "".into() }
}

fn refusal(node: &str, family: Family, reason: &str) -> Notice {
    let message = format!("the {family} rules cannot be brought to the plan, which is tried again: {reason}");
    Notice { object: on_node(node), reason: "ServiceRulesFailed", message }
}

/// To the owner of a Service that the kernel of this node does not take.
fn withheld(node: &str, family: Family, service: &ObjectName, reason: &str) -> Notice {
    let message =
        format!("the kernel of node {node} refuses the {family} rules of this Service, which is tried again: {reason}");
    Notice { object: on_service(service), reason: "ServiceRulesRefused", message }
}

/// A map that is full refuses the next Service.
fn crowded(node: &str, room: &Room) -> Notice {
    let Room { map, used, most, flag } = room;
    let message = format!("the kernel's map {map} is nearly full, {used} of {most} entries: {flag} gives it more room");
    Notice { object: on_node(node), reason: "KernelMapNearlyFull", message }
}

fn rebalancing(node: &str, family: Family, port: &ServicePortName, what: Rebalancing) -> Notice {
    let port_name = if port.port.is_empty() { String::new() } else { format!(" of port {}", port.port) };
    let message = match what {
        Rebalancing::Begun(wish) => format!(
            "node {node} closes {family} connections{port_name}, {} % in a second at most, until no endpoint has more than {} % over its share",
            wish.rate_percent, wish.within_percent
        ),
        Rebalancing::Ended { closed } => {
            format!("node {node} closed {closed} {family} connections{port_name}; there is none left to be closed")
        }
    };
    Notice { object: on_service(&port.service), reason: "ConnectionsRebalanced", message }
}

#[cfg(test)]
mod tests {
    use signpost_core::object::Rebalance;

    use super::*;

    #[test]
    fn a_map_that_is_nearly_full_is_told_on_the_node_with_the_flag_that_helps() {
        let notice = crowded("n1", &Room { map: "slots", used: 80, most: 100, flag: "--ebpf-backends" });
        assert_eq!((notice.object.kind, &*notice.object.name, &*notice.object.uid), ("Node", "n1", "n1"));
        assert_eq!(notice.reason, "KernelMapNearlyFull");
        assert_eq!(
            notice.message,
            "the kernel's map slots is nearly full, 80 of 100 entries: --ebpf-backends gives it more room"
        );
    }

    #[test]
    fn rebalancing_is_told_on_the_service_with_its_bounds_and_its_end() {
        let port = ServicePortName { service: ObjectName::new("shop", "db"), port: "sql".into() };
        let told = |what| {
            let notice = rebalancing("n1", Family::Ipv6, &port, what);
            assert_eq!((notice.object.kind, notice.reason), ("Service", "ConnectionsRebalanced"));
            assert_eq!((&*notice.object.namespace, &*notice.object.name), ("shop", "db"));
            notice.message
        };
        assert_eq!(
            told(Rebalancing::Begun(Rebalance { within_percent: 20, rate_percent: 10 })),
            "node n1 closes ipv6 connections of port sql, 10 % in a second at most, until no endpoint has more than 20 % over its share"
        );
        assert_eq!(
            told(Rebalancing::Ended { closed: 7 }),
            "node n1 closed 7 ipv6 connections of port sql; there is none left to be closed"
        );
    }
}

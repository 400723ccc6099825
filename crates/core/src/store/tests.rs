//! What makes a Service dirty, and what a list takes away.

use super::*;
use crate::fixture::{endpoint, node, service, slice};

fn web() -> Service {
    service("web", &["10.96.0.1"]).port("http", 80)
}

fn web_slice(address: &str) -> EndpointSlice {
    slice("web-1", "web", &[("http", 8080)], vec![endpoint(address, "n1")])
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

fn store(events: impl IntoIterator<Item = Event>) -> Store {
    let mut store = Store::new();
    events.into_iter().for_each(|event| store.handle(event));
    store
}

fn dirty_services(store: &mut Store, event: Event) -> Vec<String> {
    store.take_dirty();
    store.handle(event);
    store.take_dirty().services.iter().map(|name| name.name.to_string()).collect()
}

#[test]
fn a_changed_slice_makes_only_its_service_dirty() {
    let mut store = store([
        Event::ServiceApplied(web()),
        Event::ServiceApplied(service("db", &["10.96.0.2"])),
        Event::SliceApplied(web_slice("10.0.0.1")),
    ]);
    assert_eq!(dirty_services(&mut store, Event::SliceApplied(web_slice("10.0.0.2"))), ["web"]);
    assert_eq!(dirty_services(&mut store, Event::SliceDeleted(name("web-1"))), ["web"]);
}

#[test]
fn an_object_that_is_applied_as_it_was_makes_nothing_dirty() {
    let mut store = store([Event::ServiceApplied(web()), Event::SliceApplied(web_slice("10.0.0.1"))]);
    assert!(dirty_services(&mut store, Event::ServiceApplied(web())).is_empty());
    assert!(dirty_services(&mut store, Event::SliceApplied(web_slice("10.0.0.1"))).is_empty());
}

#[test]
fn a_slice_that_changes_its_service_makes_both_dirty() {
    let mut store = store([Event::SliceApplied(web_slice("10.0.0.1"))]);
    let moved = EndpointSlice { service: name("db"), ..web_slice("10.0.0.1") };
    assert_eq!(dirty_services(&mut store, Event::SliceApplied(moved)), ["db", "web"]);
    assert_eq!(store.slices_of(&name("web")).count(), 0);
    assert_eq!(store.slices_of(&name("db")).count(), 1);
}

#[test]
fn a_list_takes_away_what_it_does_not_name_and_only_at_its_end() {
    let mut store = store([
        Event::ServiceApplied(web()),
        Event::SliceApplied(web_slice("10.0.0.1")),
        Event::SliceApplied(slice("db-1", "db", &[], vec![])),
        Event::NodeApplied(node("n1", None, &[])),
    ]);
    store.take_dirty();
    store.handle(Event::Reset(Kind::EndpointSlice));
    store.handle(Event::SliceApplied(web_slice("10.0.0.1")));
    assert!(store.take_dirty().is_empty());
    assert_eq!(store.slices_of(&name("db")).count(), 1, "until the list ends, what was known holds");
    assert_eq!(dirty_services(&mut store, Event::Synced(Kind::EndpointSlice)), ["db"]);
    assert_eq!(store.slices_of(&name("db")).count(), 0);
    assert!(store.service(&name("web")).is_some() && store.node("n1").is_some(), "other kinds stay");
}

#[test]
fn a_list_that_begins_anew_forgets_what_the_broken_one_named() {
    let mut store = store([
        Event::ServiceApplied(web()),
        Event::Reset(Kind::Service),
        Event::ServiceApplied(web()),
        Event::Reset(Kind::Service),
    ]);
    assert_eq!(dirty_services(&mut store, Event::Synced(Kind::Service)), ["web"]);
    assert_eq!(store.services().count(), 0);
}

#[test]
fn a_change_after_the_list_is_not_taken_away_by_the_next() {
    let mut store = store([
        Event::Reset(Kind::Service),
        Event::Synced(Kind::Service),
        Event::ServiceApplied(web()),
        Event::Synced(Kind::Service),
    ]);
    assert_eq!(store.services().count(), 1);
    store.handle(Event::ServiceDeleted(name("web")));
    store.handle(Event::ServiceDeleted(name("web")));
    assert_eq!(store.services().count(), 0);
}

#[test]
fn it_is_synced_when_every_kind_was_and_stays_so() {
    let mut store = Store::new();
    for kind in Kind::ALL {
        assert!(!store.is_synced());
        store.handle(Event::Reset(kind));
        assert!(!store.is_kind_synced(kind));
        store.handle(Event::Synced(kind));
    }
    store.handle(Event::Reset(Kind::Node));
    assert!(store.is_synced());
}

#[test]
fn nodes_and_ranges_are_dirty_only_when_they_change() {
    let ranges =
        |text: &str| Event::ServiceCidrsApplied { name: "kubernetes".into(), cidrs: vec![text.parse().unwrap()] };
    let mut store = store([ranges("10.96.0.0/12"), Event::NodeApplied(node("n1", None, &["192.168.0.2"]))]);
    let dirty = store.take_dirty();
    assert!(dirty.service_cidrs && dirty.nodes.contains("n1"));
    store.handle(ranges("10.96.0.0/12"));
    store.handle(Event::NodeApplied(node("n1", None, &["192.168.0.2"])));
    store.handle(Event::NodeDeleted("n2".into()));
    assert!(store.take_dirty().is_empty());
    assert_eq!(store.service_cidrs(Family::Ipv4).len(), 1);
    assert!(store.service_cidrs(Family::Ipv6).is_empty());
    store.handle(Event::ServiceCidrsDeleted("kubernetes".into()));
    store.handle(Event::NodeDeleted("n1".into()));
    let dirty = store.take_dirty();
    assert!(dirty.service_cidrs && dirty.nodes.contains("n1"));
}

#[test]
fn equal_names_are_kept_once() {
    let store = store((1..=3).map(|number| {
        let endpoints = vec![endpoint("10.0.0.1", "n1").for_zones(&["a"]).for_nodes(&["n1"])];
        Event::SliceApplied(slice(&format!("web-{number}"), "web", &[("http", 80)], endpoints))
    }));
    let slices: Vec<_> = store.slices_of(&name("web")).collect();
    let node = |slice: &EndpointSlice| slice.endpoints[0].node.clone().unwrap();
    assert!(Arc::ptr_eq(&node(slices[0]), &node(slices[2])));
    assert!(Arc::ptr_eq(&node(slices[0]), &slices[1].endpoints[0].node_hints[0]));
}

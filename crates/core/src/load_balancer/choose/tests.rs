//! One table per rule, and what holds for every sequence of requests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::pool::{AddressRange, Allocation};
use super::*;
use crate::fixture::{ip, number};

/// Who has what, as a cluster would tell it.
#[derive(Debug, Default)]
struct Cluster {
    has: BTreeMap<ObjectName, (Vec<IpAddr>, Sharing)>,
    reserved: BTreeSet<IpAddr>,
    resting: BTreeSet<IpAddr>,
    in_use: BTreeSet<IpAddr>,
}

struct Besides<'a>(&'a Cluster, &'a ObjectName);

impl Others for Besides<'_> {
    fn users(&self, address: IpAddr) -> Vec<(ObjectName, Sharing)> {
        let all = self.0.has.iter().filter(|(name, (has, _))| *name != self.1 && has.contains(&address));
        all.map(|(name, (_, sharing))| (name.clone(), sharing.clone())).collect()
    }

    fn shared(&self, key: &str) -> BTreeSet<IpAddr> {
        let all =
            self.0.has.iter().filter(|(name, (_, sharing))| *name != self.1 && sharing.key.as_deref() == Some(key));
        all.flat_map(|(_, (has, _))| has.iter().copied()).collect()
    }

    fn reserved(&self, address: IpAddr) -> Option<String> {
        self.0.reserved.contains(&address).then(|| "a node has it".to_owned())
    }

    fn is_resting(&self, address: IpAddr) -> bool {
        self.0.resting.contains(&address)
    }

    fn in_use(&self, address: IpAddr) -> Option<String> {
        self.0.in_use.contains(&address).then(|| "on the segment of node n1".to_owned())
    }
}

impl Cluster {
    fn ask(&mut self, pools: &[Pool], request: &Request) -> Result<Chosen, Refusal> {
        let chosen = choose(pools, request, &Besides(self, &request.service));
        let addresses = chosen.as_ref().map(|chosen| chosen.addresses.clone()).unwrap_or_default();
        self.has.insert(request.service.clone(), (addresses, request.sharing.clone()));
        chosen
    }

    /// The addresses that it gets, or the reason in words.
    fn told(&mut self, pools: &[Pool], request: &Request) -> String {
        match self.ask(pools, request) {
            Ok(chosen) => list(&chosen.addresses),
            Err(refusal) => refusal.to_string(),
        }
    }
}

fn pool(name: &str, ranges: &[&str]) -> Pool {
    Pool {
        name: name.into(),
        labels: Labels::new(),
        ranges: ranges.iter().map(|range| range.parse::<AddressRange>().unwrap()).collect(),
        auto_assign: true,
        avoid_buggy: false,
        allocation: None,
    }
}

fn request(name: &str) -> Request {
    Request {
        service: ObjectName::new("default", name),
        labels: Labels::new(),
        namespace_labels: Labels::new(),
        families: vec![Family::Ipv4],
        one_will_do: false,
        wish: Wish::Any,
        current: vec![],
        sharing: Sharing { key: None, backends: "".into(), ports: [(Protocol::Tcp, number(80))].into() },
    }
}

fn sharing(key: &str, backends: &str, port: u16) -> Sharing {
    Sharing { key: Some(key.into()), backends: backends.into(), ports: [(Protocol::Tcp, number(port))].into() }
}

fn wishes(name: &str, addresses: &[&str]) -> Request {
    Request { wish: Wish::Addresses(addresses.iter().map(|address| ip(address)).collect()), ..request(name) }
}

#[test]
fn the_lowest_free_address_is_given_and_kept() {
    let pools = [pool("default", &["10.0.0.1-10.0.0.3"])];
    let mut cluster = Cluster::default();
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        assert_eq!(cluster.told(&pools, &request(name)), address);
    }
    assert_eq!(
        cluster.told(&pools, &request("d")),
        "no pool has an address for it: pool default has none of its 3 ipv4 addresses left"
    );
    cluster.has.remove(&ObjectName::new("default", "a"));
    let kept = Request { current: vec![ip("10.0.0.2")], ..request("b") };
    assert_eq!(cluster.told(&pools, &kept), "10.0.0.2");
    assert_eq!(cluster.told(&pools, &request("d")), "10.0.0.1");
}

#[test]
fn an_address_that_was_just_given_back_is_given_out_last() {
    let pools = [pool("default", &["10.0.0.1-10.0.0.2"])];
    let mut cluster = Cluster { resting: [ip("10.0.0.1")].into(), ..Cluster::default() };
    assert_eq!(cluster.told(&pools, &request("a")), "10.0.0.2");
    assert_eq!(cluster.told(&pools, &request("b")), "10.0.0.1");
}

#[test]
fn what_is_no_longer_allowed_is_given_up_with_a_reason() {
    let pools = [pool("default", &["10.0.0.1-10.0.0.3"]), pool("other", &["10.0.1.1-10.0.1.3"])];
    let has = |current: &str| Request { current: vec![ip(current)], ..request("a") };
    let moves = [
        (has("10.9.9.9"), "10.0.0.1", "10.9.9.9 is an address of no pool"),
        (Request { wish: Wish::Pool("other".into()), ..has("10.0.0.2") }, "10.0.1.1", "pool other is asked for"),
        (
            Request { wish: Wish::Addresses(vec![ip("10.0.0.3")]), ..has("10.0.0.2") },
            "10.0.0.3",
            "asks for 10.0.0.3 now",
        ),
        (Request { families: vec![Family::Ipv4], ..has("fd00::1") }, "10.0.0.1", "fd00::1 is an address of no pool"),
    ];
    for (request, address, reason) in moves {
        let chosen = choose(&pools, &request, &Besides(&Cluster::default(), &request.service)).unwrap();
        let lost = chosen.lost.unwrap().to_string();
        assert_eq!(list(&chosen.addresses), address);
        assert!(lost.contains(reason), "{lost}");
    }
}

#[test]
fn a_wish_that_cannot_be_met_says_why() {
    let mut closed = pool("closed", &["10.0.2.1-10.0.2.3"]);
    closed.allocation = Some(Allocation { namespaces: ["shop".into()].into(), ..Allocation::default() });
    let pools = [pool("default", &["10.0.0.1-10.0.0.3", "fd00::1-fd00::3"]), pool("other", &["fd00:1::/120"]), closed];
    let mut cluster = Cluster { reserved: [ip("10.0.0.3")].into(), ..Cluster::default() };
    cluster.ask(&pools, &wishes("first", &["10.0.0.2"])).unwrap();
    let dual = vec![Family::Ipv4, Family::Ipv6];
    for (request, said) in [
        (wishes("a", &["10.1.0.1"]), "10.1.0.1 is an address of no pool"),
        (Request { wish: Wish::Pool("none".into()), ..request("a") }, "there is no pool none"),
        (wishes("a", &["10.0.0.2"]), "default/first has it, and not both say"),
        (wishes("a", &["10.0.0.3"]), "10.0.0.3 cannot be given to it: a node has it"),
        (wishes("a", &["fd00::1"]), "the Service is of ipv4, which fd00::1 does not fit"),
        (wishes("a", &["10.0.0.1", "10.0.0.2"]), "does not fit"),
        (Request { families: dual.clone(), ..wishes("a", &["10.0.0.1"]) }, "does not fit"),
        (
            Request { families: dual.clone(), ..wishes("a", &["10.0.0.1", "fd00:1::1"]) },
            "of two pools, default and other",
        ),
        (wishes("a", &["10.0.2.1"]), "pool closed is kept for other Services"),
        (
            Request { families: vec![Family::Ipv6], wish: Wish::Pool("closed".into()), ..request("a") },
            "is kept for other",
        ),
    ] {
        let told = cluster.told(&pools, &request);
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn each_pool_says_why_it_has_nothing() {
    let mut manual = pool("manual", &["10.0.1.0/30"]);
    manual.auto_assign = false;
    let mut kept = pool("kept", &["10.0.2.0/30"]);
    kept.allocation = Some(Allocation { namespaces: ["shop".into()].into(), ..Allocation::default() });
    let pools = [kept, manual, pool("six", &["fd00::/126"])];
    let told = Cluster::default().told(&pools, &request("a"));
    assert_eq!(
        told,
        "no pool has an address for it: pool kept is kept for other Services (serviceAllocation); pool manual gives \
         addresses only to Services that name it (autoAssign: false); pool six has no ipv4 addresses"
    );
    assert_eq!(Cluster::default().told(&[], &request("a")), "there is no IPAddressPool");
    let named = Request { wish: Wish::Pool("manual".into()), ..request("a") };
    assert_eq!(Cluster::default().told(&pools, &named), "10.0.1.0");
}

#[test]
fn pools_that_are_kept_for_a_service_come_first_by_priority() {
    let kept = |name: &str, range: &str, priority: u32| Pool {
        allocation: Some(Allocation { priority, ..Allocation::default() }),
        ..pool(name, &[range])
    };
    let pools = [
        pool("a", &["10.0.0.1/32"]),
        kept("b", "10.0.1.1/32", 0),
        kept("c", "10.0.2.1/32", 20),
        kept("d", "10.0.3.1/32", 10),
    ];
    let mut cluster = Cluster::default();
    for (name, address) in [("1", "10.0.3.1"), ("2", "10.0.2.1"), ("3", "10.0.1.1"), ("4", "10.0.0.1")] {
        assert_eq!(cluster.told(&pools, &request(name)), address);
    }
}

#[test]
fn two_families_come_from_one_pool_and_a_second_one_is_added_later() {
    let pools = [pool("four", &["10.0.0.1-10.0.0.9"]), pool("two", &["10.0.1.1-10.0.1.9", "fd00::1-fd00::9"])];
    let dual = |name: &str, one_will_do: bool| Request {
        families: vec![Family::Ipv6, Family::Ipv4],
        one_will_do,
        ..request(name)
    };
    let mut cluster = Cluster::default();
    assert_eq!(cluster.told(&pools, &dual("a", false)), "fd00::1, 10.0.1.1");
    assert_eq!(cluster.told(&pools[..1], &dual("b", true)), "10.0.0.1");
    assert!(cluster.told(&pools[..1], &dual("c", false)).contains("pool four has no ipv6 addresses"));
    let upgraded = Request { current: vec![ip("10.0.1.5")], ..dual("d", true) };
    assert_eq!(cluster.told(&pools, &upgraded), "fd00::2, 10.0.1.5");
    let alone = Request { current: vec![ip("10.0.0.1")], ..dual("b", true) };
    assert_eq!(cluster.told(&pools, &alone), "10.0.0.1");
    let downgraded = Request { current: vec![ip("fd00::1"), ip("10.0.1.1")], ..request("a") };
    assert_eq!(cluster.told(&pools, &downgraded), "10.0.1.1");
}

#[test]
fn an_address_is_shared_by_key_backends_and_ports() {
    let pools = [pool("default", &["10.0.0.1-10.0.0.9"])];
    let mut cluster = Cluster::default();
    let with = |name: &str, sharing: Sharing| Request { sharing, ..request(name) };
    assert_eq!(cluster.told(&pools, &request("alone")), "10.0.0.1");
    assert_eq!(cluster.told(&pools, &with("a", sharing("k", "", 80))), "10.0.0.2");
    assert_eq!(cluster.told(&pools, &with("b", sharing("k", "", 81))), "10.0.0.2");
    assert_eq!(cluster.told(&pools, &with("same-port", sharing("k", "", 80))), "10.0.0.3");
    assert_eq!(cluster.told(&pools, &with("other-key", sharing("l", "", 82))), "10.0.0.4");
    assert_eq!(cluster.told(&pools, &with("local", sharing("k", "default: app=web", 83))), "10.0.0.5");
    let mut elsewhere = with("c", sharing("k", "", 84));
    elsewhere.service = ObjectName::new("shop", "c");
    assert_eq!(cluster.told(&pools, &elsewhere), "10.0.0.2");
    for (sharing, said) in [
        (sharing("k", "", 81), "default/b has its port 81/tcp"),
        (sharing("l", "", 85), "default/a, default/b, shop/c has it with another sharing key"),
        (sharing("k", "x", 85), "share an address only with the same pods"),
    ] {
        let told = cluster.told(&pools, &Request { sharing, ..wishes("d", &["10.0.0.2"]) });
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn an_address_that_somebody_else_has_is_exchanged_if_it_was_not_asked_for_and_another_is_free() {
    let pools = [pool("both", &["10.0.0.1-10.0.0.3", "fd00::1-fd00::2"])];
    let mut cluster = Cluster::default();
    let dual = |name: &str| Request { families: vec![Family::Ipv4, Family::Ipv6], ..request(name) };
    assert_eq!(cluster.told(&pools, &dual("a")), "10.0.0.1, fd00::1");
    let has =
        |name: &str, current: &[&str]| Request { current: current.iter().map(|one| ip(one)).collect(), ..dual(name) };
    cluster.in_use.insert(ip("10.0.0.1"));
    let chosen = cluster.ask(&pools, &has("a", &["10.0.0.1", "fd00::1"])).unwrap();
    assert_eq!(chosen.addresses, [ip("10.0.0.2"), ip("fd00::1")]);
    let why = chosen.lost.unwrap().to_string();
    assert!(why.contains("10.0.0.1 cannot be given to it: somebody else has it, on the segment of node n1"), "{why}");
    // One that rests may be somebody else's again: two such would be exchanged for each other for ever.
    cluster.resting.insert(ip("10.0.0.2"));
    let mut small = pools.clone();
    small[0].ranges = vec!["10.0.0.1-10.0.0.2".parse().unwrap()];
    let only = Request { families: vec![Family::Ipv4], current: vec![ip("10.0.0.1")], ..request("a") };
    assert_eq!(cluster.ask(&small, &only).unwrap().addresses, [ip("10.0.0.1")]);
    cluster.resting.clear();
    cluster.has.insert(ObjectName::new("default", "a"), (vec![ip("10.0.0.2"), ip("fd00::1")], Sharing::default()));
    // What nobody has goes first, what somebody has last; if there is nothing else, a Service keeps it.
    assert_eq!(cluster.told(&pools, &dual("b")), "10.0.0.3, fd00::2");
    let last = Request { families: vec![Family::Ipv4], ..request("c") };
    assert_eq!(cluster.told(&pools, &last), "10.0.0.1");
    let kept = cluster.ask(&pools, &Request { current: vec![ip("10.0.0.1")], ..last }).unwrap();
    assert_eq!((kept.addresses, kept.lost), (vec![ip("10.0.0.1")], None));
    // Who asked for an address gets no other.
    cluster.has.clear();
    let asked = wishes("d", &["10.0.0.1"]);
    assert_eq!(cluster.told(&pools, &asked), "10.0.0.1");
    assert_eq!(cluster.told(&pools, &Request { current: vec![ip("10.0.0.1")], ..asked }), "10.0.0.1");
}

#[test]
fn a_range_of_ipv6_that_is_wholly_reserved_ends_the_search() {
    struct Nothing;
    impl Others for Nothing {
        fn users(&self, _: IpAddr) -> Vec<(ObjectName, Sharing)> {
            vec![]
        }
        fn shared(&self, _: &str) -> BTreeSet<IpAddr> {
            BTreeSet::new()
        }
        fn reserved(&self, _: IpAddr) -> Option<String> {
            Some("pods have it".to_owned())
        }
        fn is_resting(&self, _: IpAddr) -> bool {
            false
        }
        fn in_use(&self, _: IpAddr) -> Option<String> {
            None
        }
    }
    let asked = Request { families: vec![Family::Ipv6], ..request("a") };
    assert!(matches!(choose(&[pool("six", &["fd00::/64"])], &asked, &Nothing), Err(Refusal::Nothing(_))));
}

fn any_request() -> impl Strategy<Value = Request> {
    let families = prop::sample::select(vec![
        vec![Family::Ipv4],
        vec![Family::Ipv6],
        vec![Family::Ipv4, Family::Ipv6],
        vec![Family::Ipv6, Family::Ipv4],
    ]);
    let wish = prop_oneof![
        4 => Just(Wish::Any),
        1 => prop::sample::select(vec!["a", "b", "none"]).prop_map(|name| Wish::Pool(name.into())),
        1 => prop::collection::vec(prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "fd00::1", "10.9.9.9"]), 1..3)
            .prop_map(|addresses| Wish::Addresses(addresses.into_iter().map(ip).collect())),
    ];
    let key = prop::option::of(prop::sample::select(vec!["k", "l"]));
    let backends = prop::sample::select(vec!["", "default: app=a"]);
    (0u8..6, families, any::<bool>(), wish, key, backends, 80u16..83).prop_map(
        |(name, families, one_will_do, wish, key, backends, port)| Request {
            families,
            one_will_do,
            wish,
            sharing: Sharing {
                key: key.map(Into::into),
                backends: backends.into(),
                ports: [(Protocol::Tcp, number(port))].into(),
            },
            ..request(&format!("s{name}"))
        },
    )
}

proptest! {
    /// Whatever is asked for in whatever order: two Services have one address only if the rules of sharing allow it, and
    /// a Service that asks again for the same keeps what it has.
    #[test]
    fn nobody_gets_what_another_has(requests in prop::collection::vec(any_request(), 1..30)) {
        let pools = [pool("a", &["10.0.0.1-10.0.0.2", "fd00::1-fd00::2"]), pool("b", &["10.0.1.1-10.0.1.1"])];
        let mut cluster = Cluster::default();
        for mut request in requests {
            request.current = cluster.has.get(&request.service).map(|(has, _)| has.clone()).unwrap_or_default();
            // What it asks for now counts for others at once, as its object says it.
            let chosen = cluster.ask(&pools, &request);
            if let Ok(chosen) = chosen {
                let again = Request { current: chosen.addresses.clone(), ..request.clone() };
                let same = choose(&pools, &again, &Besides(&cluster, &request.service)).unwrap();
                prop_assert_eq!((&same.addresses, same.lost), (&chosen.addresses, None));
            }
            for (one, (one_has, one_shares)) in &cluster.has {
                for (two, (two_has, two_shares)) in &cluster.has {
                    if one < two && one_has.iter().any(|address| two_has.contains(address)) {
                        prop_assert!(one_shares.key.is_some() && one_shares.key == two_shares.key, "{one} {two}");
                        prop_assert_eq!(&one_shares.backends, &two_shares.backends);
                        prop_assert!(one_shares.ports.is_disjoint(&two_shares.ports));
                    }
                }
            }
        }
    }
}

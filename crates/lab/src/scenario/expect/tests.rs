use super::*;
use crate::scenario::format::Share;
use crate::scenario::predict::{NodeView, PodView};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn view() -> ClusterView {
    let node = NodeView {
        name: "n1".to_owned(),
        primary: address("172.18.0.11"),
        addresses: [address("172.18.0.11"), address("10.244.1.1")].into(),
        pod_cidrs: Vec::new(),
    };
    let client = PodView {
        name: PodName::parse("client"),
        node: "n1".to_owned(),
        address: address("10.244.1.2"),
        host_network: false,
        listens: None,
        bind: None,
    };
    ClusterView { nodes: vec![node], pods: vec![client], ..ClusterView::default() }
}

fn good(pod: &str, peer: &str) -> Answer {
    Answer { pod: Some(PodName::parse(pod)), peer: Some(address(peer)), ..Answer::default() }
}

fn answered(pod: &str, peer: &str) -> Outcome {
    Outcome::Answered(good(pod, peer))
}

fn failed(how: Fails) -> Outcome {
    Outcome::Failed { how, detail: String::new() }
}

fn reached(pod: &str, source: Seen) -> (Fate, Vec<String>) {
    (
        Fate::Reached { by: Answerer::Pod(PodName::parse(pod)), at: "10.244.1.3:8080".parse().unwrap(), source },
        Vec::new(),
    )
}

fn reach(pods: &[&str]) -> Expect {
    Expect { reach: Some(pods.iter().map(ToString::to_string).collect()), ..Expect::default() }
}

fn fails(how: Fails) -> Expect {
    Expect { fails: Some(how), ..Expect::default() }
}

fn holds(expect: &Expect, outcomes: &[Outcome]) -> bool {
    let view = view();
    outcomes_hold(expect, outcomes, Setting { view: &view, sender: &"client".parse().unwrap() }).is_ok()
}

#[test]
fn reach_wants_every_member_and_nobody_else() {
    let both = [answered("a", "10.244.1.2"), answered("b", "10.244.1.2")];
    assert!(holds(&reach(&["a", "b"]), &both));
    assert!(!holds(&reach(&["a"]), &both));
    assert!(!holds(&reach(&["a", "b", "c"]), &both));
    assert!(!holds(&reach(&["a", "b"]), &[both[0].clone(), failed(Fails::Timeout)]));
    assert!(!holds(&reach(&["a"]), &[]));
    let only = Expect { only: Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]), ..Expect::default() };
    assert!(holds(&only, &both));
}

#[test]
fn a_failure_must_be_of_the_kind_that_is_expected() {
    assert!(holds(&fails(Fails::Refused), &[failed(Fails::Refused)]));
    assert!(!holds(&fails(Fails::Refused), &[failed(Fails::Refused), failed(Fails::Timeout)]));
    assert!(holds(&fails(Fails::Any), &[failed(Fails::Refused), failed(Fails::Timeout)]));
    assert!(!holds(&fails(Fails::Any), &[answered("a", "10.244.1.2")]));
}

#[test]
fn the_source_is_compared_by_whose_address_it_is() {
    let seen = |peer: &str, wanted| holds(&Expect { source: Some(wanted), ..reach(&["a"]) }, &[answered("a", peer)]);
    assert!(seen("10.244.1.2", PeerExpect::Client));
    assert!(!seen("10.244.1.1", PeerExpect::Client));
    assert!(seen("10.244.1.1", PeerExpect::Node));
    assert!(!seen("10.244.1.2", PeerExpect::Node));
    assert!(seen("10.244.1.2", PeerExpect::Address(address("10.244.1.2"))));
}

#[test]
fn sticky_and_shares_are_counted() {
    let two = [answered("a", "10.244.1.2"), answered("b", "10.244.1.2")];
    let sticky = |sticky| Expect { sticky: Some(sticky), ..Expect::default() };
    assert!(holds(&sticky(true), &[two[0].clone(), two[0].clone()]));
    assert!(!holds(&sticky(true), &two));
    assert!(holds(&sticky(false), &two));
    let share = |a: f64| Expect {
        share: Some(Share { of: [("a".to_owned(), a), ("b".to_owned(), 1.0 - a)].into(), within: 0.1 }),
        ..Expect::default()
    };
    assert!(holds(&share(0.5), &two));
    assert!(!holds(&share(0.8), &two));
}

#[test]
fn the_kernel_may_do_only_what_is_predicted_and_must_do_all_of_it() {
    let view = view();
    let client = || Seen::Address(address("10.244.1.2"));
    let prediction = Prediction::from([reached("a", client()), reached("b", client())]);
    let both = [answered("a", "10.244.1.2"), answered("b", "10.244.1.2")];
    assert!(kernel_agrees(&prediction, &both, &view, true).is_ok());
    assert!(kernel_agrees(&prediction, &both[..1], &view, true).is_err());
    let elsewhere = Answer { reached: Some("10.244.1.3:9090".parse().unwrap()), ..good("a", "10.244.1.2") };
    assert!(kernel_agrees(&prediction, &[Outcome::Answered(elsewhere)], &view, false).is_err());
    assert!(kernel_agrees(&prediction, &both[..1], &view, false).is_ok());
    assert!(kernel_agrees(&prediction, &[answered("c", "10.244.1.2")], &view, false).is_err());
    assert!(kernel_agrees(&prediction, &[answered("a", "10.244.1.1")], &view, false).is_err());
    let masqueraded = Prediction::from([reached("a", Seen::Node("n1".to_owned()))]);
    assert!(kernel_agrees(&masqueraded, &[answered("a", "10.244.1.1")], &view, true).is_ok());
    let dropped = Prediction::from([(Fate::Dropped, Vec::new())]);
    assert!(kernel_agrees(&dropped, &[failed(Fails::Timeout)], &view, true).is_ok());
    assert!(kernel_agrees(&dropped, &[failed(Fails::Refused)], &view, true).is_err());
}

#[test]
fn the_expectation_must_hold_for_the_prediction_too() {
    let view = view();
    let sender = "client".parse().unwrap();
    let setting = Setting { view: &view, sender: &sender };
    let prediction = Prediction::from([
        reached("a", Seen::Address(address("10.244.1.2"))),
        reached("b", Seen::Address(address("10.244.1.2"))),
    ]);
    assert!(prediction_holds(&reach(&["a", "b"]), &prediction, setting).is_ok());
    assert!(prediction_holds(&reach(&["a"]), &prediction, setting).is_err());
    let from_node = Expect { source: Some(PeerExpect::Node), ..reach(&["a", "b"]) };
    assert!(prediction_holds(&from_node, &prediction, setting).is_err());
    assert!(prediction_holds(&fails(Fails::Any), &prediction, setting).is_err());
    let refused = Prediction::from([(Fate::Refused, Vec::new())]);
    assert!(prediction_holds(&fails(Fails::Refused), &refused, setting).is_ok());
    assert!(prediction_holds(&fails(Fails::Timeout), &refused, setting).is_err());
    assert!(prediction_holds(&reach(&["a"]), &refused, setting).is_err());
}

#[test]
fn tries_grow_with_the_backends_and_with_the_precision() {
    assert_eq!(tries_to_see_all(1), MIN_TRIES);
    assert_eq!(tries_to_see_all(2), 31);
    for members in 2..20 {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (of, tries) = (members as f64, tries_to_see_all(members) as f64);
        assert!(of * (1.0 - 1.0 / of).powf(tries) < 1e-9, "{members}");
    }
    assert!(tries_for_shares(0.05) > tries_for_shares(0.1));
}

#[test]
fn a_broken_probe_is_neither_expected_nor_predicted() {
    let (view, sender) = (view(), Source::Outside);
    let setting = Setting { view: &view, sender: &sender };
    let broken = [Outcome::Broken { detail: "too many open files".to_owned() }];
    for fails in [None, Some(Fails::Any), Some(Fails::Reset), Some(Fails::Unreachable)] {
        let expect = Expect { fails, ..Expect::default() };
        let problem = outcomes_hold(&expect, &broken, setting).unwrap_err();
        assert!(problem.contains("too many open files"), "{problem}");
    }
    for fate in [Fate::Refused, Fate::Dropped, Fate::Lost] {
        assert!(kernel_agrees(&[(fate, Vec::new())].into(), &broken, &view, false).is_err());
    }
}

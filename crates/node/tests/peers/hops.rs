//! BFD over several hops (RFC 5883), with a router between the node and its peer's address.

use std::time::Duration;

use signpost_node::announce::bgp::bfd::{Bfd, BfdOptions, BfdStates};
use signpost_wire::bfd::{Profile, State};

use super::network::{Network, within};

const BIRD: &str = "
log stderr all;
router id 10.9.0.1;
protocol device {}
protocol bfd {
  multihop { interval 50 ms; multiplier 20; };
  neighbor 10.9.0.2 local 10.9.0.1 multihop yes;
  neighbor fd09::2 local fd09::1 multihop yes;
}
";

/// BIRD sends these packets with the TTL that its machine gives to all: 64.
const BIRDS_TTL: u8 = 64;

fn options(family: &str, minimum_ttl: u8) -> BfdOptions {
    let span = Duration::from_millis(100);
    let (peer, own) = if family == "ipv4" { ("10.9.0.1", "10.9.0.2") } else { ("fd09::1", "fd09::2") };
    BfdOptions {
        peer: peer.parse().unwrap(),
        source: Some(own.parse().unwrap()),
        multi_hop: true,
        minimum_ttl,
        profile: Profile { transmit: span, receive: span, multiplier: 20, passive: false },
    }
}

fn all(states: &BfdStates, wanted: State) -> bool {
    states.len() == 2 && states.values().all(|one| one.state == wanted)
}

#[test]
fn bird_and_bfd_find_each_other_over_several_hops_and_a_planned_end_is_no_loss() {
    Network::new().with_node(async |network| {
        let bird = network.bird(BIRD);
        let bfd = Bfd::start().unwrap();
        let sessions = ["ipv4", "ipv6"].map(|family| (family.into(), options(family, BIRDS_TTL)));
        bfd.want(sessions.into());
        let mut states = bfd.states();
        within(states.wait_for(|states| all(states, State::Up))).await.unwrap();
        for peer in ["10.9.0.2", "fd09::2"] {
            bird.shows(&["show", "bfd", "sessions"], &format!(r"{peer}\s+---\s+Up")).await;
        }
        bird.kill();
        let lost = within(states.wait_for(|states| all(states, State::Down))).await.unwrap().clone();
        assert!(lost.values().all(|one| one.losses == 1), "a router that fell silent is lost: {lost:?}");
        let bird = network.bird(BIRD);
        within(states.wait_for(|states| all(states, State::Up))).await.unwrap();
        bfd.leave().await;
        for peer in ["10.9.0.2", "fd09::2"] {
            bird.shows(&["show", "bfd", "sessions"], &format!(r"{peer}\s+---\s+Down")).await;
        }
    });
}

#[test]
fn a_peer_farther_away_than_it_may_be_is_not_heard_and_that_is_told() {
    Network::new().with_node(async |network| {
        let _bird = network.bird(BIRD);
        let bfd = Bfd::start().unwrap();
        bfd.want([("router".into(), options("ipv4", BIRDS_TTL + 1))].into());
        let mut states = bfd.states();
        let told = |states: &BfdStates| states.get("router").is_some_and(|one| one.too_far == Some(BIRDS_TTL));
        let states = within(states.wait_for(told)).await.unwrap();
        assert_eq!(states["router"].state, State::Down);
    });
}

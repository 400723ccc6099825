//! Bytes from a peer: nothing panics, what is read reads back as it was, and a session answers with messages that can be read.
#![no_main]

use std::net::Ipv4Addr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use signpost_wire::bgp::message::{Message, decode};
use signpost_wire::bgp::session::{Config, PeerAs, Session};
use signpost_wire::bgp::{Family, Prefix, Route};

fn session() -> Session {
    let next_hops = [(Family::Ipv4, Ipv4Addr::new(10, 0, 0, 1).into())].into();
    let config = Config {
        asn: 64512,
        peer: PeerAs::External,
        id: Ipv4Addr::new(10, 0, 0, 1),
        hold_time: Duration::from_secs(90),
        keepalive: None,
        next_hops,
        graceful_restart_s: Some(120),
        restarted: false,
    };
    Session::new(config, Duration::ZERO)
}

fuzz_target!(|bytes: &[u8]| {
    match decode(bytes) {
        Ok(Some((Message::Open(open), _))) => {
            let again = decode(&open.encode());
            assert!(matches!(again, Ok(Some((Message::Open(read), _))) if read == open));
        }
        Ok(Some((Message::Notification(said), _))) => {
            let again = decode(&said.encode());
            assert!(matches!(again, Ok(Some((Message::Notification(read), _))) if read == said));
        }
        Ok(_) | Err(_) => {}
    }
    let mut session = session();
    let prefix = Prefix::new(Ipv4Addr::new(203, 0, 113, 200).into(), 32);
    session.want([(prefix, Route::default())].into(), Duration::ZERO);
    // A session that is over has said why.
    let _ = session.receive(bytes, Duration::from_secs(1));
    let said = session.take_output();
    let mut rest = said.as_slice();
    while !rest.is_empty() {
        let (_, length) = decode(rest).expect("it is well formed").expect("it is whole");
        rest = &rest[length..];
    }
});

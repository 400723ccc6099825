//! Packets from a peer: nothing panics, what is read reads back as it was, and a session goes on whatever it is told.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use signpost_wire::bfd::{LENGTH, Packet, Profile, Session};

const SPAN: Duration = Duration::from_millis(100);

fuzz_target!(|bytes: &[u8]| {
    let profile = Profile { transmit: SPAN, receive: SPAN, multiplier: 3, passive: false };
    let mut now = Duration::ZERO;
    let mut session = Session::new(profile, 7, now);
    for one in bytes.chunks(LENGTH) {
        now += Duration::from_millis(u64::from(one[0]));
        session.tick(now, one[0]);
        let Ok(packet) = Packet::decode(one) else { continue };
        assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        if let Some(answer) = session.receive(&packet, now) {
            assert!(answer.is_final && Packet::decode(&answer.encode()).is_ok());
        }
    }
});

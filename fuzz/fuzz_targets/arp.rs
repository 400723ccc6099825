//! A frame's body from anybody on the segment: nothing panics, and what is read reads back as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signpost_wire::arp::Packet;
use signpost_wire::mac::Mac;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::decode(bytes) else { return };
    assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
    let answer = packet.answer(Mac([2, 0, 0, 0, 0, 1]));
    assert_eq!(Packet::decode(&answer.encode()), Ok(answer));
});

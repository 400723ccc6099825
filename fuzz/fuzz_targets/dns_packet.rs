//! A packet from anybody, by UDP and by TCP: nothing panics, and what refuses it is no larger than it was.
#![no_main]

use hickory_proto::op::ResponseCode;
use libfuzzer_sys::fuzz_target;
use signpost_dns::message::{Refusal, Request, Response, Transport};

fuzz_target!(|packet: &[u8]| {
    for transport in [Transport::Udp, Transport::Tcp] {
        match Request::read(packet, transport) {
            Ok(request) => {
                let answer = request.write(&Response::code(ResponseCode::NoError));
                assert!(answer.len() <= usize::from(request.limit()));
            }
            Err(Refusal::Reply(reply, _)) => assert!(reply.len() <= packet.len()),
            Err(Refusal::Silence) => {}
        }
    }
});

use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn asked(edns_payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 4711;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name("wEb.Default.svc.cluster.local."), RecordType::A));
    if let Some(payload) = edns_payload {
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_max_payload(payload).set_dnssec_ok(true);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

fn with(answers: usize, additionals: usize) -> Response {
    let record = |n: usize| {
        let address = std::net::Ipv4Addr::from(0x0af4_0000 + n as u32);
        Record::from_rdata(name("wEb.Default.svc.cluster.local."), 5, RData::A(A(address)))
    };
    Response {
        authoritative: true,
        answers: (0..answers).map(record).collect(),
        additionals: (0..additionals).map(record).collect(),
        ..Response::code(ResponseCode::NoError)
    }
}

#[test]
fn an_answer_repeats_the_question_as_it_was_written() {
    let request = Request::read(&asked(None), Transport::Udp).unwrap();
    assert_eq!((request.id, request.kind, request.limit()), (4711, RecordType::A, 512));
    let packet = request.write(&with(1, 1));
    let read = Message::from_vec(&packet).unwrap();
    assert!(read.queries[0].name.eq_case(&request.name) && read.answers[0].name.eq_case(&request.name));
    assert!(read.metadata.authoritative && read.metadata.recursion_available && read.metadata.recursion_desired);
    assert!(!read.metadata.truncation && read.edns.is_none());
    // Names are written once: header, question, 16 bytes for each record.
    assert_eq!(packet.len(), 12 + 31 + 4 + 16 + 16);
}

#[test]
fn what_does_not_fit_is_left_out_and_only_answers_that_miss_are_marked() {
    for (payload, limit) in [(None, 512), (Some(100), 512), (Some(1000), 1000), (Some(65_000), 1232)] {
        let request = Request::read(&asked(payload), Transport::Udp).unwrap();
        assert_eq!(request.limit(), limit);
        let packet = request.write(&with(200, 2));
        let read = Message::from_vec(&packet).unwrap();
        assert!(read.metadata.truncation, "{payload:?}");
        // The library, which writes when there are additional records, writes a name whole before it finds it to be known.
        let least = limit - 16 - request.name.len() as u16;
        assert!((least..=limit).contains(&(packet.len() as u16)), "{} bytes of {limit}", packet.len());
        assert_eq!(read.edns.is_some(), payload.is_some());
        let packet = request.write(&with(3, 200));
        let read = Message::from_vec(&packet).unwrap();
        assert!(!read.metadata.truncation && read.answers.len() == 3 && read.additionals.is_empty());
        assert_eq!(read.edns.map(|edns| (edns.max_payload(), edns.flags().dnssec_ok)), payload.map(|_| (1232, true)));
    }
    let request = Request::read(&asked(None), Transport::Tcp).unwrap();
    let read = Message::from_vec(&request.write(&with(2_000, 0))).unwrap();
    assert!(!read.metadata.truncation && read.answers.len() == 2_000);
    let read = Message::from_vec(&request.write(&with(6_000, 0))).unwrap();
    assert!(read.metadata.truncation && read.answers.len() > 4_000, "{}", read.answers.len());
}

#[test]
fn what_is_no_question_gets_a_header_or_nothing() {
    let question = asked(None);
    let changed = |at: usize, to: u8| {
        let mut packet = question.clone();
        packet[at] = to;
        packet
    };
    let code = |packet: &[u8]| match Request::read(packet, Transport::Udp) {
        Err(Refusal::Reply(reply, code)) => {
            assert!(reply.len() <= packet.len() && reply[2] & 0x80 != 0 && reply[..2] == packet[..2]);
            Some(code)
        }
        Err(Refusal::Silence) => None,
        Ok(_) => panic!("it was taken for a question"),
    };
    assert_eq!(code(&question[..11]), None);
    assert_eq!(code(&changed(2, 0x81)), None, "an answer");
    assert_eq!(code(&changed(2, 0x28)), Some(ResponseCode::NotImp), "an update");
    assert_eq!(code(&changed(5, 2)), Some(ResponseCode::FormErr), "two questions");
    assert_eq!(code(&changed(5, 0)), Some(ResponseCode::FormErr), "none");
    assert_eq!(code(&changed(4, 255)), Some(ResponseCode::FormErr), "65,281 of them");
    assert_eq!(code(&question[..20]), Some(ResponseCode::FormErr), "cut off");
    let length = question.len();
    assert_eq!(code(&changed(length - 1, 3)), Some(ResponseCode::Refused), "class CHAOS");
    assert_eq!(code(&changed(length - 3, 252)), Some(ResponseCode::Refused), "a zone transfer");
    let mut versioned = asked(Some(1232));
    let at = versioned.len() - 5;
    versioned[at] = 1;
    assert_eq!(code(&versioned), Some(ResponseCode::BADVERS));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn addresses_are_written_as_the_library_writes_them(
        addresses in prop::collection::vec(any::<std::net::IpAddr>(), 1..80),
        payload in any::<Option<u16>>(),
        code in prop_oneof![Just(ResponseCode::NoError), Just(ResponseCode::NXDomain)],
        flags in any::<[bool; 3]>(),
        ttl in any::<u32>(),
    ) {
        let request = Request::read(&asked(payload), Transport::Tcp).unwrap();
        let record = |address: &std::net::IpAddr| {
            let data = match address {
                std::net::IpAddr::V4(address) => RData::A(A(*address)),
                std::net::IpAddr::V6(address) => RData::AAAA(hickory_proto::rr::rdata::AAAA(*address)),
            };
            Record::from_rdata(request.name.clone(), ttl, data)
        };
        let response = Response {
            authoritative: flags[0],
            authentic: flags[1],
            truncated: flags[2],
            answers: addresses.iter().map(record).collect(),
            ..Response::code(code)
        };
        let ours = request.write_addresses(&response).unwrap();
        let (mut theirs, counts) = request.emit(&response, &[]).unwrap();
        prop_assert_eq!(usize::from(counts.answers), addresses.len());
        if let Some(edns) = request.edns {
            add_opt(&mut theirs, code, edns.dnssec_ok);
        }
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn no_packet_makes_it_panic_and_no_refusal_is_larger_than_the_packet(
        packet in prop::collection::vec(any::<u8>(), 0..600),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        edns in any::<Option<u16>>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut damaged = asked(edns);
        for (at, to) in flips {
            let at = at.index(damaged.len());
            damaged[at] = to;
        }
        let cut_off = damaged[..cut.index(damaged.len())].to_vec();
        for packet in [packet, damaged, cut_off] {
            for transport in [Transport::Udp, Transport::Tcp] {
                match Request::read(&packet, transport) {
                    Ok(request) => {
                        let written = request.write(&with(100, 100));
                        prop_assert!(written.len() <= request.limit().into());
                        prop_assert!(Message::from_vec(&written).is_ok());
                    }
                    // BADVERS and REFUSED repeat the question, and an OPT record if there was one.
                    Err(Refusal::Reply(reply, _)) => prop_assert!(reply.len() <= packet.len()),
                    Err(Refusal::Silence) => {}
                }
            }
        }
    }
}

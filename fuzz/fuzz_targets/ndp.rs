//! Packets from anybody on the segment: nothing panics, and what is read reads back as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signpost_wire::mac::Mac;
use signpost_wire::ndp::{Advertisement, Solicitation};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(question) = Solicitation::decode(bytes) {
        assert_eq!(Solicitation::decode(&question.encode()), Ok(question));
        let answer = question.answer(Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(Advertisement::decode(&answer.encode()), Ok(answer));
    }
    if let Ok(advertisement) = Advertisement::decode(bytes) {
        assert_eq!(Advertisement::decode(&advertisement.encode()), Ok(advertisement));
    }
});

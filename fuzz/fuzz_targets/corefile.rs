//! An operator's file: it is read, or refused with a line that it has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signpost_dns::corefile;

fuzz_target!(|text: &str| {
    if let Err(error) = corefile::read(text, |_| None) {
        assert!((1..=text.lines().count().max(1) + 1).contains(&error.line));
    }
});

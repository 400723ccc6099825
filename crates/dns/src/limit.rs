//! Pure. How many error answers a client gets: one that sends rubbish, or under a false address, gets few.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Clients that share a bucket share its tokens: the table has a size of its own, whatever the number of clients.
const BUCKETS: usize = 4096;
/// Error answers at once, and then in each second.
const BURST: u32 = 200;
const PER_SECOND: u32 = 100;

/// Tokens of clients, by a hash of their address that they cannot know.
pub struct ErrorLimit {
    hasher: RandomState,
    buckets: Box<[Bucket]>,
}

#[derive(Clone, Copy)]
struct Bucket {
    spent: u32,
    at_ms: u64,
}

impl ErrorLimit {
    /// All buckets full.
    pub fn new(hasher: RandomState) -> ErrorLimit {
        ErrorLimit { hasher, buckets: vec![Bucket { spent: 0, at_ms: 0 }; BUCKETS].into() }
    }

    /// Whether this client may have one more error answer at this time, in milliseconds of any clock that only grows. A client of
    /// IPv6 is a /64.
    pub fn allows(&mut self, client: IpAddr, now_ms: u64) -> bool {
        let who = match client.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        let bucket = &mut self.buckets[self.hasher.hash_one(who) as usize % BUCKETS];
        let regained = now_ms.saturating_sub(bucket.at_ms).saturating_mul(PER_SECOND.into()) / 1_000;
        if regained > 0 {
            bucket.spent = bucket.spent.saturating_sub(u32::try_from(regained).unwrap_or(u32::MAX));
            bucket.at_ms = now_ms;
        }
        let allowed = bucket.spent < BURST;
        bucket.spent += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_a_burst_and_then_so_many_in_a_second() {
        let mut limit = ErrorLimit::new(RandomState::new());
        let client = "10.244.1.7".parse().unwrap();
        let allowed = |limit: &mut ErrorLimit, now_ms| (0..1_000).filter(|_| limit.allows(client, now_ms)).count();
        assert_eq!(allowed(&mut limit, 5_000), 200);
        assert_eq!(allowed(&mut limit, 5_005), 0);
        assert_eq!(allowed(&mut limit, 6_000), 100);
        assert_eq!(allowed(&mut limit, 60_000), 200);
        let (one, other) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert_eq!((0..300).filter(|_| limit.allows(one, 60_000) | limit.allows(other, 60_000)).count(), 100);
    }
}

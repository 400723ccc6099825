//! Pure. Which of a node's pod addresses are given out.

use crate::topology::POD_HOSTS;

/// The host parts of one node's pods. They are given out in turn, so that an address rests before it is used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPool {
    taken: std::collections::BTreeSet<u8>,
    last: Option<u8>,
}

impl HostPool {
    /// The next free one.
    pub fn take(&mut self) -> Option<u8> {
        let after = self.last.map_or(*POD_HOSTS.start(), |last| last.saturating_add(1));
        let free = (after..=*POD_HOSTS.end())
            .chain(POD_HOSTS)
            .find(|host| POD_HOSTS.contains(host) && !self.taken.contains(host))?;
        self.taken.insert(free);
        self.last = Some(free);
        Some(free)
    }

    /// Gives one back.
    pub fn release(&mut self, host: u8) {
        self.taken.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_rest_before_they_are_used_again() {
        let mut pool = HostPool::default();
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some(2), Some(3), Some(4)]);
        pool.release(3);
        assert_eq!(pool.take(), Some(5));
        for _ in 6..=254 {
            assert!(pool.take().is_some());
        }
        assert_eq!([pool.take(), pool.take()], [Some(3), None]);
        pool.release(200);
        assert_eq!(pool.take(), Some(200));
    }
}

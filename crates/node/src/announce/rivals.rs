//! Pure. Somebody else on the segment who has an address of ours: looked for before an address is taken for the first time, and
//! heard of later.
//!
//! ```text
//! to be claimed, no record yet ──▶ probe ──▶ silence ──▶ claim
//!                                       └──▶ an answer ──▶ in use: not claimed; asked again later
//! owned ──▶ somebody claims it ──▶ told, and the segment is told again where it is
//! ```
//!
//! Times are spans since this node's start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use signpost_wire::mac::Mac;

/// So long whoever has an address may take to say so. On one segment it is a millisecond or less.
pub const PROBE: Duration = Duration::from_millis(20);
/// So long more is waited once that has been noticed: what came meanwhile is read by then, however long this process slept.
pub const SETTLE: Duration = Duration::from_millis(10);
/// So often an address that is in use is asked for again.
pub const AGAIN: Duration = Duration::from_secs(5);
/// For so long the former owner of an address may go on saying that it has it.
pub const HAND_OVER: Duration = Duration::from_secs(3);
/// A rival that was not heard of for so long is gone.
const FORGET: Duration = Duration::from_secs(60);

/// What is known of rivals.
#[derive(Debug, Default)]
pub struct Rivals {
    /// Probes whose answers are waited for.
    probing: BTreeMap<IpAddr, Probe>,
    /// Who has an address that is not ours, and when he was heard.
    seen: BTreeMap<IpAddr, (Mac, Duration)>,
    /// Since when addresses are ours.
    owned: BTreeMap<IpAddr, Duration>,
}

/// A question to the segment.
#[derive(Debug, Clone, Copy)]
struct Probe {
    sent: Duration,
    /// When silence counts, once [`PROBE`] is over.
    ripe: Option<Duration>,
}

/// What to do about an address that nobody has a record of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ask the segment, and come back.
    Probe,
    /// An answer is waited for.
    Wait,
    /// Nobody has it.
    Free,
    /// Somebody has it.
    InUse,
}

impl Rivals {
    /// Whether an address may be claimed now.
    pub fn may_claim(&mut self, address: IpAddr, now: Duration) -> Verdict {
        if let Some((_, heard)) = self.seen.get(&address)
            && now < *heard + AGAIN
        {
            return Verdict::InUse;
        }
        match self.probing.get_mut(&address) {
            Some(probe) if now < probe.sent + PROBE => Verdict::Wait,
            // An old probe says nothing about now.
            Some(probe) if now < probe.sent + AGAIN => {
                if now < *probe.ripe.get_or_insert(now + SETTLE) {
                    return Verdict::Wait;
                }
                self.probing.remove(&address);
                self.seen.remove(&address);
                Verdict::Free
            }
            _ => {
                self.probing.insert(address, Probe { sent: now, ripe: None });
                Verdict::Probe
            }
        }
    }

    /// When the next probe will have been answered, if at all.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let ends = self.probing.values().map(|probe| probe.ripe.unwrap_or(probe.sent + PROBE));
        ends.filter(|at| *at > now).min()
    }

    /// These addresses are ours. Who has others counts as long as they are wanted here.
    pub fn own(&mut self, addresses: &BTreeSet<IpAddr>, is_wanted: impl Fn(&IpAddr) -> bool, now: Duration) {
        self.owned.retain(|address, _| addresses.contains(address));
        for address in addresses {
            self.owned.entry(*address).or_insert(now);
        }
        self.seen.retain(|address, (_, heard)| is_wanted(address) && now < *heard + FORGET);
        self.probing.retain(|address, _| is_wanted(address));
    }

    /// Somebody claims an address. `true`: that is news, and no hand-over.
    pub fn heard(&mut self, address: IpAddr, mac: Mac, now: Duration) -> bool {
        if self.owned.get(&address).is_some_and(|since| now < *since + HAND_OVER) {
            return false;
        }
        let is_relevant = self.owned.contains_key(&address) || self.probing.contains_key(&address);
        let known = self.seen.get(&address).is_some_and(|(former, _)| *former == mac);
        if is_relevant || known {
            self.seen.insert(address, (mac, now));
            self.probing.remove(&address);
        }
        is_relevant && !known
    }

    /// The addresses that this node would take, were they not somebody else's.
    pub fn in_use(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.seen.keys().filter(|address| !self.owned.contains_key(*address)).copied()
    }

    /// Who has an address, if somebody else has it.
    pub fn holder(&self, address: IpAddr) -> Option<Mac> {
        self.seen.get(&address).map(|(mac, _)| *mac)
    }

    /// Who has what, in words for its owner.
    pub fn problems(&self) -> Vec<String> {
        self.seen
            .iter()
            .map(|(address, (mac, _))| format!("{address}: {mac} on the segment says that it has this address"))
            .collect()
    }

    /// The addresses of which it is to be told who claims them.
    pub fn watched(&self) -> BTreeSet<IpAddr> {
        self.probing.keys().chain(self.owned.keys()).chain(self.seen.keys()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn address() -> IpAddr {
        "172.18.15.200".parse().unwrap()
    }

    #[test]
    fn an_address_is_claimed_when_nobody_answers() {
        let (mut rivals, start) = (Rivals::default(), Duration::from_secs(9));
        assert_eq!(rivals.may_claim(address(), start), Verdict::Probe);
        assert_eq!(rivals.may_claim(address(), start), Verdict::Wait);
        assert_eq!((rivals.next(start), rivals.next(start + PROBE)), (Some(start + PROBE), None));
        assert_eq!(rivals.may_claim(address(), start + PROBE), Verdict::Wait, "what came is not read yet");
        assert_eq!(rivals.next(start + PROBE), Some(start + PROBE + SETTLE));
        assert_eq!(rivals.may_claim(address(), start + PROBE + SETTLE), Verdict::Free);
        assert_eq!(rivals.may_claim(address(), start + PROBE + SETTLE), Verdict::Probe, "each claim has its own");
    }

    #[test]
    fn a_process_that_slept_over_the_answer_reads_it_before_it_claims() {
        let (mut rivals, start) = (Rivals::default(), Duration::from_secs(9));
        assert_eq!(rivals.may_claim(address(), start), Verdict::Probe);
        let woke = start + Duration::from_secs(1);
        assert_eq!(rivals.may_claim(address(), woke), Verdict::Wait);
        assert!(rivals.heard(address(), MAC, woke));
        assert_eq!(rivals.may_claim(address(), woke + SETTLE), Verdict::InUse);
    }

    #[test]
    fn an_address_that_somebody_has_is_asked_for_again_later() {
        let (mut rivals, start) = (Rivals::default(), Duration::from_secs(9));
        assert_eq!(rivals.may_claim(address(), start), Verdict::Probe);
        assert!(rivals.heard(address(), MAC, start));
        assert_eq!(rivals.may_claim(address(), start + PROBE), Verdict::InUse);
        assert_eq!((rivals.problems().len(), rivals.in_use().collect::<Vec<_>>()), (1, vec![address()]));
        let mut unwanted = Rivals { seen: rivals.seen.clone(), ..Rivals::default() };
        unwanted.own(&BTreeSet::new(), |_| false, start);
        assert_eq!(unwanted.in_use().count(), 0, "nobody wants it here any more");
        assert_eq!(rivals.may_claim(address(), start + AGAIN), Verdict::Probe);
        assert!(!rivals.heard(address(), MAC, start + AGAIN), "that is no news");
        assert_eq!(rivals.may_claim(address(), start + AGAIN + PROBE), Verdict::InUse);
        assert_eq!(rivals.may_claim(address(), start + AGAIN * 3), Verdict::Probe);
        assert_eq!(rivals.may_claim(address(), start + AGAIN * 3 + PROBE), Verdict::Wait);
        assert_eq!(rivals.may_claim(address(), start + AGAIN * 3 + PROBE + SETTLE), Verdict::Free, "he is gone");
        assert_eq!(rivals.problems(), Vec::<String>::new());
    }

    #[test]
    fn a_former_owner_is_no_rival_but_somebody_who_comes_later_is() {
        let (mut rivals, start) = (Rivals::default(), Duration::from_secs(9));
        rivals.own(&[address()].into(), |_| true, start);
        assert!(!rivals.heard(address(), MAC, start + Duration::from_secs(1)));
        assert!(rivals.heard(address(), MAC, start + HAND_OVER));
        assert_eq!(rivals.in_use().count(), 0, "it is this node's");
        assert!(!rivals.heard(address(), MAC, start + HAND_OVER), "he was told of already");
        rivals.own(&[address()].into(), |_| true, start + HAND_OVER + FORGET);
        assert_eq!(rivals.problems(), Vec::<String>::new());
    }
}

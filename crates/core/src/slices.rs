//! Pure. Which endpoints go into which slice: the fewest writes first, then the fewest slices.
//!
//! A Service's endpoints of one family and one set of ports are spread over slices of a limited size. Every slice that
//! changes is sent to every node, so an endpoint stays in the slice that it is in, new ones fill slices that change
//! anyhow, and a slice is never rewritten only to be fuller. This is the order that the Kubernetes controller keeps
//! (KEP-752).
//!
//! The controller knows the API's endpoints and this module does not need to: `K` is what makes an endpoint the same
//! one (pod and address), `E` is all that is written about it.

use std::collections::BTreeMap;

/// Endpoints that a slice takes, as Kubernetes sets it (the API allows 1,000).
pub const MAX_ENDPOINTS: usize = 100;

/// What becomes of one slice that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate<E> {
    /// It holds what it should.
    Unchanged,
    /// It is written with these endpoints, never none.
    Updated(Vec<E>),
    /// It has no endpoint left.
    Deleted,
}

/// What becomes of all slices of one family and one set of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing<E> {
    /// One for each slice that exists, in the order given.
    pub existing: Vec<Fate<E>>,
    /// The endpoints of each new slice; none is empty or over the limit.
    pub created: Vec<Vec<E>>,
}

/// A slice on its way: what it keeps, and what is known of how it changes.
struct Draft<E> {
    endpoints: Vec<E>,
    changed: bool,
}

/// Spreads `desired` over the `existing` slices and as many new ones as it takes.
///
/// Slices over `limit` are cut back to it. An endpoint that stands in two slices stays in the first only.
///
/// # Panics
/// If `limit` is 0.
pub fn pack<K: Ord, E: Clone + PartialEq>(
    existing: &[Vec<(K, E)>],
    mut desired: BTreeMap<K, E>,
    limit: usize,
) -> Packing<E> {
    assert!(limit > 0, "a slice that may hold nothing can't hold endpoints");
    let mut drafts: Vec<Draft<E>> = existing.iter().map(|slice| keep(slice, &mut desired, limit)).collect();
    let mut fresh = desired.into_values().peekable();

    // Slices that change anyhow take as much as they can; an emptied one is worth filling too: an update costs the
    // nodes less than a deletion and a creation.
    for draft in drafts.iter_mut().filter(|draft| draft.changed) {
        while draft.endpoints.len() < limit && fresh.peek().is_some() {
            draft.endpoints.extend(fresh.next());
        }
    }
    let mut rest: Vec<E> = fresh.collect();
    let mut created = Vec::new();
    while rest.len() >= limit {
        created.push(rest.drain(..limit).collect());
    }
    if !rest.is_empty() {
        match closest_fit(&drafts, rest.len(), limit) {
            Some(index) => {
                drafts[index].endpoints.append(&mut rest);
                drafts[index].changed = true;
            }
            None => created.push(rest),
        }
    }
    Packing { existing: drafts.into_iter().map(Draft::fate).collect(), created }
}

/// What stays in a slice; takes it out of `desired`.
fn keep<K: Ord, E: Clone + PartialEq>(slice: &[(K, E)], desired: &mut BTreeMap<K, E>, limit: usize) -> Draft<E> {
    let mut draft = Draft { endpoints: Vec::with_capacity(slice.len()), changed: slice.is_empty() };
    for (key, before) in slice {
        if draft.endpoints.len() == limit {
            draft.changed = true;
            break;
        }
        match desired.remove(key) {
            Some(now) => {
                draft.changed |= now != *before;
                draft.endpoints.push(now);
            }
            None => draft.changed = true,
        }
    }
    draft
}

/// The fullest slice that still has room for `count` more.
fn closest_fit<E>(drafts: &[Draft<E>], count: usize, limit: usize) -> Option<usize> {
    (0..drafts.len())
        .filter(|&index| !drafts[index].endpoints.is_empty() && drafts[index].endpoints.len() + count <= limit)
        .max_by_key(|&index| (drafts[index].endpoints.len(), std::cmp::Reverse(index)))
}

impl<E> Draft<E> {
    fn fate(self) -> Fate<E> {
        match (self.endpoints.is_empty(), self.changed) {
            (true, _) => Fate::Deleted,
            (false, true) => Fate::Updated(self.endpoints),
            (false, false) => Fate::Unchanged,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slice(keys: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
        keys.into_iter().map(|key| (key, 0)).collect()
    }

    fn desired(keys: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u32> {
        keys.into_iter().map(|key| (key, 0)).collect()
    }

    /// The keys are not in the packing: put them there as the endpoint itself.
    fn keyed(keys: impl IntoIterator<Item = u32>) -> (Vec<(u32, u32)>, BTreeMap<u32, u32>) {
        let pairs: Vec<(u32, u32)> = keys.into_iter().map(|key| (key, key)).collect();
        (pairs.clone(), pairs.into_iter().collect())
    }

    #[test]
    fn nothing_from_nothing() {
        assert_eq!(pack::<u32, u32>(&[], BTreeMap::new(), 100), Packing { existing: vec![], created: vec![] });
    }

    #[test]
    fn a_slice_as_it_should_be_is_not_written() {
        let (before, want) = keyed(1..=7);
        assert_eq!(pack(&[before], want, 100).existing, vec![Fate::Unchanged]);
    }

    #[test]
    fn one_hundred_and_one_endpoints_take_two_slices() {
        let packing = pack(&[], desired(0..101), 100);
        assert_eq!(packing.created.iter().map(Vec::len).collect::<Vec<_>>(), vec![100, 1]);
    }

    #[test]
    fn a_new_endpoint_fills_the_fullest_slice_with_room() {
        let packing = pack(
            &[slice(0..50), slice(100..190), slice(200..300)],
            desired((0..50).chain(100..191).chain(200..300)),
            100,
        );
        assert!(matches!(&packing.existing[..], [Fate::Unchanged, Fate::Updated(e), Fate::Unchanged] if e.len() == 91));
        assert!(packing.created.is_empty());
    }

    #[test]
    fn new_endpoints_go_where_a_write_is_due_anyhow() {
        // 0 leaves the first slice, 500 comes: one write, though the second slice is fuller.
        let packing = pack(&[slice(0..10), slice(100..190)], desired((1..10).chain(100..190).chain([500])), 100);
        assert!(matches!(&packing.existing[..], [Fate::Updated(e), Fate::Unchanged] if e.len() == 10));
        assert!(packing.created.is_empty());
    }

    #[test]
    fn an_emptied_slice_goes_and_one_that_is_refilled_stays() {
        assert_eq!(pack(&[slice(0..3)], desired([]), 100).existing, vec![Fate::Deleted]);
        assert!(matches!(&pack(&[slice(0..3)], desired(5..7), 100).existing[..], [Fate::Updated(e)] if e.len() == 2));
    }

    #[test]
    fn a_change_of_an_endpoint_rewrites_its_slice_alone() {
        let mut want = desired(0..20);
        want.insert(15, 1);
        assert!(matches!(
            &pack(&[slice(0..10), slice(10..20)], want, 100).existing[..],
            [Fate::Unchanged, Fate::Updated(_)]
        ));
    }

    proptest! {
        /// Whatever was there: each desired endpoint stands in exactly one slice, no slice is over the limit, and a
        /// second pass finds nothing to do.
        #[test]
        fn packing_is_whole_and_settles(
            before in prop::collection::vec(prop::collection::btree_set(0u32..60, 0..12), 0..6),
            want in prop::collection::btree_set(0u32..80, 0..60),
            limit in 1usize..10,
        ) {
            let existing: Vec<_> = before.iter().map(|keys| keyed(keys.iter().copied()).0).collect();
            let (_, desired) = keyed(want.iter().copied());
            let packing = pack(&existing, desired.clone(), limit);
            let mut after: Vec<Vec<u32>> = Vec::new();
            for (fate, slice) in packing.existing.iter().zip(&existing) {
                match fate {
                    Fate::Unchanged => after.push(slice.iter().map(|(_, e)| *e).collect()),
                    Fate::Updated(endpoints) => after.push(endpoints.clone()),
                    Fate::Deleted => {}
                }
            }
            after.extend(packing.created.clone());
            prop_assert!(after.iter().all(|slice| !slice.is_empty() && slice.len() <= limit));
            let all: Vec<u32> = after.iter().flatten().copied().collect();
            prop_assert_eq!(all.len(), want.len());
            prop_assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), want);
            let again: Vec<Vec<(u32, u32)>> = after.iter().map(|slice| slice.iter().map(|e| (*e, *e)).collect()).collect();
            let second = pack(&again, desired, limit);
            prop_assert!(second.created.is_empty());
            prop_assert!(second.existing.iter().all(|fate| *fate == Fate::Unchanged));
        }
    }
}

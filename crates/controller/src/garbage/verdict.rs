//! Pure. What becomes of an object, by the state of its owners.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// What is known of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// It exists.
    There,
    /// It does not exist, or its name is another object's now.
    Gone,
    /// It is being deleted and waits until its dependents are.
    Waits,
}

/// What becomes of the object.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Nothing.
    Keep,
    /// It goes.
    Delete,
    /// It stays, with these owners only.
    Drop(Vec<OwnerReference>),
}

/// An object goes when it had owners and none of them stays.
pub fn verdict(owners: Vec<(OwnerReference, OwnerState)>) -> Verdict {
    let count = owners.len();
    let left: Vec<OwnerReference> =
        owners.into_iter().filter(|(_, state)| *state == OwnerState::There).map(|(owner, _)| owner).collect();
    if left.len() == count {
        Verdict::Keep
    } else if left.is_empty() {
        Verdict::Delete
    } else {
        Verdict::Drop(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference { uid: uid.to_owned(), ..OwnerReference::default() }
    }

    #[test]
    fn an_object_goes_only_with_its_last_owner() {
        use OwnerState::{Gone, There, Waits};
        let with =
            |states: &[(&str, OwnerState)]| verdict(states.iter().map(|(uid, state)| (owner(uid), *state)).collect());
        assert_eq!(with(&[]), Verdict::Keep);
        assert_eq!(with(&[("a", There)]), Verdict::Keep);
        assert_eq!(with(&[("a", Gone)]), Verdict::Delete);
        assert_eq!(with(&[("a", Waits), ("b", Gone)]), Verdict::Delete);
        assert_eq!(with(&[("a", Gone), ("b", There)]), Verdict::Drop(vec![owner("b")]));
    }
}

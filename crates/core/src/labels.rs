//! Pure. Labels, and selectors of them as objects write them (`matchLabels`, `matchExpressions`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Labels as objects carry them.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// A selector. One without requirements selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// All must hold.
    pub requirements: Vec<Requirement>,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requirement {
    /// There, with one of these values.
    In(Arc<str>, BTreeSet<Arc<str>>),
    /// Not there, or with none of these values.
    NotIn(Arc<str>, BTreeSet<Arc<str>>),
    /// There.
    Exists(Arc<str>),
    /// Not there.
    Absent(Arc<str>),
}

impl Selector {
    /// Whether labels meet every requirement.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

/// Whether one of several selectors selects; without any, everything is selected.
pub fn any_selects(selectors: &[Selector], labels: &Labels) -> bool {
    selectors.is_empty() || selectors.iter().any(|selector| selector.selects(labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_follow_their_operator() {
        let labels = Labels::from([("app".into(), "web".into())]);
        let values = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect::<BTreeSet<Arc<str>>>();
        let selects = |requirement| Selector { requirements: vec![requirement] }.selects(&labels);
        assert!(selects(Requirement::In("app".into(), values(&["web", "api"]))));
        assert!(!selects(Requirement::In("app".into(), values(&["api"]))));
        assert!(!selects(Requirement::In("gone".into(), values(&["web"]))));
        assert!(!selects(Requirement::NotIn("app".into(), values(&["web"]))));
        assert!(selects(Requirement::NotIn("gone".into(), values(&["web"]))));
        assert!(selects(Requirement::Exists("app".into())) && !selects(Requirement::Absent("app".into())));
        assert!(Selector::default().selects(&labels) && any_selects(&[], &labels));
        assert!(!any_selects(&[Selector { requirements: vec![Requirement::Absent("app".into())] }], &labels));
    }
}

//! Pure. Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Labels as objects carry them.
pub type Labels = BTreeMap<String, String>;

/// Whether labels have every pair of a plain selector. An empty selector selects nothing here: that is what it means on
/// a Service, and no workload may have one.
pub fn has_all(labels: Option<&Labels>, pairs: &Labels) -> bool {
    let none = Labels::new();
    let labels = labels.unwrap_or(&none);
    !pairs.is_empty() && pairs.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether labels match a selector with expressions. An empty selector and an operator that does not exist match nothing.
pub fn matches(labels: Option<&Labels>, selector: &LabelSelector) -> bool {
    let none = Labels::new();
    let labels = labels.unwrap_or(&none);
    let pairs = selector.match_labels.as_ref().unwrap_or(&none);
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    (!pairs.is_empty() || !expressions.is_empty())
        && pairs.iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.iter().all(|expression| meets(labels, expression))
}

fn meets(labels: &Labels, expression: &LabelSelectorRequirement) -> bool {
    let value = labels.get(&expression.key);
    let listed = value.is_some_and(|value| expression.values.as_ref().is_some_and(|values| values.contains(value)));
    match expression.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        let values = (!values.is_empty()).then(|| values.iter().map(|value| (*value).to_owned()).collect());
        let expression = LabelSelectorRequirement { key: key.into(), operator: operator.into(), values };
        LabelSelector { match_expressions: Some(vec![expression]), match_labels: None }
    }

    #[test]
    fn plain_selectors_want_every_pair() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        assert!(has_all(Some(&pod), &labels(&[("app", "web")])));
        assert!(!has_all(Some(&pod), &labels(&[("app", "web"), ("tier", "back")])));
        assert!(!has_all(None, &labels(&[("app", "web")])));
        assert!(!has_all(Some(&pod), &Labels::new()));
    }

    #[test]
    fn expressions_follow_their_operator() {
        let pod = labels(&[("app", "web")]);
        for (key, operator, values, expected) in [
            ("app", "In", &["web", "api"][..], true),
            ("app", "In", &["api"], false),
            ("gone", "In", &["web"], false),
            ("app", "NotIn", &["web"], false),
            ("gone", "NotIn", &["web"], true),
            ("app", "Exists", &[], true),
            ("app", "DoesNotExist", &[], false),
            ("gone", "DoesNotExist", &[], true),
            ("app", "Sounds", &["web"], false),
        ] {
            let selector = expression(key, operator, values);
            assert_eq!(matches(Some(&pod), &selector), expected, "{key} {operator} {values:?}");
        }
        assert!(!matches(Some(&pod), &LabelSelector::default()));
    }
}

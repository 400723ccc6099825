//! Pure. Names that somebody who mistyped one may have meant.

use std::collections::BTreeSet;

use signpost_core::object::ObjectName;

/// So many are offered.
const MOST: usize = 3;

/// The nearest names: the same in another namespace first, then by the number of letters that differ.
pub fn nearest(name: &str, namespace: Option<&str>, known: &BTreeSet<ObjectName>) -> Vec<String> {
    let far = (name.len() / 3).max(2);
    let near = known.iter().map(|known| {
        let letters = distance(name, &known.name);
        let elsewhere = usize::from(namespace.is_some_and(|namespace| *namespace != *known.namespace));
        (letters, elsewhere, known)
    });
    let mut near: Vec<_> = near.filter(|(letters, ..)| *letters <= far).collect();
    near.sort();
    near.into_iter().take(MOST).map(|(.., known)| known.to_string()).collect()
}

/// How many letters must come, go or change to make one of the other.
pub fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = corner + usize::from(letter != *other);
            corner = row[column + 1];
            row[column + 1] = changed.min(corner + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_and_the_same_in_another_namespace_are_found() {
        let known = [("shop", "web"), ("default", "webs"), ("default", "kubernetes"), ("kube-system", "kube-dns")];
        let known = known.map(|(namespace, name)| ObjectName::new(namespace, name)).into();
        assert_eq!(nearest("web", Some("default"), &known), ["shop/web", "default/webs"]);
        assert_eq!(nearest("kubernets", None, &known), ["default/kubernetes"]);
        assert_eq!(nearest("something-else", None, &known), [""; 0]);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

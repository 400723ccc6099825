//! Pure. Reads `tags.txt`.

use super::{ListType, Tags};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const TABLE: &str = include_str!("tags.txt");

/// The tags of a field of a struct; of the struct itself for the field `*`.
pub(super) fn of(structure: &str, field: &str) -> Tags {
    static TAGS: LazyLock<HashMap<(&str, &str), Tags>> = LazyLock::new(|| rows(TABLE).collect());
    TAGS.get(&(structure, field)).cloned().unwrap_or_default()
}

fn rows(table: &'static str) -> impl Iterator<Item = ((&'static str, &'static str), Tags)> {
    let mut structure = "";
    table.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        let Some(row) = line.strip_prefix(' ') else {
            structure = line;
            return None;
        };
        let (field, words) = row.split_once(' ')?;
        Some(((structure, field), tags(words)))
    })
}

fn tags(words: &str) -> Tags {
    let mut tags = Tags::default();
    for word in words.split(' ') {
        match word.split_once('=').map_or((word, None), |(word, value)| (word, Some(value))) {
            ("pointer", None) => tags.pointer = true,
            ("always", None) => tags.always = true,
            ("atomic", None) => tags.atomic_struct = true,
            ("retainKeys", None) => tags.retain_keys = true,
            ("merge", key) => {
                tags.merge = true;
                tags.merge_key = key.map(Arc::from);
            }
            ("go", Some(go_type)) => tags.go_type = Some(Arc::from(go_type)),
            ("list", Some("atomic")) => tags.list = Some(ListType::Atomic),
            ("list", Some("set")) => tags.list = Some(ListType::Set),
            ("list", Some(map)) => {
                let keys = map.strip_prefix("map:").unwrap_or_default();
                tags.list = Some(ListType::Map(keys.split(',').map(Arc::from).collect()));
            }
            _ => debug_assert!(false, "tags.txt has an unknown word: {word}"),
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, schemas};
    use super::*;

    #[test]
    fn every_row_names_a_field_that_exists() {
        for ((structure, field), tags) in rows(TABLE) {
            let id = schemas().named(structure).unwrap_or_else(|| panic!("no struct {structure}"));
            if field == "*" {
                continue;
            }
            let found = schemas()[id].fields.get(field).unwrap_or_else(|| panic!("no field {structure}.{field}"));
            let list = matches!(found.shape, Shape::List(_));
            assert!(list || !(tags.merge || tags.list.is_some()), "{structure}.{field} is no list");
        }
    }

    #[test]
    fn every_merge_key_is_a_field_of_the_elements() {
        for structure in schemas().structs() {
            for (name, field) in &structure.fields {
                let keys = field.tags.merge_key.iter().cloned().chain(match &field.tags.list {
                    Some(ListType::Map(keys)) => keys.clone(),
                    _ => vec![],
                });
                for key in keys {
                    let Shape::List(element) = &field.shape else { panic!("{}.{name}", structure.name) };
                    let Shape::Struct(element) = **element else { panic!("{}.{name}", structure.name) };
                    assert!(schemas()[element].fields.contains_key(&key), "{}.{name}: {key}", structure.name);
                }
            }
        }
    }
}

//! Pure. Reads `fields.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What a field number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The field of this name in JSON.
    Field(&'static str),
    /// A message whose fields stand in the outer object.
    Inline(&'static str),
}

/// Fields of a message, by number.
pub(super) type Message = HashMap<u32, Entry>;

const TABLE: &str = include_str!("fields.txt");

/// The fields of a message by its name in OpenAPI.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    static MESSAGES: LazyLock<HashMap<&str, Message>> = LazyLock::new(read);
    MESSAGES.get(name)
}

fn read() -> HashMap<&'static str, Message> {
    let mut messages: HashMap<&str, Message> = HashMap::new();
    let mut name = "";
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let Some(row) = line.strip_prefix(' ') else {
            name = line;
            continue;
        };
        let (number, field) = row.split_once(' ').expect("fields.txt: number and field, as a test holds");
        let number = number.parse().expect("fields.txt: a number, as a test holds");
        let entry = field.strip_prefix('*').map_or(Entry::Field(field), Entry::Inline);
        messages.entry(name).or_default().insert(number, entry);
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::schema::{Struct, schemas};

    fn names(message: &Message) -> Vec<&'static str> {
        let of = |entry: &Entry| match *entry {
            Entry::Field(name) => vec![name],
            Entry::Inline(inner) => names(super::message(inner).unwrap()),
        };
        message.values().flat_map(of).collect()
    }

    /// Fields that protobuf has elsewhere (kind and version stand in the envelope) or, as a draft, nowhere we know of.
    fn is_left_out(structure: &Struct, field: &str) -> bool {
        matches!(field, "apiVersion" | "kind") && structure.fields.contains_key("kind")
            || structure.name.ends_with(".NodeAllocatableResourceClaimStatus") && field == "resources"
    }

    #[test]
    fn every_field_of_every_struct_has_a_number() {
        // Custom resources are never sent so, nor is what they alone refer to.
        let is_custom = |name: &str| name.starts_with("io.metallb.") || name.ends_with(".core.v1.SecretReference");
        for structure in schemas().structs().filter(|structure| !is_custom(&structure.name)) {
            let message = message(&structure.name).unwrap_or_else(|| panic!("no message {}", structure.name));
            let names = names(message);
            for field in structure.fields.keys() {
                let known = names.contains(&&**field) || is_left_out(structure, field);
                assert!(known, "{}.{field} has no number", structure.name);
            }
        }
    }
}

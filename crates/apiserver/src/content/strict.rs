//! Pure. Fields that a JSON text says twice: a parsed value keeps the last one only, so this looks at the text.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;

/// A field that stands twice in one object. Prints as the real server says it: `duplicate field "spec.foo"`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuplicateField {
    /// From the object's root.
    pub path: String,
}

impl fmt::Display for DuplicateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate field {:?}", self.path)
    }
}

/// So many are told at most, as the real server does.
const MOST: usize = 100;

/// The fields that a JSON text says twice, in order, each once, a hundred at most. Empty for what is no JSON.
#[must_use]
pub fn duplicate_fields(json: &[u8]) -> Vec<DuplicateField> {
    let mut state = State { path: String::new(), found: vec![] };
    let mut reader = serde_json::Deserializer::from_slice(json);
    match Walk(&mut state).deserialize(&mut reader) {
        Ok(()) => state.found,
        Err(_) => vec![],
    }
}

struct State {
    path: String,
    found: Vec<DuplicateField>,
}

impl State {
    fn report(&mut self) {
        let known = self.found.iter().any(|found| found.path == self.path);
        if !known && self.found.len() < MOST {
            self.found.push(DuplicateField { path: self.path.clone() });
        }
    }
}

struct Walk<'a>(&'a mut State);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let length = self.0.path.len();
        for at in 0.. {
            self.0.path.push_str(&format!("[{at}]"));
            let element = list.next_element_seed(Walk(self.0))?;
            self.0.path.truncate(length);
            if element.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let length = self.0.path.len();
        let mut seen = BTreeSet::new();
        while let Some(Key(key)) = map.next_key()? {
            if length > 0 {
                self.0.path.push('.');
            }
            self.0.path.push_str(&key);
            if !seen.insert(key) {
                self.0.report();
            }
            map.next_value_seed(Walk(self.0))?;
            self.0.path.truncate(length);
        }
        Ok(())
    }
}

struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_at_every_depth_and_told_once() {
        let json = br#"{"spec":{"type":"a","ports":[{"port":1},{"port":1,"port":2,"port":3}],"type":"b"},
            "metadata":{"labels":{"x":"1","x":"2"}},"a":{"port":1},"b":{"port":1}}"#;
        let found: Vec<String> = duplicate_fields(json).iter().map(ToString::to_string).collect();
        let expected = [
            r#"duplicate field "spec.ports[1].port""#,
            r#"duplicate field "spec.type""#,
            r#"duplicate field "metadata.labels.x""#,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_json_has_none() {
        for text in ["", "{", "{\"a\":1,\"a\":", "nope", "[1,2"] {
            assert_eq!(duplicate_fields(text.as_bytes()), vec![], "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(duplicate_fields(deep.as_bytes()), vec![]);
        assert_eq!(duplicate_fields(br#"{"a":{"b":1},"c":{"b":[null,true,1.5,-1,"x"]}}"#), vec![]);
    }
}

//! Pure. Values as Go prints them (`%+v`): the real server quotes patches so.

use serde_json::Value;
use std::fmt::Write as _;

/// A value as Go prints it: `map[spec:map[ports:[map[port:80]] type:<nil>]]`.
#[must_use]
pub fn go_print(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        // Writing to a String cannot fail.
        Value::Bool(_) | Value::Number(_) => drop(write!(out, "{value}")),
        Value::Array(list) => {
            out.push('[');
            for (at, value) in list.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                print(value, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                print(value, out);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_values() {
        let value = json!({ "spec": { "b": [1, "x", null, true], "a": {} }, "c": 1.5 });
        assert_eq!(go_print(&value), "map[c:1.5 spec:map[a:map[] b:[1 x <nil> true]]]");
    }
}

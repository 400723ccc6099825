//! Pure. Fields of the API's objects by their path, quickly: a large cluster has hundreds of thousands to look up.

use serde_json::Value;

/// The field that a path such as `/metadata/name` or `/podIPs/0/ip` leads to, as [`Value::pointer`] has it but for `~0` and
/// `~1`: the names on a path hold neither `~` nor `/`, and so nothing has to be copied.
pub(crate) fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut names = path.split('/');
    // What stands before the first slash is nothing.
    names.next();
    names.try_fold(object, |here, name| match here {
        Value::Object(fields) => fields.get(name),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    })
}

/// A field as text.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> Option<&'a str> {
    at(object, path).and_then(Value::as_str)
}

/// A field as a list; one that is none is an empty one.
pub(crate) fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_where_a_pointer_does() {
        let object = json!({"a": {"b": [{"c": "x"}, 7]}, "n": null});
        for path in ["", "/a", "/a/b", "/a/b/0/c", "/a/b/1", "/a/b/2", "/a/b/x", "/a/b/0/c/d", "/n", "/n/m", "/z"] {
            assert_eq!(at(&object, path), object.pointer(path), "{path}");
        }
        assert_eq!(text(&object, "/a/b/0/c"), Some("x"));
        assert_eq!((list(&object, "/a/b").len(), list(&object, "/a").len()), (2, 0));
    }
}

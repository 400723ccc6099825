//! Pure. What a request asks for: path, query and media types, read once and checked.

use std::str::FromStr;

use crate::error::ApiError;
use crate::registry::{self, KindInfo};

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Objects of a kind.
    Objects(Place),
    /// Anything else: discovery, health, reviews. The path's parts.
    Other(Vec<String>),
}

/// A collection, an object, or a subresource of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The kind.
    pub kind: &'static KindInfo,
    /// `None`: all namespaces, or a kind that lives in none.
    pub namespace: Option<String>,
    /// `None`: the collection.
    pub name: Option<String>,
    /// `status`, `scale`, `log`, ...
    pub subresource: Option<String>,
}

impl Place {
    /// The namespace as the store has it: empty for what lives in none.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("")
    }
}

/// Reads a path.
///
/// # Errors
/// When its escapes are malformed or it has too many parts for what it begins with.
pub fn target(path: &str) -> Result<Target, ApiError> {
    let parts: Vec<String> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .map(decoded)
        .collect::<Option<_>>()
        .ok_or(ApiError::NoSuchResource)?;
    let borrowed: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (group, version, rest) = match borrowed.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(Target::Other(parts)),
    };
    let (namespace, rest) = match rest {
        // `namespaces/NAME/status` is a subresource, everything else below a namespace is a kind in it.
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
        _ => (None, rest),
    };
    let Some(kind) = registry::by_plural(group, version, rest[0]) else {
        return Ok(Target::Other(parts));
    };
    let (name, subresource) = match &rest[1..] {
        [] => (None, None),
        [name] => (Some(*name), None),
        [name, subresource] => (Some(*name), Some(*subresource)),
        _ => return Err(ApiError::NoSuchResource),
    };
    if kind.namespaced != namespace.is_some() && (!kind.namespaced || name.is_some()) {
        return Err(ApiError::NoSuchResource);
    }
    Ok(Target::Objects(Place {
        kind,
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    }))
}

fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// A request's query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// From decoded pairs.
    pub fn new(pairs: Vec<(String, String)>) -> Query {
        Query(pairs)
    }

    /// The first value of a key; empty values count as absent.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// All values of a key.
    pub fn all(&self, key: &str) -> Vec<&str> {
        self.0.iter().filter(|(name, _)| name == key).map(|(_, value)| value.as_str()).collect()
    }

    /// A switch: present and neither `false` nor `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.0.iter().find(|(name, _)| name == key).is_some_and(|(_, value)| !matches!(value.as_str(), "false" | "0"))
    }

    /// A number.
    ///
    /// # Errors
    /// When the value is none.
    pub fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let number = text.parse().map_err(|_| {
            ApiError::bad_request(format!("invalid value {text:?} for the query parameter {key}: a number is needed"))
        })?;
        Ok(Some(number))
    }

    /// `dryRun=All`.
    ///
    /// # Errors
    /// When it has another value.
    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                Err(ApiError::bad_request(format!("Invalid value: {other:?}: supported values: \"All\" for dryRun")))
            }
        }
    }
}

/// How the client wants to see objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// As they are.
    Object,
    /// `as=Table`: rows that the server made.
    Table,
    /// `as=PartialObjectMetadata`, `as=PartialObjectMetadataList`.
    Metadata,
}

/// The first shape of an Accept header that this server knows.
pub fn shape(accept: &str) -> Shape {
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
            continue;
        }
        match parts.find_map(|part| part.strip_prefix("as=")) {
            Some("Table") => return Shape::Table,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Shape::Metadata,
            Some(_) => {}
            None => return Shape::Object,
        }
    }
    Shape::Object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Option<(String, String, String, String)> {
        match target(path).ok()? {
            Target::Objects(place) => Some((
                place.kind.plural.to_owned(),
                place.namespace.unwrap_or_default(),
                place.name.unwrap_or_default(),
                place.subresource.unwrap_or_default(),
            )),
            Target::Other(_) => None,
        }
    }

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        for (path, kind, namespace, name, subresource) in [
            ("/api/v1/pods", "pods", "", "", ""),
            ("/api/v1/namespaces/a/pods", "pods", "a", "", ""),
            ("/api/v1/namespaces/a/pods/p/log", "pods", "a", "p", "log"),
            ("/api/v1/namespaces", "namespaces", "", "", ""),
            ("/api/v1/namespaces/a", "namespaces", "", "a", ""),
            ("/api/v1/namespaces/a/finalize", "namespaces", "", "a", "finalize"),
            ("/api/v1/nodes/n/status", "nodes", "", "n", "status"),
            ("/apis/apps/v1/namespaces/a/deployments/d/scale", "deployments", "a", "d", "scale"),
            ("/apis/networking.k8s.io/v1/ipaddresses/fd00%3A%3A1", "ipaddresses", "", "fd00::1", ""),
        ] {
            let expected = (kind.to_owned(), namespace.to_owned(), name.to_owned(), subresource.to_owned());
            assert_eq!(place(path), Some(expected), "{path}");
        }
    }

    #[test]
    fn other_paths_are_no_objects() {
        for path in [
            "/",
            "/api",
            "/api/v1",
            "/apis/apps/v1",
            "/healthz",
            "/api/v1/things",
            "/api/v1/pods/p",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/pods/%zz",
            "/api/v1/namespaces/a/pods/p/x/y",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }

    #[test]
    fn the_accept_header_chooses_the_shape() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(shape(table), Shape::Table);
        assert_eq!(shape("application/json"), Shape::Object);
        assert_eq!(
            shape(
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            ),
            Shape::Metadata
        );
    }
}

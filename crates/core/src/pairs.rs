//! Pure. Maps whose keys are no strings, as a list of pairs: JSON objects have only string keys. For
//! `#[serde(with = "crate::pairs")]`.

use std::collections::BTreeMap;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// Writes a map as a list of `[key, value]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// Reads a list of `[key, value]`; of two pairs with the same key the last counts.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
}

//! Pure. The lists of a strategic merge patch: merged by key or by value, and put in order.

use super::{DELETE_FROM, DIRECTIVE, ELEMENT_ORDER, Object, PatchError, Place, added, merge_map};
use crate::content::schema::{Shape, Tags, schemas};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// What tells the elements of a list apart, and what they are.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a> {
    field: &'a str,
    key: Option<&'static str>,
    place: Place<'static>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(field: &'a str, shape: Option<&'static Shape>, tags: &'static Tags) -> Self {
        Self { field, key: tags.merge_key.as_deref(), place: Place::elements(shape) }
    }

    /// What tells this element apart: the key's value, or the scalar itself.
    fn identity<'v>(&self, element: &'v Value) -> Result<&'v Value, PatchError> {
        let Some(key) = self.key else { return Ok(element) };
        let missing = || PatchError::NoMergeKey { map: element.clone(), key: key.into() };
        element.get(key).ok_or_else(missing)
    }

    /// Refuses what cannot be told apart.
    fn check<'v>(&self, lists: impl Iterator<Item = &'v Value> + Clone) -> Result<(), PatchError> {
        if lists.clone().any(Value::is_array) {
            return Err(PatchError::ListOfLists);
        }
        match (lists.clone().any(Value::is_object), self.key) {
            (true, None) => Err(PatchError::NoKeyKnown { field: self.field.into() }),
            (true, Some(_)) if !lists.clone().all(Value::is_object) => {
                Err(PatchError::MixedList { list: Value::Array(lists.cloned().collect()) })
            }
            (false, Some(_)) if lists.clone().next().is_some() => {
                Err(PatchError::Type { expected: "map", received: "scalar" })
            }
            _ => Ok(()),
        }
    }
}

/// Where each identity stands in a list, first: a search of the list for each element of another takes too long.
struct Index(HashMap<String, usize>);

impl Index {
    fn of(list: &[Value], elements: Elements) -> Self {
        let mut index = Self(HashMap::with_capacity(list.len()));
        for (at, element) in list.iter().enumerate() {
            index.add(element, at, elements);
        }
        index
    }

    /// Elements without identity cannot be found.
    fn add(&mut self, element: &Value, at: usize, elements: Elements) {
        if let Ok(identity) = elements.identity(element) {
            self.0.entry(identity.to_string()).or_insert(at);
        }
    }

    fn position(&self, element: &Value, elements: Elements) -> Result<Option<usize>, PatchError> {
        Ok(self.0.get(&elements.identity(element)?.to_string()).copied())
    }
}

/// The list that a patch's list makes of the original's.
pub(super) fn merge(original: Vec<Value>, patch: Vec<Value>, elements: Elements) -> Result<Vec<Value>, PatchError> {
    elements.check(original.iter().chain(&patch))?;
    if elements.key.is_none() {
        let mut seen = HashSet::new();
        let all = original.iter().chain(&patch);
        let merged = all.filter(|value| seen.insert(value.to_string())).cloned().collect();
        return ordered(merged, &patch, &original, elements);
    }
    let (original, patch) = obey_directives(original, patch, elements)?;
    let mut merged = original.clone();
    let mut index = Index::of(&merged, elements);
    for change in &patch {
        match (index.position(change, elements)?, change) {
            (Some(at), Value::Object(change)) => {
                let old = merged[at].as_object().cloned().unwrap_or_default();
                merged[at] = Value::Object(merge_map(old, change.clone(), elements.place)?);
            }
            (_, change) => {
                if let Some(new) = added(change.clone()) {
                    index.add(&new, merged.len(), elements);
                    merged.push(new);
                }
            }
        }
    }
    ordered(merged, &patch, &original, elements)
}

/// Deletes and replaces as the patch's `$patch` elements say; gives what is left of both lists.
fn obey_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    elements: Elements,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut deleted = HashSet::new();
    let mut replace = false;
    for element in patch {
        match element.get(DIRECTIVE).map(Value::as_str) {
            None => rest.push(element),
            Some(Some("delete")) => {
                deleted.insert(elements.identity(&element)?.to_string());
            }
            Some(Some("replace")) => replace = true,
            Some(Some("merge")) => return Err(PatchError::MergeInList),
            Some(_) => {
                return Err(PatchError::UnknownDirective { directive: element[DIRECTIVE].clone(), map: element });
            }
        }
    }
    if replace {
        return Ok((rest.into_iter().filter_map(added).collect(), vec![]));
    }
    if !deleted.is_empty() {
        let gone = |element: &Value| elements.identity(element).is_ok_and(|it| deleted.contains(&it.to_string()));
        original.retain(|element| !gone(element));
    }
    Ok((original, rest))
}

/// Elements that the client knows in the client's order, the others where they stood in the server's.
fn ordered(
    merged: Vec<Value>,
    client: &[Value],
    server: &[Value],
    elements: Elements,
) -> Result<Vec<Value>, PatchError> {
    let (mut known, mut others) = (vec![], vec![]);
    let (client, server) = (Index::of(client, elements), Index::of(server, elements));
    for element in merged {
        let in_server = server.position(&element, elements)?;
        match client.position(&element, elements)? {
            Some(at) => known.push((at, in_server, element)),
            None => others.push((in_server, element)),
        }
    }
    known.sort_by_key(|(at, ..)| *at);
    others.sort_by_key(|(in_server, _)| *in_server);
    let mut all = Vec::with_capacity(known.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, in_server, element) in known {
        let before = |other: &(Option<usize>, Value)| in_server.is_some() && other.0.is_some() && other.0 < in_server;
        while let Some((_, other)) = others.next_if(before) {
            all.push(other);
        }
        all.push(element);
    }
    all.extend(others.map(|(_, other)| other));
    Ok(all)
}

/// Merges and orders the lists for which the patch has `$setElementOrder/LIST`; takes both out of the patch.
pub(super) fn apply_orders(original: &mut Object, patch: &mut Object, place: Place<'static>) -> Result<(), PatchError> {
    let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in orders {
        let order = patch.remove(&directive).unwrap_or_default();
        let field = &directive[ELEMENT_ORDER.len()..];
        let bad = || PatchError::Directive { directive: "setElementOrder list" };
        let Value::Array(order) = order else { return Err(bad()) };
        let (shape, tags) = place.field(field);
        if let (None, Place::Struct(id)) = (shape, place) {
            let structure = schemas()[id].go_name().rsplit('.').next().unwrap_or_default().to_owned();
            return Err(PatchError::UnknownField { structure, field: field.into() });
        }
        static NO_TAGS: Tags = Tags::NONE;
        let tags = tags.unwrap_or(&NO_TAGS);
        let elements = Elements::of(field, shape, tags);
        let old = take_list(original, field)?;
        let new = take_list(patch, field)?;
        check_order(new.as_deref().unwrap_or_default(), &order, elements)?;
        let server = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(added).collect(),
            (Some(old), Some(new)) if tags.merge => merge(old, new, elements)?,
            (Some(_), Some(new)) => new.into_iter().filter_map(added).collect(),
        };
        original.insert(field.into(), Value::Array(ordered(merged, &order, &server, elements)?));
    }
    Ok(())
}

fn take_list(map: &mut Object, field: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match map.remove(field) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(PatchError::Type { expected: "slice", received: type_name(&other) }),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

/// The patch's elements must stand in the order's order.
fn check_order(patch: &[Value], order: &[Value], elements: Elements) -> Result<(), PatchError> {
    let mut rest = order.iter();
    for element in patch.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
        let identity = elements.identity(element)?;
        if !order.is_empty() && !rest.any(|other| elements.identity(other) == Ok(identity)) {
            let (patch, order) = (Value::Array(patch.to_vec()), Value::Array(order.to_vec()));
            return Err(PatchError::Order { patch, order });
        }
    }
    Ok(())
}

/// `$deleteFromPrimitiveList/LIST`: takes scalars out of a list.
pub(super) fn delete_scalars(original: &mut Object, field: &str, scalars: &Value) -> Result<(), PatchError> {
    debug_assert!(!field.starts_with(DELETE_FROM));
    let Value::Array(scalars) = scalars else { return Err(PatchError::Directive { directive: "primitive list" }) };
    if let Some(Value::Array(list)) = original.get_mut(field) {
        let deleted: HashSet<String> = scalars.iter().map(Value::to_string).collect();
        list.retain(|value| !deleted.contains(&value.to_string()));
    }
    Ok(())
}

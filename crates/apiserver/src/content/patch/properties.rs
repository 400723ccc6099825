//! Properties over random objects: the patch made from a difference leads to the target, and leads there again.

use super::{DELETE_FROM, DIRECTIVE, ELEMENT_ORDER, RETAIN_KEYS, strategic_merge};
use crate::content::sample;
use crate::content::schema::{Shape, StructId, Tags, schemas};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Random choices; at its end only the smallest.
struct Tape(std::vec::IntoIter<u8>);

impl Tape {
    fn next(&mut self) -> u8 {
        self.0.next().unwrap_or(0)
    }

    /// A random object of a struct. Elements of lists that are merged differ in their key.
    fn structure(&mut self, id: StructId) -> Value {
        let mut map = Map::new();
        for (name, field) in &schemas()[id].fields {
            if self.next() > 80 {
                map.insert(name.to_string(), self.value(&field.shape, &field.tags));
            }
        }
        map.into()
    }

    fn value(&mut self, shape: &Shape, tags: &Tags) -> Value {
        let number = self.next() % 4;
        match shape {
            Shape::Struct(id) => self.structure(*id),
            Shape::Map(values) => {
                (0..number).map(|at| (format!("k{at}"), self.value(values, &Tags::NONE))).collect::<Map<_, _>>().into()
            }
            Shape::List(elements) => {
                let mut names: Vec<u8> = (0..5).collect();
                let named = (0..number).map(|_| {
                    let name = names.remove(usize::from(self.next()) % names.len());
                    self.element(elements, tags, name)
                });
                named.collect()
            }
            Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => number.into(),
            Shape::Boolean => (number > 1).into(),
            Shape::AnyObject | Shape::Any => json!({ "f:a": {} }),
            _ => format!("v{number}").into(),
        }
    }

    fn element(&mut self, shape: &Shape, tags: &Tags, name: u8) -> Value {
        let (Shape::Struct(id), Some(key)) = (shape, &tags.merge_key) else {
            return match tags.merge {
                true => format!("v{name}").into(),
                false => self.value(shape, &Tags::NONE),
            };
        };
        let mut element = self.structure(*id);
        element[&**key] = match schemas()[*id].fields[key].shape {
            Shape::Int32 | Shape::Int64 => name.into(),
            _ => format!("v{name}").into(),
        };
        element
    }
}

/// The patch that leads from one object to another, as kubectl makes it.
fn difference(id: Option<StructId>, from: &Value, to: &Value) -> Map<String, Value> {
    let (from, to) = (from.as_object().unwrap(), to.as_object().unwrap());
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, new) in to.iter().filter(|(name, new)| from.get(*name) != Some(new)) {
        let field = id.and_then(|id| schemas()[id].fields.get(name.as_str()));
        let tags = field.map_or(&Tags::NONE, |field| &field.tags);
        match (from.get(name), new) {
            (Some(old @ Value::Object(_)), Value::Object(_)) => {
                let inner = match field.map(|field| &field.shape) {
                    Some(Shape::Struct(id)) => Some(*id),
                    _ => None,
                };
                let mut part = difference(inner, old, new);
                if tags.retain_keys {
                    retain(&mut part, new);
                }
                patch.insert(name.clone(), part.into());
            }
            (Some(Value::Array(old)), Value::Array(new)) if tags.merge => {
                let Some(Shape::List(elements)) = field.map(|field| &field.shape) else { panic!("{name} is no list") };
                list_difference(&mut patch, name, elements, tags, old, new);
            }
            _ => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    patch
}

fn retain(patch: &mut Map<String, Value>, to: &Value) {
    let keys: Vec<&String> = to.as_object().unwrap().keys().collect();
    patch.insert(RETAIN_KEYS.into(), json!(keys));
}

fn list_difference(
    patch: &mut Map<String, Value>,
    name: &str,
    elements: &Shape,
    tags: &Tags,
    old: &[Value],
    new: &[Value],
) {
    let Some(key) = tags.merge_key.as_deref() else {
        let gone: Vec<&Value> = old.iter().filter(|value| !new.contains(value)).collect();
        let added: Vec<&Value> = new.iter().filter(|value| !old.contains(value)).collect();
        patch.insert(format!("{DELETE_FROM}{name}"), json!(gone));
        patch.insert(format!("{ELEMENT_ORDER}{name}"), json!(new));
        patch.insert(name.into(), json!(added));
        return;
    };
    let Shape::Struct(id) = elements else { panic!("{name} has no keys") };
    let find = |list: &[Value], element: &Value| list.iter().find(|other| other[key] == element[key]).cloned();
    let mut changes = vec![];
    for element in new {
        match find(old, element) {
            None => changes.push(element.clone()),
            Some(before) if before == *element => {}
            Some(before) => {
                let mut part = difference(Some(*id), &before, element);
                if tags.retain_keys {
                    retain(&mut part, element);
                }
                part.insert(key.into(), element[key].clone());
                changes.push(part.into());
            }
        }
    }
    let gone = old.iter().filter(|element| find(new, element).is_none());
    changes.extend(gone.map(|element| json!({ DIRECTIVE: "delete", key: element[key] })));
    patch.insert(name.into(), changes.into());
    patch.insert(format!("{ELEMENT_ORDER}{name}"), new.iter().map(|element| json!({ key: element[key] })).collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_patch_of_a_difference_leads_to_the_target_and_again(
        kind in prop::sample::select(vec!["Deployment", "Node", "Pod", "Pod", "Service", "ServiceAccount", "StatefulSet"]),
        from in prop::collection::vec(any::<u8>(), 0..6000),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..30),
    ) {
        // The target comes of almost the same choices, so that the two share much at every depth.
        let mut to = from.clone();
        for (at, byte) in changes.into_iter().filter(|_| !from.is_empty()) {
            to[at.index(from.len())] = byte;
        }
        let id = schemas().of_kind(kind).unwrap();
        let from = Tape(from.into_iter()).structure(id);
        let to = Tape(to.into_iter()).structure(id);
        let patch = Value::Object(difference(Some(id), &from, &to));
        let once = strategic_merge(kind, from, patch.clone()).unwrap();
        prop_assert_eq!(&once, &to, "patch {}", patch);
        let twice = strategic_merge(kind, once, patch.clone()).unwrap();
        prop_assert_eq!(&twice, &to, "patch {}", patch);
    }

    #[test]
    fn a_patch_of_random_json_never_panics(
        kind in any::<prop::sample::Index>(),
        from in prop::collection::vec(any::<u8>(), 0..2000),
        patch in "\\PC{0,60}",
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let gvk = kind.get(&sample::kinds()).clone();
        let id = schemas().of_kind(&gvk.kind).unwrap();
        let object = Tape(from.into_iter()).structure(id);
        let other = Tape(bytes.into_iter()).structure(id);
        let mut odd = other.clone();
        odd[&patch] = json!([[patch, null], { "$patch": patch }]);
        odd["$retainKeys"] = json!([patch]);
        let _ = strategic_merge(&gvk.kind, object.clone(), other);
        let _ = strategic_merge(&gvk.kind, object, odd);
    }
}

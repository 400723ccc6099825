//! Pure. Schemas in the form that Kubernetes publishes: a field that may be left out is not one that may be null.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::kind::{Column, Kind, Object};
use crate::{bgp, l2, pool, state};

/// A kind as the API needs to know it.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// See [`Kind::GROUP`].
    pub group: &'static str,
    /// See [`Kind::VERSION`].
    pub version: &'static str,
    /// See [`Kind::KIND`].
    pub kind: &'static str,
    /// See [`Kind::PLURAL`].
    pub plural: &'static str,
    /// See [`Kind::COLUMNS`].
    pub columns: &'static [Column],
    /// Adds the kind's schema, and those that it refers to, to a generator.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// All kinds.
pub const SERVED: [Served; 10] = [
    served::<pool::IPAddressPoolSpec>(),
    served::<l2::L2AdvertisementSpec>(),
    served::<bgp::BGPAdvertisementSpec>(),
    served::<bgp::BGPPeerSpec>(),
    served::<bgp::BFDProfileSpec>(),
    served::<bgp::CommunitySpec>(),
    served::<state::ServiceL2StatusSpec>(),
    served::<state::ServiceBGPStatusSpec>(),
    served::<state::ConfigurationStateSpec>(),
    served::<state::BGPSessionStateSpec>(),
];

const fn served<S: Kind>() -> Served {
    Served {
        group: S::GROUP,
        version: S::VERSION,
        kind: S::KIND,
        plural: S::PLURAL,
        columns: S::COLUMNS,
        schema: |generator| generator.subschema_for::<Object<S>>(),
    }
}

/// All definitions, by name; references between them are `#/components/schemas/NAME`.
pub fn definitions() -> Map<String, Value> {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.clear();
    let mut generator = settings.into_generator();
    for served in &SERVED {
        (served.schema)(&mut generator);
    }
    let mut definitions = generator.take_definitions(false);
    definitions.values_mut().for_each(plain);
    definitions
}

/// Takes out of a schema that values may be null, and defaults that say nothing. What has neither stays as it is.
pub fn plain(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(forms)) = fields.get_mut("anyOf") {
        forms.retain(|form| form["type"] != "null");
        if let [Value::Object(only)] = forms.as_slice() {
            let only = only.clone();
            fields.remove("anyOf");
            fields.extend(only);
        }
    }
    if fields.get("default").is_some_and(says_nothing) {
        fields.remove("default");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            plain(inner);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(plain);
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

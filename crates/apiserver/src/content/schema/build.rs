//! Pure. Reads the JSON schemas of `k8s-openapi` and of MetalLB's kinds into shapes.

use super::{Field, Schemas, Shape, Struct, StructId, tags};
use crate::content::Gvk;
use k8s_openapi::api::{
    apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
    autoscaling::v1 as autoscaling, coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, networking::v1 as networking, policy::v1 as policy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value};
use signpost_metallb::schema as metallb;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const DEFINITIONS: &str = "#/components/schemas/";

type Root = fn(&mut SchemaGenerator) -> Schema;

fn root<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Group, version, kind and schema of what the API serves and takes as a body.
fn roots() -> Vec<(&'static str, &'static str, &'static str, Root)> {
    vec![
        ("", "v1", "Binding", root::<core::Binding> as Root),
        ("", "v1", "ConfigMap", root::<core::ConfigMap>),
        ("", "v1", "Endpoints", root::<core::Endpoints>),
        ("", "v1", "Event", root::<core::Event>),
        ("", "v1", "Namespace", root::<core::Namespace>),
        ("", "v1", "Node", root::<core::Node>),
        ("", "v1", "Pod", root::<core::Pod>),
        ("", "v1", "Secret", root::<core::Secret>),
        ("", "v1", "Service", root::<core::Service>),
        ("", "v1", "ServiceAccount", root::<core::ServiceAccount>),
        ("apps", "v1", "ControllerRevision", root::<apps::ControllerRevision>),
        ("apps", "v1", "Deployment", root::<apps::Deployment>),
        ("apps", "v1", "ReplicaSet", root::<apps::ReplicaSet>),
        ("apps", "v1", "StatefulSet", root::<apps::StatefulSet>),
        ("authentication.k8s.io", "v1", "SelfSubjectReview", root::<authentication::SelfSubjectReview>),
        ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", root::<authorization::SelfSubjectAccessReview>),
        ("authorization.k8s.io", "v1", "SelfSubjectRulesReview", root::<authorization::SelfSubjectRulesReview>),
        ("autoscaling", "v1", "Scale", root::<autoscaling::Scale>),
        ("coordination.k8s.io", "v1", "Lease", root::<coordination::Lease>),
        ("discovery.k8s.io", "v1", "EndpointSlice", root::<discovery::EndpointSlice>),
        ("events.k8s.io", "v1", "Event", root::<events::Event>),
        ("networking.k8s.io", "v1", "IPAddress", root::<networking::IPAddress>),
        ("networking.k8s.io", "v1", "NetworkPolicy", root::<networking::NetworkPolicy>),
        ("networking.k8s.io", "v1", "ServiceCIDR", root::<networking::ServiceCIDR>),
        ("policy", "v1", "Eviction", root::<policy::Eviction>),
        ("", "v1", "Status", root::<meta::Status>),
        ("", "v1", "DeleteOptions", root::<meta::DeleteOptions>),
    ]
}

/// Definitions that no kind refers to, but every list does.
fn extras(generator: &mut SchemaGenerator) {
    generator.subschema_for::<meta::ListMeta>();
}

pub(super) fn build() -> Schemas {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.clear();
    let mut generator = settings.into_generator();
    let custom = metallb::SERVED.iter().map(|served| (served.group, served.version, served.kind, served.schema));
    let kinds: Vec<(Gvk, Arc<str>)> = roots()
        .into_iter()
        .chain(custom)
        .map(|(group, version, kind, root)| {
            let schema = root(&mut generator);
            let name = schema.as_object().and_then(reference).expect("k8s-openapi's kinds are definitions");
            (Gvk::new(group, version, kind), name.into())
        })
        .collect();
    extras(&mut generator);
    let definitions: BTreeMap<Arc<str>, Value> =
        generator.take_definitions(false).into_iter().map(|(name, schema)| (name.into(), published(schema))).collect();
    let with_fields = definitions.iter().filter(|(_, schema)| schema.get("properties").is_some());
    let by_name: HashMap<Arc<str>, StructId> =
        with_fields.clone().enumerate().map(|(at, (name, _))| (name.clone(), StructId(at))).collect();
    let reader = Reader { definitions: &definitions, by_name: &by_name };
    let structs = with_fields.map(|(name, schema)| reader.structure(name, schema)).collect();
    let by_gvk = kinds.into_iter().map(|(gvk, name)| (gvk, by_name[&name])).collect();
    Schemas { structs, by_name, by_gvk, definitions }
}

fn published(mut schema: Value) -> Value {
    metallb::plain(&mut schema);
    schema
}

/// The definition that a schema refers to.
fn reference(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(DEFINITIONS)
}

struct Reader<'a> {
    definitions: &'a BTreeMap<Arc<str>, Value>,
    by_name: &'a HashMap<Arc<str>, StructId>,
}

impl Reader<'_> {
    fn structure(&self, name: &Arc<str>, schema: &Value) -> Struct {
        let properties = schema["properties"].as_object().expect("only schemas with fields come here");
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = properties.iter().map(|(field, schema)| {
            let mut tags = tags::of(name, field);
            tags.always |= required.contains(&field.as_str());
            // A custom resource keeps what is written, whatever it says.
            tags.pointer |= name.starts_with("io.metallb.");
            (Arc::from(field.as_str()), Field { shape: self.shape(schema), tags })
        });
        Struct { name: name.clone(), fields: fields.collect(), tags: tags::of(name, "*") }
    }

    fn shape(&self, schema: &Value) -> Shape {
        let Some(schema) = schema.as_object() else { return Shape::Any };
        if let Some(name) = reference(schema) {
            return self.referred(name);
        }
        let format = schema.get("format").and_then(Value::as_str);
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => match schema.get("additionalProperties") {
                Some(values) => Shape::Map(Box::new(self.shape(values))),
                None => Shape::AnyObject,
            },
            Some("array") => Shape::List(Box::new(schema.get("items").map_or(Shape::Any, |items| self.shape(items)))),
            Some("string") if format == Some("byte") => Shape::Bytes,
            Some("string") => Shape::String,
            Some("integer") if format == Some("int32") => Shape::Int32,
            Some("integer") => Shape::Int64,
            Some("number") => Shape::Number,
            Some("boolean") => Shape::Boolean,
            _ => Shape::Any,
        }
    }

    fn referred(&self, name: &str) -> Shape {
        if let Some(id) = self.by_name.get(name) {
            return Shape::Struct(*id);
        }
        match name {
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => Shape::IntOrString,
            "io.k8s.apimachinery.pkg.api.resource.Quantity" => Shape::Quantity,
            "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => Shape::Time,
            "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => Shape::MicroTime,
            _ => self.definitions.get(name).map_or(Shape::Any, |schema| self.shape(schema)),
        }
    }
}

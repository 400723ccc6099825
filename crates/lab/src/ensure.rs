//! Objects that a lab has from its start.

use kube::Client;
use kube::api::{Api, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::Value;

use crate::error::LabError;

/// Creates an object unless a former life of the lab has left one of its name.
///
/// # Errors
/// The API's.
pub(crate) async fn ensure(client: &Client, object: &Value, plural: &str) -> Result<(), LabError> {
    create(client, object, plural).await.map(drop)
}

/// Creates an object, or changes the one that there is to this.
///
/// # Errors
/// The API's.
pub(crate) async fn put(client: &Client, object: &Value, plural: &str) -> Result<(), LabError> {
    if create(client, object, plural).await? {
        return Ok(());
    }
    let (api, name, what) = place(client, object, plural, "change");
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(object)).await;
    patched.map(drop).map_err(LabError::request(what))
}

/// Whether it was not there before.
async fn create(client: &Client, object: &Value, plural: &str) -> Result<bool, LabError> {
    let (api, _, what) = place(client, object, plural, "create");
    let typed = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError);
    let typed = typed.map_err(LabError::request(what.clone()))?;
    match api.create(&PostParams::default(), &typed).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(LabError::request(what)(error)),
    }
}

fn place(client: &Client, object: &Value, plural: &str, doing: &str) -> (Api<DynamicObject>, String, String) {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, text("kind")), plural);
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = format!("{doing} {} {name}", text("kind"));
    (api, name, what)
}

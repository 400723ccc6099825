//! Pure. From a pod template to a pod, and from an owner to the reference to it.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// A reference that says: this object controls.
pub fn controlled_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod as its template says, controlled by `owner`, still without a name.
pub fn pod<K: Resource<DynamicType = ()>>(template: &PodTemplateSpec, owner: &K) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.meta().namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controlled_by(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The first part of the names made for an owner's objects. Cut so that what the API appends still fits.
pub fn name_prefix(owner: &str) -> String {
    const LONGEST: usize = 57;
    let cut = owner.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LONGEST).last();
    format!("{}-", &owner[..cut.unwrap_or(0)])
}

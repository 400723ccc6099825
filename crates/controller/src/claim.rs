//! Which objects belong to a workload: those that it controls and that match its selector. Matching ones that nobody
//! controls are adopted, controlled ones that no longer match are released.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use serde_json::json;

use crate::cache::uid_of;
use crate::context::{Context, WriteError, Written};
use crate::{pods, selector, template};

/// What to do about one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is the workload's.
    Ours,
    /// It becomes the workload's.
    Adopt,
    /// It is no longer the workload's.
    Release,
    /// It is not the workload's business.
    Foreign,
}

/// Whether an object belongs to a workload; `owner_uid` is the workload's, `may_adopt` is false while it is being deleted.
pub fn claim<K: Resource>(object: &K, owner_uid: &str, selector: &LabelSelector, may_adopt: bool) -> Claim {
    let meta = object.meta();
    let matches = selector::matches(meta.labels.as_ref(), selector);
    match pods::controller(meta.owner_references.as_ref()) {
        Some(owner) if owner.uid == owner_uid && matches => Claim::Ours,
        Some(owner) if owner.uid == owner_uid && may_adopt => Claim::Release,
        Some(owner) if owner.uid == owner_uid => Claim::Ours,
        Some(_) => Claim::Foreign,
        None if matches && may_adopt && meta.deletion_timestamp.is_none() => Claim::Adopt,
        None => Claim::Foreign,
    }
}

/// The objects of a workload among `candidates`; adopts and releases.
///
/// # Errors
/// The write that failed.
pub async fn claimed<K: Written, O: Resource<DynamicType = ()>>(
    context: &Context,
    owner: &O,
    selector: &LabelSelector,
    candidates: Vec<Arc<K>>,
) -> Result<Vec<Arc<K>>, WriteError> {
    let may_adopt = owner.meta().deletion_timestamp.is_none();
    let mut ours = Vec::with_capacity(candidates.len());
    for object in candidates {
        match claim(object.as_ref(), uid_of(owner), selector, may_adopt) {
            Claim::Ours => ours.push(object),
            Claim::Foreign => {}
            Claim::Adopt => {
                let mut owners = object.meta().owner_references.clone().unwrap_or_default();
                owners.push(template::controlled_by(owner));
                ours.push(Arc::new(context.patch(object.as_ref(), &owners_patch(object.as_ref(), &owners)).await?));
            }
            Claim::Release => {
                let mut owners = object.meta().owner_references.clone().unwrap_or_default();
                owners.retain(|reference| reference.uid != uid_of(owner));
                match context.patch(object.as_ref(), &owners_patch(object.as_ref(), &owners)).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
        }
    }
    Ok(ours)
}

/// A merge patch that sets the owners of this very version of an object.
pub fn owners_patch<K: Resource>(object: &K, owners: &[OwnerReference]) -> serde_json::Value {
    let meta = object.meta();
    json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners,
    }})
}

//! The records of ownership: one Lease per address, written only when the owner changes, and only as of the version that was
//! seen. Nothing renews them: who lives, heartbeats say.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use signpost_core::announce::ownership::Step;
use signpost_metallb::NAMESPACE;

const PREFIX: &str = "l2-";
const ADDRESS: &str = "signpost.dev/address";

/// The name of an address' record.
pub fn name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{PREFIX}{address}"),
        // A name must not end with a hyphen, as the short form may.
        IpAddr::V6(address) => format!("{PREFIX}{}", address.segments().map(|part| format!("{part:04x}")).join("-")),
    }
}

/// The address of a record; `None`: a Lease of somebody else.
pub fn address(lease: &Lease) -> Option<IpAddr> {
    let address: IpAddr = lease.metadata.annotations.as_ref()?.get(ADDRESS)?.parse().ok()?;
    (lease.metadata.name.as_deref() == Some(name(address).as_str())).then_some(address)
}

/// Who has the address; empty: nobody.
pub fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// What became of a step.
pub enum Written {
    /// The record is so now.
    Record(Lease),
    /// The record is gone.
    Gone(IpAddr),
    /// Somebody else wrote first: it is so now.
    Lost(IpAddr, Option<Lease>),
}

/// Does a step.
///
/// # Errors
/// The API's, but for a conflict.
pub async fn write(client: Client, step: Step, seen: Option<Arc<Lease>>, me: Arc<str>) -> kube::Result<Written> {
    let api: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let (address, holder) = match step {
        Step::Claim(address) => (address, me),
        Step::HandOver(address, to) => (address, to.unwrap_or_default()),
        Step::Forget(address) => {
            return match api.delete(&name(address), &DeleteParams::default()).await {
                Ok(_) => Ok(Written::Gone(address)),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Written::Gone(address)),
                Err(error) => Err(error),
            };
        }
    };
    let lease = record(address, &holder, seen.as_deref());
    let written = match seen {
        Some(_) => api.replace(&name(address), &PostParams::default(), &lease).await,
        None => api.create(&PostParams::default(), &lease).await,
    };
    match written {
        Ok(lease) => Ok(Written::Record(lease)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            Ok(Written::Lost(address, api.get_opt(&name(address)).await?))
        }
        Err(error) => Err(error),
    }
}

fn record(address: IpAddr, holder: &str, seen: Option<&Lease>) -> Lease {
    let now = MicroTime(Timestamp::now());
    let metadata = seen.map_or_else(
        || ObjectMeta {
            name: Some(name(address)),
            namespace: Some(NAMESPACE.to_owned()),
            annotations: Some([(ADDRESS.to_owned(), address.to_string())].into()),
            ..ObjectMeta::default()
        },
        |seen| seen.metadata.clone(),
    );
    let moves = seen.and_then(|seen| seen.spec.as_ref()).and_then(|spec| spec.lease_transitions).unwrap_or(0);
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_transitions: Some(moves.saturating_add(i32::from(seen.is_some()))),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    };
    Lease { metadata, spec: Some(spec) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_address_and_name() {
        for text in ["172.18.15.200", "fd00:172:18::15:200", "fd00::"] {
            let lease = record(text.parse().unwrap(), "n1", None);
            let name = lease.metadata.name.clone().unwrap();
            assert!(!name.ends_with('-') && name.len() < 64, "{name}");
            assert_eq!((address(&lease), holder(&lease)), (text.parse().ok(), "n1"));
            let again = record(text.parse().unwrap(), "n2", Some(&lease));
            let moves = again.spec.as_ref().and_then(|spec| spec.lease_transitions);
            assert_eq!((holder(&again), moves), ("n2", Some(1)));
        }
        let mut foreign = record("10.0.0.1".parse().unwrap(), "n1", None);
        foreign.metadata.name = Some("kube-controller-manager".into());
        assert_eq!(address(&foreign), None);
    }
}

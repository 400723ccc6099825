//! What this node says of the configuration: a ConfigurationState per node and way of announcing. The controller's own speaks
//! of pools.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use signpost_metallb::convert::Fault;
use signpost_metallb::state::{ConfigurationStateSpec, ConfigurationStateStatus};
use signpost_metallb::{ConfigurationState, NAMESPACE};
use tokio::sync::watch;

/// Faults in words; empty: there are none.
pub fn problems(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{}: {}", fault.name, fault.problem)).collect::<Vec<_>>().join("; ")
}

/// Tells a part's problems whenever they change, until the sender is gone.
pub async fn follow(client: Client, node: Arc<str>, part: &'static str, mut problems: watch::Receiver<String>) {
    loop {
        let now = problems.borrow_and_update().clone();
        let missed = tell(&client, &node, part, &now).await.is_err();
        tokio::select! {
            changed = problems.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(super::RETRY), if missed => {}
        }
    }
}

/// Faults with the kind of the objects that they are of.
pub fn of_kind(kind: &str, faults: &[Fault]) -> Vec<Fault> {
    let named = |fault: &Fault| Fault { name: format!("{kind} {}", fault.name).into(), ..fault.clone() };
    faults.iter().map(named).collect()
}

/// Writes the state of this node's part (`l2` or `bgp`).
///
/// # Errors
/// The API's.
pub async fn tell(client: &Client, node: &str, part: &str, problems: &str) -> kube::Result<()> {
    let api: Api<ConfigurationState> = Api::namespaced(client.clone(), NAMESPACE);
    let name = format!("speaker-{part}-{node}");
    let status = ConfigurationStateStatus {
        result: if problems.is_empty() { "Valid" } else { "Invalid" }.to_owned(),
        last_error: problems.to_owned(),
        conditions: Vec::new(),
    };
    let mut object = match api.get_opt(&name).await? {
        Some(object) => object,
        None => {
            let label = |key: &str, value: &str| (format!("metallb.io/{key}"), value.to_owned());
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                labels: Some([label("component-type", "speaker"), label("node-name", node)].into()),
                ..ObjectMeta::default()
            };
            api.create(&PostParams::default(), &ConfigurationState::new(metadata, ConfigurationStateSpec {})).await?
        }
    };
    if object.status.as_ref() != Some(&status) {
        object.status = Some(status);
        api.replace_status(&name, &PostParams::default(), &object).await?;
    }
    Ok(())
}

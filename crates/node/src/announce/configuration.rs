//! What this node says of the configuration: a ConfigurationState per node and way of announcing. The controller's own speaks
//! of pools.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use signpost_metallb::convert::Fault;
use signpost_metallb::state::{ConfigurationStateSpec, ConfigurationStateStatus};
use signpost_metallb::{ConfigurationState, NAMESPACE};
use tokio::sync::watch;

/// What a part says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What cannot be used of the configuration; empty: nothing.
    pub problems: String,
    /// What else it tells, as the type of a condition, and the reason if it does not hold.
    pub aspect: (&'static str, &'static str),
    /// Why it does not hold; empty: it does.
    pub trouble: String,
}

/// Faults in words; empty: there are none.
pub fn problems(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{}: {}", fault.name, fault.problem)).collect::<Vec<_>>().join("; ")
}

/// Tells what a part says whenever it changes, until the sender is gone.
pub async fn follow(client: Client, node: Arc<str>, part: &'static str, mut reports: watch::Receiver<Report>) {
    loop {
        let now = reports.borrow_and_update().clone();
        let missed = tell(&client, &node, part, &now).await.is_err();
        tokio::select! {
            changed = reports.changed() => if changed.is_err() { return },
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
pub async fn tell(client: &Client, node: &str, part: &str, report: &Report) -> kube::Result<()> {
    let api: Api<ConfigurationState> = Api::namespaced(client.clone(), NAMESPACE);
    let name = format!("speaker-{part}-{node}");
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
    let before = object.status.iter().flat_map(|status| &status.conditions).find(|one| one.type_ == report.aspect.0);
    let status = ConfigurationStateStatus {
        result: if report.problems.is_empty() { "Valid" } else { "Invalid" }.to_owned(),
        last_error: report.problems.clone(),
        conditions: vec![condition(report, before)],
    };
    if object.status.as_ref() != Some(&status) {
        object.status = Some(status);
        api.replace_status(&name, &PostParams::default(), &object).await?;
    }
    Ok(())
}

fn condition(report: &Report, before: Option<&Condition>) -> Condition {
    let (type_, reason) = report.aspect;
    let (status, reason) = if report.trouble.is_empty() { ("True", "AsWanted") } else { ("False", reason) };
    let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: report.trouble.clone(),
        last_transition_time: since.unwrap_or_else(|| Time(Timestamp::now())),
        observed_generation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_the_time_since_when_it_has_been_so() {
        let report = |trouble: &str| Report {
            problems: String::new(),
            aspect: ("SessionsEstablished", "SessionDown"),
            trouble: trouble.to_owned(),
        };
        let well = condition(&report(""), None);
        assert_eq!((well.status.as_str(), well.reason.as_str()), ("True", "AsWanted"));
        let long_ago = Time(Timestamp::UNIX_EPOCH);
        let former = Condition { last_transition_time: long_ago.clone(), ..well };
        assert_eq!(condition(&report(""), Some(&former)).last_transition_time, long_ago);
        let ill = condition(&report("BGPPeer a: no answer"), Some(&former));
        assert_eq!((ill.status.as_str(), ill.reason.as_str()), ("False", "SessionDown"));
        assert_ne!(ill.last_transition_time, long_ago);
    }
}

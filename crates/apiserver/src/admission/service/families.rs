//! Pure. `ipFamilyPolicy` and `ipFamilies`: what the client said, completed by what the cluster has.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Type, has_selector, invalid_policy, is_headless, text, texts};
use crate::error::Cause;
use crate::object;

fn family_name(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

fn other(family: &str) -> &'static str {
    family_name(family != "IPv4")
}

/// The family's name of an address.
pub(super) fn family_of(address: &str) -> Option<&'static str> {
    address.parse::<IpAddr>().ok().map(|address| family_name(address.is_ipv4()))
}

fn set(service: &mut Value, key: &str, value: Value) {
    object::child(service, "spec").insert(key.to_owned(), value);
}

/// Completes the families. `available`: the cluster's, the primary first.
///
/// # Errors
/// What does not fit together or is not there.
pub(super) fn complete(service: &mut Value, old: Option<&Value>, available: &[&'static str]) -> Result<(), Vec<Cause>> {
    if Type::of(service) == Type::ExternalName || prefers_dual_as_before(service, old) {
        return Ok(());
    }
    default_policy(service, old);
    let mut causes = Vec::new();
    if let Some(old) = old {
        reduce(service, old, &mut causes);
    }
    if text(service, "ipFamilyPolicy") == "SingleStack" {
        for (key, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if texts(service, key).len() == 2 {
                let detail =
                    format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                causes.push(invalid_policy(service, &detail));
            }
        }
    }
    let mut families: Vec<String> = texts(service, "ipFamilies").into_iter().map(str::to_owned).collect();
    infer_from_addresses(service, &mut families, available, &mut causes);
    if !causes.is_empty() {
        return Err(causes);
    }
    let any_cluster = is_headless(service) && !has_selector(service);
    if !any_cluster {
        check_available(service, &families, available)?;
    }
    if families.is_empty() {
        families.push(available[0].to_owned());
    }
    let dual = text(service, "ipFamilyPolicy") != "SingleStack";
    if dual && families.len() == 1 && (any_cluster || available.len() == 2) {
        families.push(other(&families[0]).to_owned());
    }
    set(service, "ipFamilies", json!(families));
    Ok(())
}

/// A Service that prefers both and is left alone is neither extended nor reduced when the cluster has changed.
fn prefers_dual_as_before(service: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let same = |key| object::at(old, &["spec", key]) == object::at(service, &["spec", key]);
    Type::of(old) != Type::ExternalName
        && text(old, "ipFamilyPolicy") == "PreferDualStack"
        && ["ipFamilyPolicy", "clusterIP", "clusterIPs", "ipFamilies"].into_iter().all(same)
}

fn default_policy(service: &mut Value, old: Option<&Value>) {
    if !text(service, "ipFamilyPolicy").is_empty() {
        return;
    }
    let before = old.map_or("", |old| text(old, "ipFamilyPolicy"));
    let policy = if !before.is_empty() {
        before
    } else if is_headless(service) && !has_selector(service) {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    set(service, "ipFamilyPolicy", policy.into());
}

/// To single stack means to give up the second address; anything else must not lose it.
fn reduce(service: &mut Value, old: &Value, causes: &mut Vec<Cause>) {
    for (key, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let before: Vec<String> = texts(old, key).into_iter().map(str::to_owned).collect();
        let after: Vec<String> = texts(service, key).into_iter().map(str::to_owned).collect();
        if text(service, "ipFamilyPolicy") == "SingleStack" {
            if before == after && after.len() > 1 {
                set(service, key, json!([after[0]]));
            }
        } else if !after.is_empty() && after.len() < before.len() && before[0] == after[0] {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            causes.push(invalid_policy(service, &detail));
        }
    }
}

fn infer_from_addresses(service: &Value, families: &mut Vec<String>, available: &[&str], causes: &mut Vec<Cause>) {
    for (index, address) in texts(service, "clusterIPs").into_iter().enumerate().skip(families.len()) {
        let Some(family) = family_of(address) else { break };
        if available.contains(&family) {
            families.push(family.to_owned());
        } else {
            let value = object::at(service, &["spec", "clusterIPs"]).cloned().unwrap_or(Value::Null);
            let detail = format!("{family} is not configured on this cluster");
            causes.push(Cause::invalid(format!("spec.clusterIPs[{index}]"), value, detail));
        }
    }
}

fn check_available(service: &Value, families: &[String], available: &[&str]) -> Result<(), Vec<Cause>> {
    let mut causes = Vec::new();
    if text(service, "ipFamilyPolicy") == "RequireDualStack" && available.len() < 2 {
        causes.push(invalid_policy(service, "this cluster is not configured for dual-stack services"));
    }
    for (index, family) in families.iter().enumerate() {
        if !available.contains(&family.as_str()) {
            causes.push(Cause::invalid(
                format!("spec.ipFamilies[{index}]"),
                family.as_str(),
                "not configured on this cluster",
            ));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}

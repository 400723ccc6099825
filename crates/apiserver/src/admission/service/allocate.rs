//! Gives a Service its cluster addresses and node ports, or takes those that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};
use signpost_core::allocator::AddressError;

use super::families::{self, family_of};
use super::{Type, is_headless, needs_health_check_port, ports, texts};
use crate::error::{ApiError, Cause};
use crate::object;
use crate::random;
use crate::registry;
use crate::store::Transaction;
use crate::store::allocations::{Holding, holdings, port};

/// Completes the families, then takes addresses and ports. What the Service holds already stays its own.
///
/// # Errors
/// 422 when something named is taken or out of range; 500 when nothing is left.
pub fn allocate(transaction: &mut Transaction<'_>, old: Option<&Value>, service: &mut Value) -> Result<(), ApiError> {
    let available: Vec<&'static str> = transaction
        .allocations()
        .addresses
        .iter()
        .map(|allocator| if allocator.range().addr().is_ipv4() { "IPv4" } else { "IPv6" })
        .collect();
    let name = object::name(service).to_owned();
    let invalid = |causes| ApiError::Invalid { kind: registry::known("Service"), name: name.clone(), causes };
    families::complete(service, old, &available).map_err(invalid)?;
    let held = old.map_or_else(BTreeSet::new, holdings);
    addresses(transaction, &held, &available, service)?.map_err(|cause| invalid(vec![cause]))?;
    node_ports(transaction, &held, service)?.map_err(|cause| invalid(vec![cause]))?;
    health_check_port(transaction, &held, service)
}

/// An inner error is the client's, an outer one the server's.
type Outcome = Result<Result<(), Cause>, ApiError>;

fn addresses(
    transaction: &mut Transaction<'_>,
    held: &BTreeSet<Holding>,
    available: &[&'static str],
    service: &mut Value,
) -> Outcome {
    if !Type::of(service).needs_cluster_ip() || is_headless(service) {
        return Ok(Ok(()));
    }
    let families: Vec<String> = texts(service, "ipFamilies").into_iter().map(str::to_owned).collect();
    let asked: Vec<String> = texts(service, "clusterIPs").into_iter().map(str::to_owned).collect();
    let mut addresses = Vec::new();
    // Those named first: what is given out freely must not be one of them.
    for (index, family) in families.iter().enumerate() {
        let named = asked.get(index).filter(|address| !address.is_empty());
        let Some(network) = available.iter().position(|available| available == family) else {
            continue;
        };
        let address = match named.map(|named| (named, named.parse::<IpAddr>())) {
            Some((_, Ok(address))) if held.contains(&Holding::Address(address)) => address,
            Some((named, Ok(address))) => {
                if let Err(error) = transaction.reserve_address(network, address) {
                    let range = transaction.allocations().addresses[network].range();
                    let reason = match error {
                        AddressError::NotInRange { .. } if !range.contains(&address) => {
                            "the provided network does not match the current range".to_owned()
                        }
                        error => error.to_string(),
                    };
                    let detail = format!("failed to allocate IP {named}: {reason}");
                    return Ok(Err(Cause::invalid("spec.clusterIPs", json!(asked), detail)));
                }
                address
            }
            _ => transaction
                .allocate_address(network, random::number())
                .map_err(|error| ApiError::Internal { message: format!("failed to allocate a serviceIP: {error}") })?,
        };
        addresses.push(address.to_string());
    }
    let spec = object::child(service, "spec");
    if let Some(first) = addresses.first() {
        spec.insert("clusterIP".to_owned(), first.as_str().into());
    }
    spec.insert("clusterIPs".to_owned(), json!(addresses));
    Ok(Ok(()))
}

fn wants_node_ports(service: &Value) -> bool {
    match Type::of(service) {
        Type::NodePort => true,
        Type::LoadBalancer => {
            object::at(service, &["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool) != Some(false)
        }
        _ => false,
    }
}

fn node_ports(transaction: &mut Transaction<'_>, held: &BTreeSet<Holding>, service: &mut Value) -> Outcome {
    if !Type::of(service).is_external() {
        return Ok(Ok(()));
    }
    let asked: Vec<(i64, String, i64)> = ports(service)
        .iter()
        .map(|port| {
            let number = |key| object::number(port, &[key]).unwrap_or(0);
            (number("port"), object::text(port, &["protocol"]).unwrap_or("TCP").to_owned(), number("nodePort"))
        })
        .collect();
    let mut given: Vec<i64> = vec![0; asked.len()];
    let mut taken: BTreeSet<i64> = BTreeSet::new();
    for (index, (_, _, node_port)) in asked.iter().enumerate().filter(|(_, (_, _, node_port))| *node_port != 0) {
        if let Some(holding) = port(*node_port)
            && !held.contains(&Holding::Port(holding))
            && taken.insert(*node_port)
            && let Err(error) = transaction.reserve_port(holding)
        {
            return Ok(Err(Cause::invalid(format!("spec.ports[{index}].nodePort"), *node_port, error.to_string())));
        }
        given[index] = *node_port;
    }
    if wants_node_ports(service) {
        allocate_missing(transaction, &asked, &mut given)?;
    }
    let ports = object::child(service, "spec").get_mut("ports").and_then(Value::as_array_mut);
    for (port, node_port) in ports.into_iter().flatten().zip(given) {
        if node_port != 0 {
            object::fields(port).insert("nodePort".to_owned(), node_port.into());
        }
    }
    Ok(Ok(()))
}

/// The same port of two protocols gets the same node port.
fn allocate_missing(
    transaction: &mut Transaction<'_>,
    asked: &[(i64, String, i64)],
    given: &mut [i64],
) -> Result<(), ApiError> {
    let mut of_port: BTreeMap<i64, i64> = BTreeMap::new();
    for (index, (number, _, _)) in asked.iter().enumerate() {
        if given[index] != 0 {
            of_port.entry(*number).or_insert(given[index]);
        }
    }
    for (index, (number, protocol, _)) in asked.iter().enumerate() {
        if given[index] != 0 {
            continue;
        }
        let shared = of_port.get(number).copied().filter(|shared| {
            !asked.iter().zip(given.iter()).any(|((_, other, _), given)| given == shared && other == protocol)
        });
        given[index] = match shared {
            Some(shared) => shared,
            None => {
                let port = transaction.allocate_port(random::number()).map_err(|error| ApiError::Internal {
                    message: format!("failed to allocate a nodePort: {error}"),
                })?;
                of_port.entry(*number).or_insert(i64::from(port.get()));
                i64::from(port.get())
            }
        };
    }
    Ok(())
}

fn health_check_port(
    transaction: &mut Transaction<'_>,
    held: &BTreeSet<Holding>,
    service: &mut Value,
) -> Result<(), ApiError> {
    if !needs_health_check_port(service) {
        return Ok(());
    }
    let asked = object::number(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
    let failed =
        |what: String, error: &dyn std::fmt::Display| ApiError::Internal { message: format!("{what}: {error}") };
    match port(asked) {
        Some(named) if held.contains(&Holding::Port(named)) => {}
        Some(named) => transaction
            .reserve_port(named)
            .map_err(|error| failed(format!("failed to allocate requested HealthCheck NodePort {named}"), &error))?,
        None => {
            let given = transaction
                .allocate_port(random::number())
                .map_err(|error| failed("failed to allocate a HealthCheck NodePort".to_owned(), &error))?;
            object::child(service, "spec").insert("healthCheckNodePort".to_owned(), given.get().into());
        }
    }
    Ok(())
}

/// Whether every named address is of the family at its place.
pub(super) fn mismatched(service: &Value) -> Option<(usize, String)> {
    let families = texts(service, "ipFamilies");
    texts(service, "clusterIPs").into_iter().zip(families).enumerate().find_map(|(index, (address, family))| {
        let fits = address.is_empty() || family_of(address).is_none_or(|of| of == family);
        (!fits).then(|| (index, format!("expected an {family} value as indicated by `ipFamilies[{index}]`")))
    })
}

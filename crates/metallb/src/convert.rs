//! Pure. From objects to what `core` decides by: checked, and what cannot be used told in words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use signpost_core::announce::advertise::Advertisement;
use signpost_core::labels::{Labels, Requirement, Selector};
use signpost_core::load_balancer::{AddressRange, Allocation, Pool};

use crate::bgp::BGPAdvertisement;
use crate::l2::L2Advertisement;
use crate::pool::{IPAddressPool, ServiceAllocation};

/// Why an object cannot be used, or not as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The object's name.
    pub name: Arc<str>,
    /// What is wrong, for its owner.
    pub problem: String,
}

/// Pools that can be used; of one that was spoiled the last good form stays in force as long as this lives.
#[derive(Debug, Default)]
pub struct Pools {
    good: BTreeMap<Arc<str>, Pool>,
}

impl Pools {
    /// Reads all pools anew. Of two that overlap the older one stays. Sorted by name.
    pub fn update(&mut self, objects: &[Arc<IPAddressPool>]) -> (Vec<Pool>, Vec<Fault>) {
        let mut objects: Vec<&Arc<IPAddressPool>> = objects.iter().collect();
        objects.sort_by_key(|object| (object.metadata.creation_timestamp.clone().map(|time| time.0), object.name()));
        let mut kept: Vec<Pool> = Vec::new();
        let mut faults = Vec::new();
        for object in objects {
            let name: Arc<str> = object.name().into();
            let read = pool(object).and_then(|pool| apart(pool, &kept));
            let usable = match read {
                Ok(pool) => Some(pool),
                Err(problem) => {
                    faults.push(Fault { name: name.clone(), problem });
                    let former = self.good.get(&name).cloned();
                    former.and_then(|pool| apart(pool, &kept).ok())
                }
            };
            kept.extend(usable);
        }
        self.good = kept.iter().map(|pool| (pool.name.clone(), pool.clone())).collect();
        kept.sort_by(|one, two| one.name.cmp(&two.name));
        (kept, faults)
    }
}

fn apart(pool: Pool, others: &[Pool]) -> Result<Pool, String> {
    for other in others {
        if let Some((own, its)) = pool.overlap(other) {
            return Err(format!("{own} overlaps with {its} of pool {}, which is older", other.name));
        }
    }
    Ok(pool)
}

/// A pool.
///
/// # Errors
/// What is wrong with it.
pub fn pool(object: &IPAddressPool) -> Result<Pool, String> {
    let spec = &object.spec;
    if spec.addresses.is_empty() {
        return Err("spec.addresses: a pool without addresses".to_owned());
    }
    let mut ranges: Vec<AddressRange> = Vec::new();
    for text in &spec.addresses {
        let range: AddressRange = text.parse().map_err(|error| format!("spec.addresses: {error}"))?;
        if let Some(other) = ranges.iter().find(|other| other.overlaps(&range)) {
            return Err(format!("spec.addresses: {range} overlaps with {other}"));
        }
        ranges.push(range);
    }
    Ok(Pool {
        name: object.name().into(),
        labels: labels(object.metadata.labels.as_ref()),
        ranges,
        auto_assign: spec.auto_assign.unwrap_or(true),
        avoid_buggy: spec.avoid_buggy_ips.unwrap_or(false),
        allocation: spec.service_allocation.as_ref().map(allocation).transpose()?,
    })
}

fn allocation(written: &ServiceAllocation) -> Result<Allocation, String> {
    let priority = u32::try_from(written.priority.unwrap_or(0))
        .map_err(|_| "spec.serviceAllocation.priority: a priority is not negative".to_owned())?;
    Ok(Allocation {
        priority,
        namespaces: written.namespaces.iter().map(|name| name.as_str().into()).collect(),
        namespace_selectors: selectors("spec.serviceAllocation.namespaceSelectors", &written.namespace_selectors)?,
        service_selectors: selectors("spec.serviceAllocation.serviceSelectors", &written.service_selectors)?,
    })
}

/// An L2Advertisement.
///
/// # Errors
/// What is wrong with it.
pub fn l2_advertisement(object: &L2Advertisement) -> Result<Advertisement, String> {
    let spec = &object.spec;
    Ok(Advertisement {
        name: object.name().into(),
        pools: names(&spec.ip_address_pools),
        pool_selectors: selectors("spec.ipAddressPoolSelectors", &spec.ip_address_pool_selectors)?,
        node_selectors: selectors("spec.nodeSelectors", &spec.node_selectors)?,
        service_selectors: selectors("spec.serviceSelectors", &spec.service_selectors)?,
        interfaces: names(&spec.interfaces),
    })
}

/// Which addresses a BGPAdvertisement speaks of, and by which nodes.
///
/// # Errors
/// What is wrong with that part of it.
pub fn bgp_selects(object: &BGPAdvertisement) -> Result<Advertisement, String> {
    let spec = &object.spec;
    Ok(Advertisement {
        name: object.name().into(),
        pools: names(&spec.ip_address_pools),
        pool_selectors: selectors("spec.ipAddressPoolSelectors", &spec.ip_address_pool_selectors)?,
        node_selectors: selectors("spec.nodeSelectors", &spec.node_selectors)?,
        service_selectors: selectors("spec.serviceSelectors", &spec.service_selectors)?,
        interfaces: BTreeSet::new(),
    })
}

fn names(names: &[String]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| name.as_str().into()).collect()
}

/// Labels.
pub fn labels(labels: Option<&BTreeMap<String, String>>) -> Labels {
    labels.into_iter().flatten().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
}

/// Selectors of a field.
///
/// # Errors
/// What is wrong with one, with the field.
pub fn selectors(field: &str, written: &[LabelSelector]) -> Result<Vec<Selector>, String> {
    written
        .iter()
        .enumerate()
        .map(|(at, one)| selector(one).map_err(|error| format!("{field}[{at}]: {error}")))
        .collect()
}

fn selector(written: &LabelSelector) -> Result<Selector, String> {
    let pairs = written.match_labels.iter().flatten();
    let mut requirements: Vec<Requirement> =
        pairs.map(|(key, value)| Requirement::In(key.as_str().into(), [value.as_str().into()].into())).collect();
    for expression in written.match_expressions.iter().flatten() {
        let key: Arc<str> = expression.key.as_str().into();
        let values = || expression.values.iter().flatten().map(|value| value.as_str().into()).collect();
        requirements.push(match expression.operator.as_str() {
            "In" => Requirement::In(key, values()),
            "NotIn" => Requirement::NotIn(key, values()),
            "Exists" => Requirement::Exists(key),
            "DoesNotExist" => Requirement::Absent(key),
            other => return Err(format!("operator {other:?}: there are In, NotIn, Exists and DoesNotExist")),
        });
    }
    Ok(Selector { requirements })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::pool::IPAddressPoolSpec;

    fn object(name: &str, addresses: &[&str]) -> Arc<IPAddressPool> {
        let addresses = addresses.iter().map(|range| (*range).to_owned()).collect();
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        Arc::new(IPAddressPool::new(metadata, IPAddressPoolSpec { addresses, ..IPAddressPoolSpec::default() }))
    }

    #[test]
    fn a_pool_that_overlaps_or_is_spoiled_keeps_its_last_good_form() {
        let mut pools = Pools::default();
        let (good, faults) = pools.update(&[object("b", &["10.0.1.0/30"]), object("a", &["10.0.0.0/30"])]);
        assert_eq!((good.len(), faults), (2, vec![]));
        let (kept, faults) = pools.update(&[object("a", &["10.0.0.0/30"]), object("b", &["10.0.0.2-10.0.1.9"])]);
        assert_eq!(kept, good);
        assert_eq!(faults[0].problem, "10.0.0.2-10.0.1.9 overlaps with 10.0.0.0-10.0.0.3 of pool a, which is older");
        for (spoiled, said) in [
            (object("b", &["10.0.0.9-10.0.0.1"]), "does not come before"),
            (object("b", &[]), "without addresses"),
            (object("b", &["10.0.1.0/30", "10.0.1.2/32"]), "overlaps with 10.0.1.0-10.0.1.3"),
        ] {
            let (kept, faults) = pools.update(&[object("a", &["10.0.0.0/30"]), spoiled]);
            assert_eq!(kept, good);
            assert!(faults[0].problem.contains(said), "{faults:?}");
        }
        let (kept, _) = pools.update(&[object("b", &["10.0.9.0/30"])]);
        assert_eq!((kept.len(), &*kept[0].name), (1, "b"));
    }
}

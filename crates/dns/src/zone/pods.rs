//! Pure. Pods by name and by address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use signpost_core::object::ObjectName;

use crate::labels::key;
use crate::object::Pod;

#[derive(Default)]
pub(super) struct Pods {
    by_name: HashMap<Box<[u8]>, Known>,
    /// The namespaces of the pods that have an address: pods on the host's network share it.
    by_address: BTreeMap<IpAddr, Vec<Box<str>>>,
}

struct Known {
    list: u32,
    namespace: Box<str>,
    addresses: Box<[IpAddr]>,
}

impl Pods {
    pub(super) fn apply(&mut self, pod: Pod, list: u32) {
        self.remove(&pod.name);
        let namespace: Box<str> = pod.name.namespace.as_ref().into();
        for address in &pod.addresses {
            self.by_address.entry(*address).or_default().push(namespace.clone());
        }
        let known = Known { list, namespace, addresses: pod.addresses.into() };
        self.by_name.insert(name_key(&pod.name), known);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        if let Some(known) = self.by_name.remove(&name_key(name)) {
            self.forget(&known);
        }
    }

    pub(super) fn drop_older(&mut self, list: u32) {
        let old: Vec<Known> = self.by_name.extract_if(|_, known| known.list != list).map(|(_, known)| known).collect();
        for known in &old {
            self.forget(known);
        }
    }

    /// The namespaces of all pods that have this address.
    pub(super) fn namespaces(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        self.by_address.get(&address).into_iter().flatten().map(|namespace| &**namespace)
    }

    /// The addresses of pods in this range.
    pub(super) fn between(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> {
        self.by_address.range(first..=last).map(|(address, _)| *address)
    }

    fn forget(&mut self, known: &Known) {
        for address in &known.addresses {
            let Some(namespaces) = self.by_address.get_mut(address) else { continue };
            if let Some(at) = namespaces.iter().position(|namespace| *namespace == known.namespace) {
                namespaces.swap_remove(at);
            }
            if namespaces.is_empty() {
                self.by_address.remove(address);
            }
        }
    }
}

/// A pod's name may hold dots; it stands in no DNS name, so any unambiguous key will do.
fn name_key(name: &ObjectName) -> Box<[u8]> {
    key([&name.namespace, &name.name])
}

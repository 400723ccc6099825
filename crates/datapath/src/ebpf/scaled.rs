//! Which Service ports a change gives more backends: what the kernel's maps hold is compared with what it will hold, before the change
//! is carried out. So what happened while no daemon ran is seen as well.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, Object};
use signpost_core::object::{Protocol, Rebalance};
use signpost_core::plan::FrontendKey;

use super::change::Change;
use super::kernel::map;
use super::layout::{FrontendValue, Key, Value};
use super::rebalance::is_scaled_up;
use super::walk::Maps;

/// What the maps hold.
struct Held<'a>(&'a Object);

impl Maps for Held<'_> {
    fn lookup(&self, key: &Key) -> Option<Value> {
        let value = map(self.0, key.table()).lookup(&key.bytes(), MapFlags::ANY).ok()??;
        Value::read(key.table(), &value)
    }
}

/// What they will hold.
struct After<'a>(Held<'a>, &'a Change);

impl Maps for After<'_> {
    fn lookup(&self, key: &Key) -> Option<Value> {
        self.1.set.get(key).cloned().or_else(|| self.0.lookup(key))
    }
}

/// Those Service ports, of those that ask for their connections to be spread anew, with what they ask for.
pub(super) fn scaled_up(object: &Object, change: &Change) -> BTreeMap<u64, Rebalance> {
    let after = After(Held(object), change);
    let asks = change.set.iter().filter_map(|(key, value)| asking(key, value));
    let scaled = asks.filter(|(key, value, _)| {
        let before = match after.0.lookup(key) {
            Some(Value::Frontend(before)) => Some(before),
            _ => None,
        };
        is_scaled_up((&after.0, &after), before.as_ref(), value)
    });
    scaled.map(|(_, value, wish)| (value.service, wish)).collect()
}

fn asking<'a>(key: &'a Key, value: &'a Value) -> Option<(&'a Key, &'a FrontendValue, Rebalance)> {
    let Key::Frontend(
        _,
        FrontendKey::Address { protocol: Protocol::Tcp, .. } | FrontendKey::NodePort { protocol: Protocol::Tcp, .. },
    ) = key
    else {
        return None;
    };
    match value {
        Value::Frontend(frontend) => Some((key, frontend, frontend.rebalance?)),
        _ => None,
    }
}

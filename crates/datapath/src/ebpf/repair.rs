//! Pure. From what the kernel holds to what it should hold: the difference, and no more. A process that starts anew adopts in
//! this way what the one before it left.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::Family;

use super::change::Change;
use super::layout::{Key, Table, Value};
use super::program::Program;
use super::walk::Maps;

/// What the kernel holds. The maps are both families'; slots belong to the family of their backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Entries of one family that we can name.
    pub entries: BTreeMap<Key, Value>,
    /// Others: table and bytes of the key.
    pub foreign: BTreeSet<(Table, Vec<u8>)>,
    /// Whether all programs of this binary hang where they should.
    pub attached: bool,
}

impl Observed {
    /// Takes an entry in, if it is of the family or of none.
    pub fn read(&mut self, family: Family, table: Table, key: &[u8], value: &[u8]) {
        match (Key::read(table, key), Value::read(table, value)) {
            (Some(key), Some(value)) => {
                if family_of(&key, &value) == family {
                    self.entries.insert(key, value);
                }
            }
            _ => {
                self.foreign.insert((table, key.to_vec()));
            }
        }
    }
}

impl Maps for Observed {
    fn lookup(&self, key: &Key) -> Option<Value> {
        self.entries.get(key).cloned()
    }
}

fn family_of(key: &Key, value: &Value) -> Family {
    match (key, value) {
        (Key::Frontend(family, _) | Key::Node(family), _) => *family,
        (Key::NodePortIp(address) | Key::NodeIp(address) | Key::LocalEndpoint(address), _) => Family::of(*address),
        (Key::PodNetwork(range) | Key::Source(_, range), _) => Family::of(range.addr()),
        (Key::Chunk(set, _), _) => set.family(),
        (Key::Slot(..), Value::Backend(backend)) => Family::of(backend.ip()),
        (Key::Slot(..), _) => Family::Ipv4, // no other value reads back from that table
    }
}

/// What must be done so that the kernel holds `want`.
pub fn repair(want: &Program, have: &Observed) -> Change {
    let mut change = Change::none(want.family);
    change.removed.extend(have.entries.keys().filter(|key| !want.has(key)).copied());
    change.set.extend(want.entries().filter(|(key, value)| have.entries.get(key) != Some(value)));
    change.foreign.clone_from(&have.foreign);
    change.attach = !have.attached;
    change
}

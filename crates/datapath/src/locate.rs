//! Pure. Where in the kernel a frontend stands, in the words of each mode: what `signpost rules` prints.
//!
//! ```text
//! Program, Observed ─▶ locate() ─▶ Location: this map entry, that chain; does the kernel hold it?
//!          Observed ─▶ found()  ─▶ Found: what the kernel does, when nobody can say what it should do
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Family;
use signpost_core::plan::FrontendKey;

use crate::Datapath;

/// A thing of the kernel's that holds a part of a frontend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Location {
    /// What sort of thing.
    pub kind: Place,
    /// Its name, as the mode's own tools take it: `ip kube-proxy service-ips`, `nat KUBE-SERVICES`.
    pub name: String,
    /// What of it: a map's key, a rule; empty: the whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub entry: String,
    /// Where that leads on: a chain, a verdict, an address; empty: nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub leads_to: String,
    /// Whether the kernel holds it as it should be.
    pub held: bool,
}

/// A sort of thing in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// An element of a map or set.
    Map,
    /// A rule of a chain that frontends share.
    Rule,
    /// A chain of its own.
    Chain,
    /// A virtual server of IPVS.
    VirtualServer,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if !self.entry.is_empty() {
            write!(f, " {{ {} }}", self.entry)?;
        }
        if self.leads_to.is_empty() { Ok(()) } else { write!(f, " -> {}", self.leads_to) }
    }
}

/// A frontend as the kernel alone tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The Service port that the kernel's own comments name; empty: they name none. What is long may be cut.
    pub service_port: String,
    /// The backends with their weights.
    pub backends: BTreeMap<SocketAddr, u32>,
    /// What becomes of clients that are led to no backend.
    pub ends: BTreeSet<End>,
    /// Where it was read.
    pub locations: Vec<Location>,
}

/// What becomes of a packet that no backend gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// It is refused.
    Reject,
    /// It is dropped.
    Drop,
}

/// A mode that can say where its frontends stand.
pub trait Locate: Datapath {
    /// The parts of these frontends, the one that a packet meets first before those that it leads to. `have`: what the
    /// kernel holds. A frontend that the program lacks is left out.
    fn locate(
        &self,
        program: &Self::Program,
        have: &Self::Observed,
        keys: &BTreeSet<FrontendKey>,
    ) -> BTreeMap<FrontendKey, Vec<Location>>;

    /// Every frontend that the kernel serves in this mode, of one family.
    fn found(&self, family: Family, have: &Self::Observed) -> BTreeMap<FrontendKey, Found>;
}

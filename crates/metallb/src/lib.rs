//! MetalLB's kinds, as its YAML has them: who moves over keeps his objects.
//!
//! ```text
//!                       ┌─▶ controller, node: read and write objects
//! structs (this crate) ─┤
//!                       └─▶ schemas ─▶ the lab's API, the CRDs of a real cluster (deploy/crds)
//! ```
//!
//! An object may ask for anything; [`convert`] checks what is asked for. A separate crate, since the API, the controller and
//! the node need the kinds and share nothing else but `core`, which knows no Kubernetes library.

pub mod bgp;
pub mod convert;
pub mod crd;
pub mod kind;
pub mod l2;
pub mod pool;
pub mod schema;
pub mod state;

pub use bgp::{BFDProfile, BGPAdvertisement, BGPPeer, Community};
pub use kind::{Column, Kind, NoStatus, Object};
pub use l2::L2Advertisement;
pub use pool::IPAddressPool;
pub use state::{BGPSessionState, ConfigurationState, ServiceBGPStatus, ServiceL2Status};

/// The namespace that MetalLB's objects live in, unless told otherwise.
pub const NAMESPACE: &str = "metallb-system";
/// On a Service: the addresses that it wants, with commas between.
pub const LOAD_BALANCER_IPS: &str = "metallb.io/loadBalancerIPs";
/// On a Service: the pool that its address is to come from.
pub const ADDRESS_POOL: &str = "metallb.io/address-pool";
/// On a Service: those with the same value may have the same address.
pub const ALLOW_SHARED_IP: &str = "metallb.io/allow-shared-ip";
/// On a Service, written by the controller: the pool that its address came from.
pub const ALLOCATED_FROM_POOL: &str = "metallb.io/ip-allocated-from-pool";

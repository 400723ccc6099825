//! What the mode asks of the kernel and its tools, as a trait, so that a test can stand in for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::apply::IpvsError;
use super::message::{ObservedServer, Request};
use super::rule::Table;
use super::server::ServerKey;

/// One family's part of the kernel. Each method is one or a few system calls, and may fail.
pub(super) trait Kernel {
    /// The virtual servers of the family.
    fn servers(&mut self) -> Result<BTreeMap<ServerKey, ObservedServer>, IpvsError>;
    /// One server's destinations, without the rest; `None`: there is no such server.
    fn destinations(&mut self, key: ServerKey) -> Result<Option<ObservedServer>, IpvsError>;
    /// Sends requests; the errno of each, 0 if it was carried out.
    fn send(&mut self, requests: &[Request]) -> Result<Vec<i32>, IpvsError>;
    /// The device's addresses of the family; `None`: there is no device.
    fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, IpvsError>;
    /// Makes the device.
    fn make_device(&mut self) -> Result<(), IpvsError>;
    /// Whether there is a device, and no address of either family on it.
    fn is_device_bare(&mut self) -> Result<bool, IpvsError>;
    /// Removes it.
    fn remove_device(&mut self) -> Result<(), IpvsError>;
    /// Gives the device addresses and takes some from it; one that is there, or gone, already is fine.
    fn bind(&mut self, bound: &[IpAddr], unbound: &[IpAddr]) -> Result<(), IpvsError>;
    /// `ipset save`.
    fn save_sets(&mut self) -> Result<String, IpvsError>;
    /// `ipset restore -exist`.
    fn restore_sets(&mut self, op: &'static str, lines: &str) -> Result<(), IpvsError>;
    /// `iptables-save -t TABLE`.
    fn save_rules(&mut self, table: Table) -> Result<String, IpvsError>;
    /// `iptables-restore --noflush`.
    fn restore_rules(&mut self, lines: &str) -> Result<(), IpvsError>;
    /// See [`crate::Datapath::generation`]: of the rules.
    fn generation(&mut self) -> Option<u32>;
    /// A sysctl; `None`: there is none of this name.
    fn setting(&mut self, path: &str) -> Result<Option<String>, IpvsError>;
    /// Sets one.
    fn set(&mut self, path: &str, value: &str) -> Result<(), IpvsError>;
}

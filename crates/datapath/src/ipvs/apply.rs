//! Carries changes out and reads the kernel, step by step, over [`Kernel`]. Each step can be repeated: what is there already
//! or gone already is no error, since a former try may have ended anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use signpost_core::object::Family;

use super::change::Change;
use super::kernel::Kernel;
use super::message::Request;
use super::observed::Observed;
use super::rule::Table;
use super::server::ServerKey;
use crate::iptables::IptablesError;

/// Why the kernel could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    /// The kernel has no IPVS.
    #[error(
        "this kernel has no IPVS: load the module ip_vs (modprobe ip_vs; on a cloud or container kernel install its package of modules), or choose another mode"
    )]
    NoIpvs,
    /// A tool is not there.
    #[error("{program} is not installed: install the package {program}, or choose another mode")]
    Missing {
        /// What was to be run.
        program: &'static str,
    },
    /// A tool refused, or could not be run.
    #[error("{program} refused to {op}: {said}")]
    Tool {
        /// What was run.
        program: &'static str,
        /// What was to be done.
        op: &'static str,
        /// What it said.
        said: String,
    },
    /// The kernel refused.
    #[error("cannot {op}: {source}")]
    Kernel {
        /// What was to be done.
        op: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a request about a server.
    #[error("the kernel refused {request}: {source}")]
    Server {
        /// What was asked.
        request: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The rules.
    #[error(transparent)]
    Rules(#[from] IptablesError),
    /// Another Service proxy is there.
    #[error(
        "the {family} virtual servers, ipsets and chains KUBE-SERVICES are kube-proxy's: two Service proxies cannot serve one node. \
         Remove kube-proxy from it and run `kube-proxy --cleanup` or restart the node, or let signpost take them over (--take-over)"
    )]
    Foreign {
        /// Of this family.
        family: Family,
    },
}

impl IpvsError {
    /// Whether what was asked was looked at and refused: other Services may pass.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            IpvsError::Server { source, .. } => source.kind() != io::ErrorKind::PermissionDenied,
            IpvsError::Tool { .. } | IpvsError::Rules(IptablesError::Refused { .. }) => true,
            IpvsError::NoIpvs
            | IpvsError::Missing { .. }
            | IpvsError::Kernel { .. }
            | IpvsError::Rules(_)
            | IpvsError::Foreign { .. } => false,
        }
    }
}

/// Which destinations take no new connections any more, since when.
pub(super) type Draining = BTreeMap<(ServerKey, SocketAddr), Instant>;

/// Reads all. `wanted_settings`: sysctls with the values that they should have.
pub(super) fn observe(
    kernel: &mut dyn Kernel,
    family: Family,
    wanted_settings: &[(&str, String)],
    draining: &mut Draining,
    limit: Duration,
) -> Result<Observed, IpvsError> {
    // The servers first: asking for them loads the module, which brings the sysctls.
    let servers = kernel.servers()?;
    let mut observed = Observed { servers, addresses: kernel.addresses()?, ..Observed::default() };
    observed.read_sets(&kernel.save_sets()?, family);
    for table in Table::ALL {
        observed.read_rules(table, &kernel.save_rules(table)?);
    }
    for (path, wanted) in wanted_settings {
        if kernel.setting(path)?.is_some_and(|is| is.trim() != wanted) {
            observed.settings.push(((*path).to_owned(), wanted.clone()));
        }
    }
    observed.overdue = overdue(&observed, draining, limit);
    Ok(observed)
}

/// Destinations without weight that have been so for longer than the limit. Those of a former process begin now.
fn overdue(observed: &Observed, draining: &mut Draining, limit: Duration) -> BTreeSet<(ServerKey, SocketAddr)> {
    let now = Instant::now();
    let all = observed.servers.iter().flat_map(|(key, server)| server.destinations.iter().map(move |one| (key, one)));
    let without: Vec<_> = all.filter(|(_, (_, found))| found.weight == 0).map(|(key, (at, _))| (*key, *at)).collect();
    let since: Draining = without.into_iter().map(|one| (one, draining.get(&one).copied().unwrap_or(now))).collect();
    *draining = since;
    let late = draining.iter().filter(|(_, since)| now.duration_since(**since) >= limit);
    late.map(|(one, _)| *one).collect()
}

/// Makes the chain by which [`Observed::is_own`] knows this program.
const CLAIM: &str = "*filter\n:KUBE-CLUSTER-IPS - [0:0]\nCOMMIT\n";

/// Carries a change out.
pub(super) fn apply(kernel: &mut dyn Kernel, change: &Change, draining: &mut Draining) -> Result<(), IpvsError> {
    for (path, value) in &change.settings {
        kernel.set(path, value)?;
    }
    if change.makes_device {
        kernel.make_device()?;
    }
    if change.claims {
        kernel.restore_rules(CLAIM)?;
    }
    ask(kernel, &change.coming)?;
    bind(kernel, &change.bound, &[])?;
    if !change.sets.is_empty() {
        kernel.restore_sets("change sets", &change.sets)?;
    }
    if !change.rules.is_empty() {
        kernel.restore_rules(&change.rules)?;
    }
    bind(kernel, &[], &change.unbound)?;
    drain(kernel, &change.draining, draining)?;
    ask(kernel, &change.going)?;
    if !change.last_sets.is_empty() {
        kernel.restore_sets("remove sets", &change.last_sets)?;
    }
    Ok(())
}

fn bind(kernel: &mut dyn Kernel, bound: &[IpAddr], unbound: &[IpAddr]) -> Result<(), IpvsError> {
    if bound.is_empty() && unbound.is_empty() { Ok(()) } else { kernel.bind(bound, unbound) }
}

/// Lets destinations take no new connections, and removes those that have none.
fn drain(kernel: &mut dyn Kernel, those: &[(ServerKey, SocketAddr)], draining: &mut Draining) -> Result<(), IpvsError> {
    if those.is_empty() {
        return Ok(());
    }
    let requests: Vec<Request> = those.iter().map(|(key, at)| Request::SetWeight(*key, *at, 0)).collect();
    ask(kernel, &requests)?;
    let servers: BTreeSet<ServerKey> = those.iter().map(|(key, _)| *key).collect();
    let mut idle = Vec::new();
    for key in servers {
        let Some(server) = kernel.destinations(key)? else { continue };
        for (_, at) in those.iter().filter(|(of, _)| *of == key) {
            match server.destinations.get(at) {
                Some(found) if found.connections == 0 => idle.push(Request::DeleteDestination(key, *at)),
                Some(_) => {
                    draining.entry((key, *at)).or_insert_with(Instant::now);
                }
                None => {}
            }
        }
    }
    ask(kernel, &idle)
}

/// Sends requests, and for those that met something else than was thought what comes to the same.
fn ask(kernel: &mut dyn Kernel, requests: &[Request]) -> Result<(), IpvsError> {
    let mut left = requests.to_vec();
    // Once as they are, once instead of those that met something else.
    for is_last in [false, true] {
        if left.is_empty() {
            break;
        }
        let errors = kernel.send(&left)?;
        let mut instead = Vec::new();
        for (request, errno) in left.iter().zip(errors) {
            let met = if errno == 0 { Met::Done } else { meant(request, Errno::from_raw(errno)) };
            match (met, is_last) {
                (Met::Done, _) => {}
                (Met::Instead(other), false) => instead.push(other),
                _ => return Err(refused(request, errno)),
            }
        }
        left = instead;
    }
    Ok(())
}

enum Met {
    Done,
    Instead(Request),
    Refused,
}

fn meant(request: &Request, errno: Errno) -> Met {
    // What is asked of a server that is not there meets ESRCH, of a destination ENOENT.
    match (*request, errno) {
        (Request::NewServer(key, settings), Errno::EEXIST) => Met::Instead(Request::SetServer(key, settings)),
        (Request::SetServer(key, settings), Errno::ESRCH) => Met::Instead(Request::NewServer(key, settings)),
        (Request::NewDestination(key, at), Errno::EEXIST) => Met::Instead(Request::SetWeight(key, at, 1)),
        (Request::SetWeight(key, at, 1), Errno::ENOENT) => Met::Instead(Request::NewDestination(key, at)),
        (
            Request::DeleteServer(_) | Request::DeleteDestination(..) | Request::SetWeight(_, _, 0),
            Errno::ESRCH | Errno::ENOENT,
        ) => Met::Done,
        _ => Met::Refused,
    }
}

fn refused(request: &Request, errno: i32) -> IpvsError {
    IpvsError::Server { request: format!("{request:?}"), source: io::Error::from_raw_os_error(errno) }
}

/// Removes what of the mode there is, of one family; the device too, if the other has no address on it.
pub(super) fn clean(kernel: &mut dyn Kernel, change: &Change) -> Result<(), IpvsError> {
    apply(kernel, change, &mut Draining::new())?;
    if kernel.is_device_bare()? { kernel.remove_device() } else { Ok(()) }
}

//! The kernel and the tools as they really are, in the network namespace of the thread that calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use signpost_core::object::Family;

use super::IpvsConfig;
use super::apply::IpvsError;
use super::kernel::Kernel;
use super::message::{ObservedServer, Request};
use super::rule::Table;
use super::server::ServerKey;
use super::socket;
use crate::Datapath;
use crate::iptables::Iptables;

const IPSET: &str = "ipset";
/// The most of a complaint that is kept.
const COMPLAINT_MOST_BYTES: usize = 2_000;

/// One family's part of it.
#[derive(Debug)]
pub(super) struct System {
    family: Family,
    config: IpvsConfig,
    ipvs: Option<socket::Ipvs>,
    iptables: Iptables,
}

impl System {
    pub fn new(family: Family, config: IpvsConfig) -> System {
        let iptables = Iptables::new(family, config.iptables.clone());
        System { family, config, ipvs: None, iptables }
    }

    /// Opens the way to IPVS, and says how long it is to remember connections.
    fn ipvs(&mut self) -> Result<&mut socket::Ipvs, IpvsError> {
        let opened = match self.ipvs.take() {
            Some(ipvs) => ipvs,
            None => {
                let mut ipvs = socket::Ipvs::open(self.family)?;
                let [tcp, tcp_fin, udp] = self.config.timeouts;
                if self.config.timeouts.iter().any(|timeout| !timeout.is_zero()) {
                    let request = Request::SetTimeouts { tcp, tcp_fin, udp };
                    let errno = ipvs.send(&[request])?.into_iter().next().unwrap_or_default();
                    if errno != 0 {
                        let source = io::Error::from_raw_os_error(errno);
                        return Err(IpvsError::Kernel { op: "set IPVS's timeouts", source });
                    }
                }
                ipvs
            }
        };
        Ok(self.ipvs.insert(opened))
    }

    /// After an error an answer may wait that would be taken for that to the next question.
    fn checked<T>(&mut self, result: Result<T, IpvsError>) -> Result<T, IpvsError> {
        if result.is_err() {
            self.ipvs = None;
        }
        result
    }
}

impl Kernel for System {
    fn servers(&mut self) -> Result<BTreeMap<ServerKey, ObservedServer>, IpvsError> {
        let servers = self.ipvs()?.servers();
        self.checked(servers)
    }

    fn destinations(&mut self, key: ServerKey) -> Result<Option<ObservedServer>, IpvsError> {
        let found = self.ipvs()?.destinations(key);
        self.checked(found)
    }

    fn send(&mut self, requests: &[Request]) -> Result<Vec<i32>, IpvsError> {
        let errors = self.ipvs()?.send(requests);
        self.checked(errors)
    }

    fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, IpvsError> {
        socket::addresses(self.family)
    }

    fn make_device(&mut self) -> Result<(), IpvsError> {
        socket::device(true)
    }

    fn is_device_bare(&mut self) -> Result<bool, IpvsError> {
        let is_bare = |family| Ok::<_, IpvsError>(socket::addresses(family)?.is_some_and(|all| all.is_empty()));
        Ok(is_bare(Family::Ipv4)? && is_bare(Family::Ipv6)?)
    }

    fn remove_device(&mut self) -> Result<(), IpvsError> {
        socket::device(false)
    }

    fn bind(&mut self, bound: &[IpAddr], unbound: &[IpAddr]) -> Result<(), IpvsError> {
        socket::rebind(bound, unbound)
    }

    fn save_sets(&mut self) -> Result<String, IpvsError> {
        let output = ipset("list sets", &["save"], "")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn restore_sets(&mut self, op: &'static str, lines: &str) -> Result<(), IpvsError> {
        ipset(op, &["restore", "-exist"], lines).map(|_| ())
    }

    fn save_rules(&mut self, table: Table) -> Result<String, IpvsError> {
        Ok(self.iptables.tool()?.save(table.name())?)
    }

    fn restore_rules(&mut self, lines: &str) -> Result<(), IpvsError> {
        Ok(self.iptables.tool()?.restore_text("change the rules", lines)?)
    }

    fn generation(&mut self) -> Option<u32> {
        self.iptables.generation()
    }

    fn setting(&mut self, path: &str) -> Result<Option<String>, IpvsError> {
        match std::fs::read_to_string(Path::new("/proc/sys").join(path)) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IpvsError::Kernel { op: "read the kernel's settings", source }),
        }
    }

    fn set(&mut self, path: &str, value: &str) -> Result<(), IpvsError> {
        std::fs::write(Path::new("/proc/sys").join(path), value).map_err(|source| {
            let source = io::Error::new(source.kind(), format!("/proc/sys/{path}: {source}"));
            IpvsError::Kernel { op: "change the kernel's settings", source }
        })
    }
}

/// Runs `ipset` with these lines to read.
fn ipset(op: &'static str, arguments: &[&str], lines: &str) -> Result<Output, IpvsError> {
    let failed = |said: String| IpvsError::Tool { program: IPSET, op, said };
    let mut command = Command::new(IPSET);
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => IpvsError::Missing { program: IPSET },
        _ => failed(error.to_string()),
    })?;
    let mut stdin = child.stdin.take().expect("it was piped");
    let output = thread::scope(|scope| {
        // Both ways at once: what it says may fill its pipe before it has read all.
        let writing = scope.spawn(move || stdin.write_all(lines.as_bytes()));
        let output = child.wait_with_output();
        // One that ended before it read all says why.
        let _ = writing.join().expect("writing does not panic");
        output
    });
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(COMPLAINT_MOST_BYTES)]).into_owned();
    Err(failed(said.trim_end().to_owned()))
}

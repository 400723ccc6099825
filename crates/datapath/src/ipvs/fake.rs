//! A kernel in memory: takes what the real one takes, refuses what it refuses, and fails at a call of a test's choice.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange};

use super::apply::IpvsError;
use super::kernel::Kernel;
use super::message::{ObservedDestination, ObservedServer, Request};
use super::rule::Table;
use super::server::{ServerKey, Settings};
use super::{Change, Ipvs, IpvsConfig, Observed, Program};
use crate::Datapath;

/// What it holds, so that two can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub servers: BTreeMap<ServerKey, ObservedServer>,
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Header and elements by name.
    pub sets: BTreeMap<String, (String, BTreeMap<String, String>)>,
    pub rules: Rules,
    pub settings: BTreeMap<String, String>,
}

/// When a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    /// Nothing of it is done.
    Before,
    /// All of it is done.
    #[cfg(test)]
    After,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub state: State,
    pub calls: usize,
    pub fails: Option<(usize, Failing)>,
}

/// Shared, so that a test can look at it while the mode has it.
#[derive(Debug, Clone)]
pub(super) struct FakeKernel {
    inner: Arc<Mutex<Inner>>,
}

impl FakeKernel {
    pub fn new() -> FakeKernel {
        let bases = [
            (Table::Mangle, &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"][..]),
            (Table::Nat, &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
            (Table::Filter, &["INPUT", "FORWARD", "OUTPUT"]),
        ];
        let chains = bases.into_iter().flat_map(|(table, names)| names.iter().map(move |name| (table, *name)));
        let state = State {
            rules: chains.map(|(table, name)| ((table, name.to_owned()), Vec::new())).collect(),
            settings: [("net/ipv4/vs/conntrack".to_owned(), "0".to_owned())].into(),
            ..State::default()
        };
        FakeKernel { inner: Arc::new(Mutex::new(Inner { state, ..Inner::default() })) }
    }

    pub fn state(&self) -> State {
        self.inner().state.clone()
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, does: impl FnOnce(&mut Inner) -> Result<T, IpvsError>) -> Result<T, IpvsError> {
        let mut inner = self.inner();
        let number = inner.calls;
        inner.calls += 1;
        let failed = || IpvsError::Kernel { op: "do it", source: io::Error::other("a fault for a test") };
        if inner.fails == Some((number, Failing::Before)) {
            return Err(failed());
        }
        let done = does(&mut inner)?;
        match inner.fails {
            Some((at, _)) if at == number => Err(failed()),
            _ => Ok(done),
        }
    }
}

fn made(settings: Settings) -> ObservedServer {
    let (scheduler, flags, timeout_s) = settings.parts();
    ObservedServer { scheduler: scheduler.to_string(), flags, timeout_s, destinations: BTreeMap::new() }
}

impl State {
    fn carry_out(&mut self, request: &Request) -> Result<(), Errno> {
        match *request {
            Request::NewServer(key, settings) => {
                if self.servers.contains_key(&key) {
                    return Err(Errno::EEXIST);
                }
                self.servers.insert(key, made(settings));
            }
            Request::SetServer(key, settings) => {
                let server = self.servers.get_mut(&key).ok_or(Errno::ESRCH)?;
                let destinations = std::mem::take(&mut server.destinations);
                *server = ObservedServer { destinations, ..made(settings) };
            }
            Request::DeleteServer(key) => {
                self.servers.remove(&key).ok_or(Errno::ESRCH)?;
            }
            Request::NewDestination(key, at) => {
                let server = self.servers.get_mut(&key).ok_or(Errno::ESRCH)?;
                if server.destinations.contains_key(&at) {
                    return Err(Errno::EEXIST);
                }
                server.destinations.insert(at, ObservedDestination { weight: 1, is_own: true, ..Default::default() });
            }
            Request::SetWeight(key, at, weight) => {
                let server = self.servers.get_mut(&key).ok_or(Errno::ESRCH)?;
                server.destinations.get_mut(&at).ok_or(Errno::ENOENT)?.weight = weight;
            }
            Request::DeleteDestination(key, at) => {
                let server = self.servers.get_mut(&key).ok_or(Errno::ESRCH)?;
                server.destinations.remove(&at).ok_or(Errno::ENOENT)?;
            }
            Request::SetTimeouts { .. } => {}
        }
        Ok(())
    }

    /// One line that `ipset restore -exist` reads.
    fn set_line(&mut self, line: &str) -> Result<(), String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let (value, extra) = rest.split_once(' ').unwrap_or((rest, ""));
        if verb == "create" {
            self.sets.entry(name.to_owned()).or_insert_with(|| (rest.to_owned(), BTreeMap::new()));
            return Ok(());
        }
        let of_rule = format!("-set {name} ");
        let is_in_use = self.rules.values().flatten().any(|rule| rule.contains(&of_rule));
        let (header, mut elements) = self.sets.remove(name).ok_or_else(|| format!("no such set: {line}"))?;
        match verb {
            "add" => {
                elements.insert(value.to_owned(), extra.to_owned());
            }
            "del" => {
                elements.remove(value);
            }
            "flush" => elements.clear(),
            "swap" => {
                let other = self.sets.remove(value).ok_or_else(|| format!("no such set: {line}"))?;
                self.sets.extend([(name.to_owned(), other), (value.to_owned(), (header, elements))]);
                return Ok(());
            }
            "destroy" if !is_in_use => return Ok(()),
            _ => return Err(format!("in use, or no such verb: {line}")),
        }
        self.sets.insert(name.to_owned(), (header, elements));
        Ok(())
    }

    /// What `iptables-restore --noflush` reads: all of it or nothing, which is less than the real one does.
    fn restore(&mut self, lines: &str) -> Result<(), String> {
        let mut rules = self.rules.clone();
        let mut table = Table::Mangle;
        for line in lines.lines() {
            if let Some(name) = line.strip_prefix('*') {
                let named = Table::ALL.into_iter().find(|table| table.name() == name);
                table = named.ok_or_else(|| format!("no such table: {line}"))?;
            } else if let Some(chain) = line.strip_prefix(':') {
                rules.insert((table, chain.split(' ').next().unwrap_or_default().to_owned()), Vec::new());
            } else if line != "COMMIT" {
                rule_line(&mut rules, table, line)?;
            }
        }
        for ((table, _), of_chain) in &rules {
            for rule in of_chain {
                let target = rule.rsplit_once("-j ").and_then(|(_, target)| target.split(' ').next());
                let target = target.ok_or_else(|| format!("leads nowhere: {rule}"))?;
                if target.starts_with("KUBE-") && !rules.contains_key(&(*table, target.to_owned())) {
                    return Err(format!("no chain {target}: {rule}"));
                }
                for set in rule.split("-set ").skip(1).filter_map(|rest| rest.split(' ').next()) {
                    if !self.sets.contains_key(set) {
                        return Err(format!("no set {set}: {rule}"));
                    }
                }
            }
        }
        self.rules = rules;
        Ok(())
    }
}

type Rules = BTreeMap<(Table, String), Vec<String>>;

fn rule_line(rules: &mut Rules, table: Table, line: &str) -> Result<(), String> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    let key = (table, name.to_owned());
    let of_chain = rules.get_mut(&key).ok_or_else(|| format!("no such chain: {line}"))?;
    match verb {
        "-A" => of_chain.push(rule.to_owned()),
        "-I" => of_chain.insert(0, rule.strip_prefix("1 ").unwrap_or(rule).to_owned()),
        "-D" => {
            let at = of_chain.iter().position(|there| there == rule).ok_or_else(|| format!("no such rule: {line}"))?;
            of_chain.remove(at);
        }
        "-X" if of_chain.is_empty() => {
            rules.remove(&key);
        }
        _ => return Err(format!("not empty, or no such verb: {line}")),
    }
    Ok(())
}

/// As a tool says that it refused.
fn complaint(program: &'static str, said: String) -> IpvsError {
    IpvsError::Tool { program, op: "do it", said }
}

impl Kernel for FakeKernel {
    fn servers(&mut self) -> Result<BTreeMap<ServerKey, ObservedServer>, IpvsError> {
        self.call(|inner| Ok(inner.state.servers.clone()))
    }

    fn destinations(&mut self, key: ServerKey) -> Result<Option<ObservedServer>, IpvsError> {
        self.call(|inner| Ok(inner.state.servers.get(&key).cloned()))
    }

    fn send(&mut self, requests: &[Request]) -> Result<Vec<i32>, IpvsError> {
        self.call(|inner| {
            let one = |request| inner.state.carry_out(request).map_or_else(|errno| errno as i32, |()| 0);
            Ok(requests.iter().map(one).collect())
        })
    }

    fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, IpvsError> {
        self.call(|inner| Ok(inner.state.addresses.clone()))
    }

    fn make_device(&mut self) -> Result<(), IpvsError> {
        self.call(|inner| {
            inner.state.addresses.get_or_insert_default();
            Ok(())
        })
    }

    fn is_device_bare(&mut self) -> Result<bool, IpvsError> {
        self.call(|inner| Ok(inner.state.addresses.as_ref().is_some_and(BTreeSet::is_empty)))
    }

    fn remove_device(&mut self) -> Result<(), IpvsError> {
        self.call(|inner| {
            inner.state.addresses = None;
            Ok(())
        })
    }

    fn bind(&mut self, bound: &[IpAddr], unbound: &[IpAddr]) -> Result<(), IpvsError> {
        self.call(|inner| {
            let device = inner.state.addresses.as_mut();
            let addresses = device.ok_or_else(|| complaint("ip", "there is no device".to_owned()))?;
            addresses.extend(bound);
            unbound.iter().for_each(|address| {
                addresses.remove(address);
            });
            Ok(())
        })
    }

    fn save_sets(&mut self) -> Result<String, IpvsError> {
        self.call(|inner| {
            let mut saved = String::new();
            for (name, (header, elements)) in &inner.state.sets {
                saved.push_str(&format!("create {name} {header}\n"));
                for (element, extra) in elements {
                    saved.push_str(format!("add {name} {element} {extra}").trim_end());
                    saved.push('\n');
                }
            }
            Ok(saved)
        })
    }

    fn restore_sets(&mut self, _: &'static str, lines: &str) -> Result<(), IpvsError> {
        self.call(|inner| {
            lines.lines().try_for_each(|line| inner.state.set_line(line)).map_err(|said| complaint("ipset", said))
        })
    }

    fn save_rules(&mut self, table: Table) -> Result<String, IpvsError> {
        self.call(|inner| {
            let mut saved = format!("*{}\n", table.name());
            let of_table = inner.state.rules.iter().filter(|((of, _), _)| *of == table);
            for ((_, chain), _) in of_table.clone() {
                saved.push_str(&format!(":{chain} - [0:0]\n"));
            }
            for ((_, chain), rules) in of_table {
                rules.iter().for_each(|rule| saved.push_str(&format!("-A {chain} {rule}\n")));
            }
            Ok(saved)
        })
    }

    fn restore_rules(&mut self, lines: &str) -> Result<(), IpvsError> {
        self.call(|inner| inner.state.restore(lines).map_err(|said| complaint("iptables-restore", said)))
    }

    fn generation(&mut self) -> Option<u32> {
        None
    }

    fn setting(&mut self, path: &str) -> Result<Option<String>, IpvsError> {
        self.call(|inner| Ok(inner.state.settings.get(path).cloned()))
    }

    fn set(&mut self, path: &str, value: &str) -> Result<(), IpvsError> {
        self.call(|inner| {
            inner.state.settings.insert(path.to_owned(), value.to_owned());
            Ok(())
        })
    }
}

/// The mode with such a kernel.
pub(super) fn mode(family: Family) -> (Ipvs, FakeKernel) {
    let kernel = FakeKernel::new();
    (Ipvs::with(family, IpvsConfig::default(), Box::new(kernel.clone())), kernel)
}

/// The mode IPVS, whose kernel is this value.
#[derive(Debug)]
pub struct FakeIpvs {
    mode: Ipvs,
    kernel: FakeKernel,
}

impl FakeIpvs {
    /// A kernel with its own chains alone.
    pub fn new(family: Family) -> FakeIpvs {
        let (mode, kernel) = mode(family);
        FakeIpvs { mode, kernel }
    }

    /// Takes what `iptables-restore --noflush` reads.
    ///
    /// # Errors
    /// What the real one would complain of.
    pub fn restore(&mut self, lines: &str) -> Result<(), IpvsError> {
        self.kernel.restore_rules(lines)
    }

    /// Carries a change out until the kernel was called so many times, as when the process dies then.
    pub fn apply_some(&mut self, change: &Change, calls: usize) {
        let before = self.kernel.inner().calls;
        self.kernel.inner().fails = Some((before + calls, Failing::Before));
        // It fails, unless it is done by then.
        drop(self.mode.apply(change));
        self.kernel.inner().fails = None;
    }

    /// Somebody takes away all servers, addresses and sets, and every rule.
    pub fn flush(&mut self) {
        self.kernel.inner().state = FakeKernel::new().state();
    }

    /// The rules of a chain.
    pub fn rules(&self, table: Table, chain: &str) -> Option<Vec<String>> {
        self.kernel.inner().state.rules.get(&(table, chain.to_owned())).cloned()
    }
}

impl Datapath for FakeIpvs {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = IpvsError;

    fn program(&self, plan: &NodePlan) -> Program {
        self.mode.program(plan)
    }

    fn change(&self, before: &Program, plan: &PlanChange) -> Change {
        self.mode.change(before, plan)
    }

    fn advance(&self, program: &mut Program, change: &Change) {
        self.mode.advance(program, change);
    }

    fn repair(&self, want: &Program, have: &Observed) -> Change {
        self.mode.repair(want, have)
    }

    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        self.mode.walk(program, packet, remembered)
    }

    fn is_refusal(&self, error: &IpvsError) -> bool {
        self.mode.is_refusal(error)
    }

    fn is_atomic(&self) -> bool {
        self.mode.is_atomic()
    }

    fn observe(&mut self) -> Result<Observed, IpvsError> {
        self.mode.observe()
    }

    fn apply(&mut self, change: &Change) -> Result<(), IpvsError> {
        self.mode.apply(change)
    }
}

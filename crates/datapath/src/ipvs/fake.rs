//! A kernel in memory: takes what the real one takes, refuses what it refuses, and fails at a call of a test's choice.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use signpost_core::object::Family;

use super::apply::IpvsError;
use super::kernel::Kernel;
use super::message::{ObservedDestination, ObservedServer, Request};
use super::rule::Table;
use super::server::{ServerKey, Settings};

/// What it holds, so that two can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub servers: BTreeMap<ServerKey, ObservedServer>,
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Header and elements by name.
    pub sets: BTreeMap<String, (String, BTreeMap<String, String>)>,
    pub rules: BTreeMap<(Table, String), Vec<String>>,
    pub settings: BTreeMap<String, String>,
}

/// When a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    Before,
    After,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub state: State,
    pub calls: usize,
    pub fails: Option<(usize, Failing)>,
    /// Requests of netlink that were sent.
    pub messages: usize,
}

/// Shared, so that a test can look at it while the mode has it.
#[derive(Debug, Clone)]
pub(super) struct FakeKernel {
    pub inner: Arc<Mutex<Inner>>,
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
        self.inner.lock().unwrap().state.clone()
    }

    fn call<T>(&self, does: impl FnOnce(&mut Inner) -> Result<T, IpvsError>) -> Result<T, IpvsError> {
        let mut inner = self.inner.lock().unwrap();
        let number = inner.calls;
        inner.calls += 1;
        let failed = || IpvsError::Kernel { op: "do it", source: io::Error::other("a fault for a test") };
        if inner.fails == Some((number, Failing::Before)) {
            return Err(failed());
        }
        let done = does(&mut inner)?;
        if inner.fails == Some((number, Failing::After)) { Err(failed()) } else { Ok(done) }
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

    fn set_line(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap();
        let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let (value, extra) = rest.split_once(' ').unwrap_or((rest, ""));
        match verb {
            "create" => {
                self.sets.entry(name.to_owned()).or_insert_with(|| (rest.to_owned(), BTreeMap::new()));
            }
            "add" => {
                self.sets.get_mut(name).unwrap().1.insert(value.to_owned(), extra.to_owned());
            }
            "del" => {
                self.sets.get_mut(name).unwrap().1.remove(value);
            }
            "flush" => self.sets.get_mut(name).unwrap().1.clear(),
            "swap" => {
                let (one, other) = (self.sets.remove(name).unwrap(), self.sets.remove(value).unwrap());
                self.sets.extend([(name.to_owned(), other), (value.to_owned(), one)]);
            }
            "destroy" => {
                let named = format!("-set {name} ");
                assert!(!self.rules.values().flatten().any(|rule| rule.contains(&named)), "{name} is in use");
                self.sets.remove(name).unwrap();
            }
            _ => panic!("{line}"),
        }
    }

    fn restore(&mut self, lines: &str) {
        let mut table = Table::Mangle;
        for line in lines.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name).unwrap();
            } else if let Some(chain) = line.strip_prefix(':') {
                self.rules.insert((table, chain.split(' ').next().unwrap().to_owned()), Vec::new());
            } else if line != "COMMIT" {
                self.rule_line(table, line);
            }
        }
        for ((table, _), rules) in &self.rules {
            for rule in rules {
                let target = rule.rsplit_once("-j ").unwrap().1.split(' ').next().unwrap();
                let is_there = self.rules.contains_key(&(*table, target.to_owned()));
                assert!(!target.starts_with("KUBE-") || is_there, "{rule}");
                for set in rule.split("-set ").skip(1).filter_map(|rest| rest.split(' ').next()) {
                    assert!(self.sets.contains_key(set), "{rule}");
                }
            }
        }
    }

    fn rule_line(&mut self, table: Table, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap();
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let key = (table, name.to_owned());
        match verb {
            "-A" => self.rules.get_mut(&key).unwrap().push(rule.to_owned()),
            "-I" => self.rules.get_mut(&key).unwrap().insert(0, rule.strip_prefix("1 ").unwrap().to_owned()),
            "-D" => {
                let rules = self.rules.get_mut(&key).unwrap();
                let at = rules.iter().position(|there| there == rule).unwrap();
                rules.remove(at);
            }
            "-X" => assert_eq!(self.rules.remove(&key), Some(Vec::new()), "{name} must be empty"),
            _ => panic!("{line}"),
        }
    }
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
            inner.messages += requests.len();
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
            inner.messages += bound.len() + unbound.len();
            let addresses = inner.state.addresses.as_mut().unwrap();
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
            lines.lines().for_each(|line| inner.state.set_line(line));
            Ok(())
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
        self.call(|inner| {
            inner.state.restore(lines);
            Ok(())
        })
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
pub(super) fn mode(family: Family) -> (super::Ipvs, FakeKernel) {
    let kernel = FakeKernel::new();
    (super::Ipvs::with(family, super::IpvsConfig::default(), Box::new(kernel.clone())), kernel)
}

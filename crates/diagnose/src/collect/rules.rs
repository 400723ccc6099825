//! Compares a node's kernel with the rules that it should hold.

use std::collections::BTreeMap;

use signpost_core::object::Family;
use signpost_datapath::Datapath;
use signpost_datapath::ebpf;
use signpost_datapath::iptables::{self, Iptables, IptablesConfig};
use signpost_datapath::ipvs::{self, Ipvs, IpvsConfig};
use signpost_datapath::nftables::{self, Nftables, NftablesConfig};

use crate::kernel;
use crate::program::Program;
use crate::snapshot::{ComparedWith, KernelState, NodeState, Unknown};

/// In the network namespace that the calling thread is in.
pub(super) fn compare(state: &NodeState) -> (BTreeMap<Family, KernelState>, Vec<Unknown>) {
    let (mut found, mut unknown) = (BTreeMap::new(), Vec::new());
    for (family, plan) in &state.wanted {
        let (program, with) = match state.programs.get(family) {
            Some(program) => (program.clone(), ComparedWith::Program),
            // A daemon that answers in a mode that is not known here tells nothing to compare with.
            None if state.daemon.answers => continue,
            None => match state.silent_mode() {
                Some("nftables") => (Program::Nftables(nftables::Program::of(plan)), ComparedWith::Objects),
                Some("iptables") => (Program::Iptables(iptables::Program::of(plan)), ComparedWith::Objects),
                Some("ipvs") => {
                    // Its scheduler is the daemon's to know; the default is the likeliest.
                    (Program::Ipvs(ipvs::Program::of(plan, ipvs::Scheduler::default())), ComparedWith::Objects)
                }
                _ => {
                    let why = "no daemon answers, and nothing in the kernel tells its mode".to_owned();
                    unknown.push(Unknown { what: format!("{family} rules"), why });
                    continue;
                }
            },
        };
        let compared = match &program {
            // Of the mode ebpf, the rules beneath the sockets.
            Program::Nftables(program) | Program::Ebpf(ebpf::Program { packets: program, .. }) => {
                let mut mode = Nftables::new(*family, NftablesConfig { take_over: true, ..NftablesConfig::default() });
                let observed = mode.observe().map_err(|error| error.to_string());
                observed.map(|observed| kernel::nftables(program, &mode.repair(program, &observed), with))
            }
            Program::Iptables(program) => {
                let mut mode = Iptables::new(*family, IptablesConfig { take_over: true, ..IptablesConfig::default() });
                let observed = mode.observe().map_err(|error| error.to_string());
                observed.map(|observed| kernel::iptables(program, &mode.repair(program, &observed), &observed, with))
            }
            Program::Ipvs(program) => {
                let mut mode = Ipvs::new(*family, IpvsConfig { take_over: true, ..IpvsConfig::default() });
                let observed = mode.observe().map_err(|error| error.to_string());
                observed.map(|observed| kernel::ipvs(program, &mode.repair(program, &observed), with))
            }
        };
        match compared {
            Ok(compared) => {
                found.insert(*family, compared);
            }
            Err(why) => unknown.push(Unknown { what: format!("{family} rules"), why }),
        }
    }
    (found, unknown)
}

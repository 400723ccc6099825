//! The upstream router's BGP: BIRD from Debian in the router's namespace. It takes every node's routes, writes them into its
//! kernel, several next hops to one destination included, and announces nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use signpost_core::object::Family;
use tokio::process::{Child, Command};

use crate::cgroup::Cgroup;
use crate::error::LabError;
use crate::netns::Netns;
use crate::spawner::{Spawner, Surroundings};
use crate::state;
use crate::topology::Topology;

/// The router's AS number.
pub const ROUTER_ASN: u32 = 64_513;
/// The nodes'.
pub const NODE_ASN: u32 = 64_512;

/// BIRD, running; it ends when this is dropped.
pub struct Router {
    _bird: Child,
}

impl Router {
    /// Starts BIRD; its configuration, log and control socket (for `birdc -s`) are in `folder`.
    ///
    /// # Errors
    /// BIRD is not installed, or could not be started.
    pub async fn start(
        spawner: &Spawner,
        netns: &Netns,
        cgroup: &Cgroup,
        topology: &Topology,
        folder: &Path,
    ) -> Result<Router, LabError> {
        let program = find("bird").ok_or(LabError::MissingTool { tool: "bird", package: "bird2" })?;
        let path = folder.join("bird.conf");
        state::write_private(&path, &configuration(topology))?;
        let started = async {
            cgroup.create()?;
            let log = std::fs::File::create(folder.join("bird.log"))?;
            let mut command = Command::new(program);
            command.arg("-f").arg("-c").arg(&path).arg("-s").arg(folder.join("bird.ctl"));
            command.arg("-P").arg(folder.join("bird.pid"));
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let around = Surroundings {
                netns: Some(netns.clone()),
                cgroup: Some(cgroup.clone()),
                session: true,
                ..Surroundings::default()
            };
            spawner.spawn(command, around).await
        };
        let bird = started.await.map_err(|source| LabError::Start { what: "the router's BIRD".to_owned(), source })?;
        Ok(Router { _bird: bird })
    }
}

/// A program on the PATH, or where Debian puts what only root needs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|found| found.is_file())
}

fn configuration(topology: &Topology) -> String {
    let mut text = "log stderr all;\nrouter id 172.18.0.1;\nprotocol device {}\n".to_owned();
    for family in topology.families.list() {
        let name = family.to_string();
        text.push_str(&format!(
            "protocol kernel kernel_{name} {{ merge paths on; {name} {{ import none; export all; }}; }}\n"
        ));
    }
    // Who asks for BFD gets it; a session of BGP without goes on as ever.
    text.push_str(
        "protocol bfd { interface \"nodes\" { min rx interval 50 ms; min tx interval 50 ms; multiplier 3; }; }\n",
    );
    // One session carries both families.
    let (local, range) = match topology.families.list().first() {
        Some(Family::Ipv6) => ("fd00:172:18::1", "fd00:172:18::/64"),
        _ => ("172.18.0.1", "172.18.0.0/24"),
    };
    let channels: String =
        topology.families.list().iter().map(|family| format!(" {family} {{ import all; export none; }};")).collect();
    text.push_str(&format!(
        "protocol bgp nodes {{ local {local} as {ROUTER_ASN}; neighbor range {range} as {NODE_ASN}; dynamic name \"node\"; passive on; bfd on; error wait time 1, 4; error forget time 5;{channels} }}\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Families;

    #[test]
    fn the_router_speaks_the_families_of_the_lab() {
        let of = |families| configuration(&Topology { families, nodes: 2 });
        assert!(!of(Families::Ipv4).contains("ipv6") && !of(Families::Ipv6).contains("ipv4"));
        let dual = of(Families::Dual);
        assert!(
            dual.contains("neighbor range 172.18.0.0/24 as 64512")
                && dual.contains("ipv6 { import all; export none; };")
        );
    }
}

//! The lab's namespaces and links: the map of `topology`, made real.

use std::io;
use std::net::IpAddr;

use crate::error::LabError;
use crate::netns::Netns;
use crate::spawner::Spawner;
use crate::topology::{SEGMENT, Topology, node_port, pod_port};

/// The namespaces of everything but pods. Dropped: they are gone, with all links between them.
pub struct Network {
    /// The map.
    pub topology: Topology,
    /// The router's namespace.
    pub router: Netns,
    /// The outside client's.
    pub outside: Netns,
    /// The nodes', in order.
    pub nodes: Vec<Netns>,
    spawner: Spawner,
}

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel or `ip` refused.
    pub async fn build(spawner: &Spawner, topology: Topology) -> Result<Network, LabError> {
        let make = |forwards: bool, what: &str| Netns::new(forwards).map_err(network_error(what));
        let router = make(true, "the router")?;
        let outside = make(false, "the outside client")?;
        let nodes = (1..=topology.nodes).map(|n| make(true, &format!("node {n}"))).collect::<Result<Vec<_>, _>>()?;
        let network = Network { topology, router, outside, nodes, spawner: spawner.clone() };
        network.connect().await?;
        Ok(network)
    }

    async fn connect(&self) -> Result<(), LabError> {
        let paths: Vec<String> = self.nodes.iter().map(path).collect();
        let batch = self.topology.router_commands(&paths, &path(&self.outside));
        self.spawner.ip(&self.router, batch).await.map_err(network_error("the router"))?;
        let outside = self.spawner.ip(&self.outside, self.topology.outside_commands());
        let nodes = (1u8..).zip(&self.nodes).map(|(n, netns)| self.spawner.ip(netns, self.topology.node_commands(n)));
        let (outside, nodes) = tokio::join!(outside, futures::future::join_all(nodes));
        outside.map_err(network_error("the outside client"))?;
        for (n, result) in (1..).zip(nodes) {
            result.map_err(network_error(&format!("node {n}")))?;
        }
        Ok(())
    }

    /// Links a pod's namespace to node `n` (from 1) with host part `host`.
    ///
    /// # Errors
    /// `ip` refused.
    pub async fn connect_pod(&self, n: u8, host: u8, pod: &Netns) -> io::Result<()> {
        let node = &self.nodes[usize::from(n) - 1];
        let port = pod_port(host);
        self.spawner.ip(pod, self.topology.pod_commands(n, host, &port, &path(node))).await?;
        self.spawner.ip(node, self.topology.pod_port_commands(&port)).await
    }

    /// Takes a pod's link away at once; the namespace itself may live on for a moment.
    ///
    /// # Errors
    /// `ip` refused.
    pub async fn disconnect_pod(&self, n: u8, host: u8) -> io::Result<()> {
        let node = &self.nodes[usize::from(n) - 1];
        self.spawner.ip(node, vec![format!("link del {}", pod_port(host))]).await
    }

    /// Cuts or mends the link between node `n` and the node segment.
    ///
    /// # Errors
    /// `ip` refused.
    pub async fn set_link(&self, n: u8, up: bool) -> io::Result<()> {
        let state = if up { "up" } else { "down" };
        self.spawner.ip(&self.router, vec![format!("link set {} {state}", node_port(n))]).await
    }

    /// Has the router send an address to node `n`, or drop it as before.
    ///
    /// # Errors
    /// `ip` refused.
    pub async fn set_route(&self, address: IpAddr, n: Option<u8>) -> io::Result<()> {
        let command = match n {
            None => format!("route del {address}"),
            Some(n) => {
                let via = self.topology.node(n).into_iter().find(|via| via.is_ipv4() == address.is_ipv4());
                let via =
                    via.ok_or_else(|| io::Error::other(format!("node {n} has no address of {address}'s family")))?;
                format!("route replace {address} via {via} dev {SEGMENT}")
            }
        };
        self.spawner.ip(&self.router, vec![command]).await
    }
}

fn path(netns: &Netns) -> String {
    netns.path().display().to_string()
}

fn network_error(what: &str) -> impl FnOnce(io::Error) -> LabError {
    let what = what.to_owned();
    move |source| LabError::Network { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Families;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    /// Every place reaches every other with its own address, over both families.
    #[tokio::test(flavor = "multi_thread")]
    async fn pods_nodes_and_the_outside_client_reach_each_other() {
        let spawner = Spawner::start().unwrap();
        let network = Network::build(&spawner, Topology { families: Families::Dual, nodes: 2 }).await.unwrap();
        let mut places = vec![
            (network.outside.clone(), network.topology.outside()),
            (network.nodes[0].clone(), network.topology.node(1)),
            (network.nodes[1].clone(), network.topology.node(2)),
            (network.router.clone(), network.topology.router()),
        ];
        for (n, host) in [(1, 2), (1, 3), (2, 2)] {
            let pod = Netns::new(false).unwrap();
            network.connect_pod(n, host, &pod).await.unwrap();
            places.push((pod, network.topology.pod(n, host)));
        }
        for (server, addresses) in &places {
            for address in addresses {
                let listener = server.run(|| TcpListener::bind(SocketAddr::new(*address, 0))).unwrap();
                let to = listener.local_addr().unwrap();
                for (client, own) in &places {
                    let stream = client.run(|| TcpStream::connect_timeout(&to, std::time::Duration::from_secs(2)));
                    let from = stream.unwrap_or_else(|e| panic!("{own:?} to {to}: {e}")).local_addr().unwrap();
                    assert!(own.contains(&from.ip()) || from.ip() == to.ip() || own.len() > 1, "{from}");
                    let (_, peer) = listener.accept().unwrap();
                    assert_eq!(peer, from);
                }
            }
        }
        network.set_link(2, false).await.unwrap();
        let to = SocketAddr::new(network.topology.node(2)[0], 1);
        let cut = network.nodes[0].run(|| TcpStream::connect_timeout(&to, std::time::Duration::from_millis(100)));
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::TimedOut);
        network.disconnect_pod(1, 2).await.unwrap();
    }
}

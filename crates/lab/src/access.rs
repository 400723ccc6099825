//! How a lab's API is reached: its listeners, its certificate and token, the kubeconfigs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use signpost_apiserver::{ApiServer, TlsIdentity, Token};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::LabError;
use crate::netns::Netns;
use crate::network::Network;
use crate::state::{self, LabDir};
use crate::topology::first_host;

/// How the API is reached.
pub(crate) struct Access {
    identity: TlsIdentity,
    token: Token,
    /// For this machine's kubectl.
    pub machine_url: String,
    inside_url: String,
}

impl Access {
    /// Writes the kubeconfigs; gives the path of kubectl's.
    pub fn write(&self, dir: &LabDir) -> Result<PathBuf, LabError> {
        let path = dir.kubeconfig();
        let text = |url: &str| signpost_apiserver::kubeconfig(url, &self.identity, &self.token);
        state::write_private(&path, &text(&self.machine_url))?;
        state::write_private(&dir.node_kubeconfig(), &text(&self.inside_url))?;
        Ok(path)
    }

    /// For programs in the lab.
    pub fn inside_kubeconfig(&self) -> String {
        signpost_apiserver::kubeconfig(&self.inside_url, &self.identity, &self.token)
    }
}

/// Serves the API on the machine's loopback and at the router's addresses.
pub(crate) async fn serve(
    api: &Arc<ApiServer>,
    network: &Network,
    shutdown: &CancellationToken,
) -> Result<(JoinSet<()>, Access), LabError> {
    let topology = &network.topology;
    let mut addresses = topology.router();
    addresses.extend(topology.service_cidrs().iter().filter_map(first_host));
    let identity = TlsIdentity::generate(&addresses, &[]).map_err(|error| LabError::Api(Box::new(error)))?;
    let token = Token::generate();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let machine = listen(loopback, None)?;
    let port = machine.local_addr().map_err(|source| LabError::Listen { address: loopback, source })?.port();
    let mut listeners = vec![machine];
    for address in topology.api() {
        listeners.push(listen(address, Some(&network.router))?);
    }
    let mut serving = JoinSet::new();
    for listener in listeners {
        let (api, identity, token, shutdown) = (api.clone(), identity.clone(), token.clone(), shutdown.clone());
        serving.spawn(async move { api.serve(listener, &identity, token, shutdown).await });
    }
    let inside = topology.api().first().map(ToString::to_string).unwrap_or_default();
    let access = Access {
        identity,
        token,
        machine_url: format!("https://127.0.0.1:{port}"),
        inside_url: format!("https://{inside}"),
    };
    Ok((serving, access))
}

fn listen(address: SocketAddr, netns: Option<&Netns>) -> Result<TcpListener, LabError> {
    let bind = || std::net::TcpListener::bind(address);
    let bound = match netns {
        Some(netns) => netns.run(bind),
        None => bind(),
    };
    let ready = bound.and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    ready.map_err(|source| LabError::Listen { address, source })
}

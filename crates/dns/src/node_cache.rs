//! Tells the node daemon that this node's questions can come here, as long as all zones are known. See
//! [`signpost_core::node_cache`].

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::path::Path;
use std::time::Duration;

use signpost_core::node_cache::{self, HEARTBEAT};
use signpost_core::object::Family;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tracing::{debug, info};

use crate::http::Told;

/// Between two looks whether all is known.
const LOOK: Duration = Duration::from_millis(50);

/// Where a node's cache answers, if nobody says otherwise.
pub fn addresses() -> Vec<SocketAddr> {
    let mut families = vec![Family::Ipv4];
    if Path::new("/proc/sys/net/ipv6").exists() {
        families.push(Family::Ipv6);
    }
    families.into_iter().map(node_cache::socket_address).collect()
}

/// Tells it for ever: closed when this is dropped, so that a process that ends is missed at once.
pub async fn tell(told: Told) {
    loop {
        while !told.is_ready() {
            tokio::time::sleep(LOOK).await;
        }
        match connect() {
            Ok(stream) => {
                info!("the node daemon sends this node's questions here");
                let error = beat(stream, &told).await;
                info!(error = error.map(|error| error.to_string()), "the node daemon sends no questions here any more");
            }
            Err(error) => debug!(%error, "no node daemon runs here"),
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
}

fn connect() -> io::Result<UnixStream> {
    let stream = net::UnixStream::connect_addr(&net::SocketAddr::from_abstract_name(node_cache::SOCKET)?)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// As long as all is known and somebody hears it.
async fn beat(mut stream: UnixStream, told: &Told) -> Option<io::Error> {
    while told.is_ready() {
        if let Err(error) = stream.write_all(b".").await {
            return Some(error);
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
    None
}

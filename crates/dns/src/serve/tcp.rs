//! Questions by TCP: each has its length before it, several may follow each other (RFC 7766).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::{Origin, Shared, udp};
use crate::message::Transport;

/// Connections at once, and of one client.
const CONNECTIONS: usize = 1024;
const OF_ONE_CLIENT: usize = 64;
/// How long a connection without a question stays; and how long a client may take to read an answer.
const IDLE: Duration = Duration::from_secs(10);
/// After a failed accept (no descriptors left): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 512;

/// How many connections each client has.
type Clients = Arc<Mutex<HashMap<IpAddr, usize>>>;

pub(super) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::from_std(udp::stream_listener(address, BACKLOG)?)
}

/// Answers for ever.
pub(super) async fn serve(stream: TcpListener, listener: SocketAddr, shared: Arc<Shared>) {
    let clients = Clients::default();
    // Ends them when the listener is dropped.
    let mut connections = JoinSet::new();
    loop {
        let (stream, client) = match stream.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%listener, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        // One that is over the limit is closed: its client asks again, or another server.
        let Some(place) = Place::take(&clients, client.ip()).filter(|_| connections.len() < CONNECTIONS) else {
            continue;
        };
        let origin = Origin { listener, client, transport: Transport::Tcp };
        let shared = shared.clone();
        connections.spawn(async move {
            if let Err(error) = connection(stream, origin, &shared).await {
                debug!(%client, %error, "a connection ended");
            }
            drop(place);
        });
    }
}

async fn connection(mut stream: TcpStream, origin: Origin, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let length = in_time(stream.read_u16()).await?;
        buffer.resize(length.into(), 0);
        in_time(stream.read_exact(&mut buffer)).await?;
        let answer = match shared.read(&buffer, origin) {
            Ok(request) => shared.answer(shared.engine(), request, origin).await,
            Err(reply) => reply,
        };
        // What gets no answer by UDP ends the connection.
        let Some(answer) = answer else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        in_time(stream.write_all(&framed)).await?;
    }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(IDLE, work).await.map_err(|_| io::ErrorKind::TimedOut)?
}

struct Place {
    clients: Clients,
    client: IpAddr,
}

impl Place {
    fn take(clients: &Clients, client: IpAddr) -> Option<Place> {
        let mut known = clients.lock().unwrap_or_else(PoisonError::into_inner);
        let count = known.entry(client).or_default();
        if *count >= OF_ONE_CLIENT {
            return None;
        }
        *count += 1;
        Some(Place { clients: clients.clone(), client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                known.remove(&self.client);
            }
        }
    }
}

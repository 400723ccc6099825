//! Asks the node daemon for what it has programmed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use signpost_node::rules::Listing;

use super::Wanted;

/// A daemon that works on a large change answers when it is done.
const ANSWER: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(2);

/// Whether somebody answered.
pub(super) enum Asked {
    /// The daemon, with its programs still in the words of its mode.
    Answer(Box<Listing<Value>>),
    /// Nobody, and why that is known.
    Nobody(io::Error),
}

/// Asks.
///
/// # Errors
/// Something answers that is no daemon of this version.
pub(super) fn ask(daemon: SocketAddr, wanted: &Wanted) -> anyhow::Result<Asked> {
    let parts = [("namespace", &wanted.namespace), ("name", &wanted.name)];
    let query = parts.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
    let query: Vec<String> = query.collect();
    let text = match get(daemon, &format!("/rules?{}", query.join("&"))) {
        Ok(text) => text,
        Err(error) => return Ok(Asked::Nobody(error)),
    };
    let (head, body) = text.split_once("\r\n\r\n").context("what answers does not speak HTTP")?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        bail!("what listens at {daemon} is not a signpost node daemon of this version: it says {first:?}");
    }
    let listing = serde_json::from_str(body).context("the daemon is of another version: its answer cannot be read")?;
    Ok(Asked::Answer(Box::new(listing)))
}

fn get(daemon: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&daemon, CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

//! Nodes tell each other that they live: small datagrams on the nodes' own network, without load on the API.
//!
//! A datagram is signed with a key that only nodes can read (a Secret): pods reach the port too, and must not be able to speak
//! for a node. Counted numbers keep a recorded one from being of use.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use signpost_core::announce::liveness::Heartbeat;
use signpost_metallb::NAMESPACE;
use tokio::io::AsyncReadExt;
use tokio::net::UdpSocket;

/// Where nodes listen: the port that MetalLB's speakers use for the same end.
pub const PORT: u16 = 7946;
/// The Secret with the key, and its field.
const SECRET: &str = "signpost-heartbeat";
const FIELD: &str = "key";

const MAGIC: &[u8; 4] = b"SGP1";
const TAG: usize = 32;
/// A datagram of more than this has no reason: some thousand nodes.
const MOST: usize = 60_000;
const BLOCK: usize = 64;

/// The key of a cluster's heartbeats.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl Key {
    /// Reads the cluster's key; the first node that looks makes it.
    ///
    /// # Errors
    /// The API's, or no random numbers.
    pub async fn get(client: &Client) -> Result<Key, KeyError> {
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        loop {
            let found =
                api.get_opt(SECRET).await?.and_then(|secret| secret.data).and_then(|mut data| data.remove(FIELD));
            if let Some(key) = found.filter(|key| key.0.len() >= TAG) {
                return Ok(Key(key.0));
            }
            let mut random = vec![0; TAG];
            tokio::fs::File::open("/dev/urandom").await?.read_exact(&mut random).await?;
            let secret = Secret {
                metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
                data: Some(BTreeMap::from([(FIELD.to_owned(), ByteString(random))])),
                ..Secret::default()
            };
            match api.create(&PostParams::default(), &secret).await {
                Ok(_) => {}
                // Another node was first, or somebody made one without a key.
                Err(kube::Error::Api(status)) if status.code == 409 => tokio::time::sleep(super::RETRY).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// HMAC-SHA-256 (RFC 2104).
    fn sign(&self, bytes: &[u8]) -> [u8; TAG] {
        let mut block = [0; BLOCK];
        if self.0.len() > BLOCK {
            block[..TAG].copy_from_slice(&Sha256::digest(&self.0));
        } else {
            block[..self.0.len()].copy_from_slice(&self.0);
        }
        let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(bytes).finalize();
        Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The API's error.
    #[error("the Secret {NAMESPACE}/{SECRET} cannot be had: {0}")]
    Api(#[from] kube::Error),
    /// No random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] io::Error),
}

/// Why a datagram counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unheard {
    /// Not a heartbeat.
    #[error("not a heartbeat")]
    Form,
    /// Signed with another key, or by nobody.
    #[error("signed with another key")]
    Signature,
}

/// A heartbeat as a datagram.
pub fn encode(heartbeat: &Heartbeat, key: &Key) -> Vec<u8> {
    let name = heartbeat.node.as_bytes();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(heartbeat.life.to_be_bytes());
    bytes.extend(heartbeat.number.to_be_bytes());
    bytes.push(u8::from(heartbeat.leaving));
    bytes.push(name.len().min(255) as u8);
    bytes.extend(&name[..name.len().min(255)]);
    for (node, owns) in heartbeat.hears.iter().take((MOST - bytes.len()) / 16) {
        bytes.extend(node.to_be_bytes());
        bytes.extend(owns.to_be_bytes());
    }
    let tag = key.sign(&bytes);
    bytes.extend(tag);
    bytes
}

/// A datagram as a heartbeat.
///
/// # Errors
/// It is none, or not signed with this key.
pub fn decode(bytes: &[u8], key: &Key) -> Result<Heartbeat, Unheard> {
    let split = bytes.len().checked_sub(TAG).ok_or(Unheard::Form)?;
    let (signed, tag) = bytes.split_at(split);
    let rest = signed.strip_prefix(MAGIC).ok_or(Unheard::Form)?;
    // Every byte is looked at, so that the time does not tell how many were right.
    let differs = key.sign(signed).iter().zip(tag).fold(0, |differs, (one, two)| differs | (one ^ two));
    if differs != 0 {
        return Err(Unheard::Signature);
    }
    let (life, rest) = number(rest)?;
    let (count, rest) = number(rest)?;
    let [leaving, length, rest @ ..] = rest else { return Err(Unheard::Form) };
    let (name, mut rest) = rest.split_at_checked(usize::from(*length)).ok_or(Unheard::Form)?;
    let name = std::str::from_utf8(name).map_err(|_| Unheard::Form)?;
    let mut hears = BTreeMap::new();
    while !rest.is_empty() {
        let (node, after) = number(rest)?;
        let (owns, after) = number(after)?;
        hears.insert(node, owns);
        rest = after;
    }
    Ok(Heartbeat { node: name.into(), life, number: count, leaving: *leaving != 0, hears })
}

fn number(bytes: &[u8]) -> Result<(u64, &[u8]), Unheard> {
    let (number, rest) = bytes.split_first_chunk().ok_or(Unheard::Form)?;
    Ok((u64::from_be_bytes(*number), rest))
}

/// Listens on every address of the node, of both families where there are both.
///
/// # Errors
/// The port is taken.
pub async fn listen() -> io::Result<UdpSocket> {
    match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).await {
        Ok(socket) => Ok(socket),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        // No IPv6 here.
        Err(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).await,
    }
}

/// Sends a datagram to nodes. What cannot be sent is as good as lost: the receiver counts.
pub fn send(socket: &UdpSocket, datagram: &[u8], to: &BTreeSet<IpAddr>) {
    let is_v6 = socket.local_addr().is_ok_and(|address| address.is_ipv6());
    for address in to {
        let address = match address {
            IpAddr::V4(v4) if is_v6 => IpAddr::V6(v4.to_ipv6_mapped()),
            other => *other,
        };
        if let Err(error) = socket.try_send_to(datagram, SocketAddr::new(address, PORT)) {
            tracing::trace!(%address, %error, "a heartbeat was not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key(vec![byte; 32])
    }

    fn heartbeat() -> Heartbeat {
        Heartbeat { node: "n1".into(), life: 7, number: 9, leaving: true, hears: [(1, 2), (u64::MAX, 0)].into() }
    }

    /// RFC 4231, test cases 2 and 6.
    #[test]
    fn signatures_are_those_of_the_rfc() {
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(Key(b"Jefe".to_vec()).sign(b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(Key(vec![0xaa; 131]).sign(b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_heartbeat_reads_back_and_only_with_its_key() {
        let datagram = encode(&heartbeat(), &key(1));
        assert_eq!(decode(&datagram, &key(1)), Ok(heartbeat()));
        assert_eq!(decode(&datagram, &key(2)), Err(Unheard::Signature));
        for at in MAGIC.len()..datagram.len() {
            let mut spoiled = datagram.clone();
            spoiled[at] ^= 1;
            assert_eq!(decode(&spoiled, &key(1)), Err(Unheard::Signature), "byte {at}");
        }
        for length in 0..datagram.len() {
            assert!(decode(&datagram[..length], &key(1)).is_err());
        }
    }

    #[test]
    fn well_signed_nonsense_is_refused() {
        for text in
            [&b"SGP1"[..], b"SGP1aaaaaaaabbbbbbbb", b"SGP1aaaaaaaabbbbbbbb\0\x05abc", b"SGP1aaaaaaaabbbbbbbb\0\0abc"]
        {
            let mut datagram = text.to_vec();
            datagram.extend(key(1).sign(text));
            assert_eq!(decode(&datagram, &key(1)), Err(Unheard::Form));
        }
    }
}

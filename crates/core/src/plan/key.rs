//! Pure. A frontend's key as text: `10.96.0.1:80/tcp`, `[fd00:10:96::1]:80/udp`, `nodeport:30080/tcp`. So that a plan can be
//! JSON, whose keys are strings, and so that people and messages name frontends in one way.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::object::Protocol;
use crate::plan::FrontendKey;

/// Why a text is no frontend's key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no frontend: it takes ADDRESS:PORT/PROTOCOL or nodeport:PORT/PROTOCOL")]
pub struct FrontendKeyError {
    /// The text.
    pub text: String,
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontendKey::Address { address, protocol, port } => {
                write!(f, "{}/{protocol}", SocketAddr::new(*address, port.get()))
            }
            FrontendKey::NodePort { protocol, port } => write!(f, "nodeport:{port}/{protocol}"),
        }
    }
}

impl FromStr for FrontendKey {
    type Err = FrontendKeyError;

    fn from_str(text: &str) -> Result<FrontendKey, FrontendKeyError> {
        parse(text).ok_or_else(|| FrontendKeyError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<FrontendKey> {
    let (place, protocol) = text.rsplit_once('/')?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return None,
    };
    if let Some(port) = place.strip_prefix("nodeport:") {
        return Some(FrontendKey::NodePort { protocol, port: port.parse().ok()? });
    }
    let place: SocketAddr = place.parse().ok()?;
    Some(FrontendKey::Address { address: place.ip(), protocol, port: NonZeroU16::new(place.port())? })
}

impl Serialize for FrontendKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FrontendKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FrontendKey, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lead_back_to_their_keys() {
        for text in ["10.96.0.1:80/tcp", "[fd00:10:96::1]:53/udp", "nodeport:30080/sctp"] {
            assert_eq!(text.parse::<FrontendKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "10.96.0.1:80",
            "10.96.0.1:0/tcp",
            "10.96.0.1/tcp",
            "nodeport:0/tcp",
            "fd00::1:80/tcp",
            "1.2.3.4:80/TCP",
        ] {
            assert!(text.parse::<FrontendKey>().is_err(), "{text}");
        }
    }
}

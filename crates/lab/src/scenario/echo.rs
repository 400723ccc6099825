//! Pure. What a probe asks the echo server, and how it reads the answer.
//!
//! Over TCP both sides speak HTTP/1.1 (any method, any path; a body of `size` bytes), over UDP one datagram is
//! answered by one. The answer is a JSON object of [`Greeting`]'s fields; what else stands in it does not count.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::address::PodName;
use super::expect::Answer;

/// The path that a plain TCP probe asks for.
pub const PATH: &str = "/";

/// What the echo server tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The pod's namespace.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The sender's address and port as the pod sees them.
    pub peer: SocketAddr,
    /// The address and port at which it was reached; `None`: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<SocketAddr>,
    /// How many bytes of payload came; `None`: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// A request with a body of `size` bytes.
pub fn http_request(path: &str, host: SocketAddr, size: usize) -> Vec<u8> {
    let method = if size == 0 { "GET" } else { "POST" };
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nContent-Length: {size}\r\n\r\n"
    )
    .into_bytes();
    request.resize(request.len() + size, b'x');
    request
}

/// The answer, once all of it is there: status line, headers, and the body that they announce.
pub fn http_answer(received: &[u8], sent: usize) -> Option<Answer> {
    let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&received[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned()))
        .collect();
    let body = &received[end + 4..];
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let body = body.get(..length)?;
    let mut answer = greeting(body, sent);
    answer.status = status;
    answer.headers = headers;
    answer.body = String::from_utf8_lossy(body).into_owned();
    Some(answer)
}

/// A datagram of `size` bytes; an empty one would be no question.
pub fn datagram(size: usize) -> Vec<u8> {
    vec![b'x'; size.max(1)]
}

/// The answer in a datagram.
pub fn datagram_answer(received: &[u8], sent: usize) -> Answer {
    greeting(received, sent)
}

fn greeting(body: &[u8], sent: usize) -> Answer {
    let Ok(greeting) = serde_json::from_slice::<Greeting>(body) else { return Answer::default() };
    let fault = match greeting.bytes {
        Some(bytes) if sent > 1 && bytes != sent => Some(format!("{bytes} of {sent} bytes arrived")),
        _ => None,
    };
    Answer {
        pod: Some(PodName { namespace: greeting.namespace, name: greeting.pod }),
        peer: Some(greeting.peer.ip().to_canonical()),
        reached: greeting.reached.map(|reached| SocketAddr::new(reached.ip().to_canonical(), reached.port())),
        fault,
        ..Answer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"pod":"web-1","namespace":"shop","peer":"[::ffff:10.244.1.2]:4000","bytes":7,"more":1}"#;

    #[test]
    fn an_answer_is_read_when_its_body_is_whole() {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Pod: web-1\r\n\r\n{BODY}", BODY.len());
        let bytes = text.as_bytes();
        for cut in [0, 10, bytes.len() - 1] {
            assert_eq!(http_answer(&bytes[..cut], 0), None);
        }
        let answer = http_answer(bytes, 0).unwrap();
        assert_eq!(answer.pod, Some(PodName::parse("shop/web-1")));
        assert_eq!(answer.peer, Some("10.244.1.2".parse().unwrap()));
        assert_eq!((answer.status, answer.fault), (Some(200), None));
        assert_eq!(answer.headers["x-pod"], "web-1");
    }

    #[test]
    fn missing_payload_is_a_fault() {
        assert_eq!(datagram_answer(BODY.as_bytes(), 7).fault, None);
        assert!(datagram_answer(BODY.as_bytes(), 8).fault.is_some());
    }

    #[test]
    fn a_stranger_is_an_answer_without_a_name() {
        for hostile in [&b""[..], b"\xff\xfe", b"{}", b"{\"pod\":1}"] {
            assert_eq!(datagram_answer(hostile, 0), Answer::default());
        }
        assert_eq!(
            http_answer(b"HTTP/1.1 404\r\nContent-Length: 99999999999999999999\r\n\r\n", 0).unwrap().status,
            Some(404)
        );
    }

    #[test]
    fn a_request_carries_its_payload() {
        let request = http_request("/a", "[fd00::1]:80".parse().unwrap(), 3);
        assert!(request.starts_with(b"POST /a HTTP/1.1\r\nHost: [fd00::1]:80\r\n"));
        assert!(request.ends_with(b"\r\n\r\nxxx"));
        assert_eq!(datagram(0).len(), 1);
    }
}

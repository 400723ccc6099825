//! How long the kernel remembers flows: kube-proxy's `conntrack` timeouts, written once at the start. A connection that one
//! side has closed (CLOSE_WAIT) is otherwise forgotten after a minute, and what its backend still sends then leaves with the
//! wrong source (kubernetes#32551).

use std::path::Path;
use std::time::Duration;

use tracing::warn;

/// Below `/proc/sys/net/netfilter`; the kernel shows there the network namespace of who looks.
const FOLDER: &str = "/proc/sys/net/netfilter";

/// The timeouts; `None`: the kernel's own are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// Of an idle connection.
    pub tcp_established: Option<Duration>,
    /// Of a connection that one side has closed.
    pub tcp_close_wait: Option<Duration>,
    /// Of a datagram without an answer.
    pub udp: Option<Duration>,
    /// Of datagrams to and fro.
    pub udp_stream: Option<Duration>,
}

impl Default for Timeouts {
    /// kube-proxy's.
    fn default() -> Timeouts {
        Timeouts {
            tcp_established: Some(Duration::from_secs(24 * 60 * 60)),
            tcp_close_wait: Some(Duration::from_secs(60 * 60)),
            udp: None,
            udp_stream: None,
        }
    }
}

impl Timeouts {
    /// Tells the kernel, in the network namespace of the calling thread. What it refuses is told, and no reason not to serve.
    pub fn set(&self) {
        self.set_below(Path::new(FOLDER));
    }

    fn set_below(&self, folder: &Path) {
        let all = [
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        for (name, timeout) in all {
            let Some(timeout) = timeout else { continue };
            let seconds = timeout.as_secs().to_string();
            let path = folder.join(name);
            if std::fs::read_to_string(&path).is_ok_and(|now| now.trim() == seconds) {
                continue;
            }
            if let Err(error) = std::fs::write(&path, &seconds) {
                warn!(path = %path.display(), seconds, %error, "a timeout of conntrack cannot be set");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_written_and_the_rest_left() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("nf_conntrack_tcp_timeout_close_wait"), "60\n").unwrap();
        std::fs::write(at("nf_conntrack_udp_timeout"), "30\n").unwrap();
        Timeouts { tcp_established: None, ..Timeouts::default() }.set_below(folder.path());
        assert_eq!(std::fs::read_to_string(at("nf_conntrack_tcp_timeout_close_wait")).unwrap(), "3600");
        assert_eq!(std::fs::read_to_string(at("nf_conntrack_udp_timeout")).unwrap(), "30\n");
        assert!(!at("nf_conntrack_tcp_timeout_established").exists());
    }
}

//! Pure. What the nodes' kernels must remember of the clients of Services with session affinity, by what was seen so far: the
//! entry that the walks take as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use signpost_core::object::{Protocol, ServicePortName};

use super::predict::At;

/// Whom a node remembers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    /// The node.
    pub node: String,
    /// The Service port, whose frontends mostly remember together.
    pub service_port: ServicePortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// Sockets and rules do not remember for each other.
    pub at: At,
    /// The client's address, as the node sees it.
    pub source: IpAddr,
    /// Where it sends to, in a mode in which each frontend remembers for itself.
    pub destination: Option<SocketAddr>,
}

/// A client that a walk asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Which.
    pub client: Client,
    /// The backends that it may be sent to.
    pub allowed: BTreeSet<SocketAddr>,
    /// How long it is remembered; `None`: the Service has no affinity now.
    pub timeout: Option<Duration>,
}

/// When each client was last sent to which backends.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    seen: BTreeMap<Client, BTreeMap<SocketAddr, Instant>>,
}

/// So close to its end an entry may end between the prediction and the packet.
const UNSURE: Duration = Duration::from_millis(500);

impl Memory {
    /// The backend that binds a client; `None` if none does or that is not sure.
    pub fn bound(&self, asked: &Asked, now: Instant) -> Option<SocketAddr> {
        let sure = asked.timeout?.saturating_sub(UNSURE);
        let seen = self.seen.get(&asked.client).into_iter().flatten();
        let mut living = seen.filter(|(to, at)| now.duration_since(**at) < sure && asked.allowed.contains(to));
        let (to, _) = living.next()?;
        // A client that was let go by one backend, which came back since, is remembered for two.
        living.next().is_none().then_some(*to)
    }

    /// A client reached a backend; one that no walk led it to says nothing of it. Without affinity the kernel may forget
    /// or not: a mode's business.
    pub fn reached(&mut self, asked: &Asked, backend: SocketAddr, now: Instant) {
        if asked.timeout.is_none() {
            self.forget(&asked.client);
        } else if asked.allowed.contains(&backend) {
            self.seen.entry(asked.client.clone()).or_default().insert(backend, now);
        }
    }

    /// Nobody knows any more what is remembered of a client.
    pub fn forget(&mut self, client: &Client) {
        self.seen.remove(client);
    }
}

#[cfg(test)]
mod tests {
    use signpost_core::object::ObjectName;

    use super::*;

    #[test]
    fn the_one_living_entry_among_the_allowed_binds() {
        let service_port = ServicePortName { service: ObjectName::new("default", "web"), port: "".into() };
        let client = Client {
            node: "n1".to_owned(),
            service_port,
            protocol: Protocol::Tcp,
            at: At::Packet,
            source: [10, 244, 1, 2].into(),
            destination: None,
        };
        let at = |last| SocketAddr::from(([10, 244, 2, last], 80));
        let asked = |allowed: &[u8]| Asked {
            client: client.clone(),
            allowed: allowed.iter().map(|last| at(*last)).collect(),
            timeout: Some(Duration::from_secs(10)),
        };
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut memory = Memory::default();
        assert_eq!(memory.bound(&asked(&[2, 3]), begin), None);
        memory.reached(&asked(&[2, 3]), at(4), begin);
        assert_eq!(memory.bound(&asked(&[2, 3, 4]), begin), None);
        memory.reached(&asked(&[2, 3]), at(2), begin);
        assert_eq!(memory.bound(&asked(&[2, 3]), after(9)), Some(at(2)));
        assert_eq!(memory.bound(&asked(&[2, 3]), after(10)), None);
        assert_eq!(memory.bound(&asked(&[3]), begin), None);
        memory.reached(&asked(&[3]), at(3), after(5));
        assert_eq!(memory.bound(&asked(&[2, 3]), after(6)), None);
        assert_eq!(memory.bound(&asked(&[2, 3]), after(12)), Some(at(3)));
        memory.reached(&Asked { timeout: None, ..asked(&[2, 3]) }, at(2), after(6));
        assert_eq!(memory.bound(&asked(&[2, 3]), after(7)), None);
    }
}

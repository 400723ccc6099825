//! Pure. Who sends and where to: the forms that `from` and `to` take in a scenario.
//!
//! ```text
//! to: [tcp://|udp://|http://|ping://|raw://] DESTINATION [/PATH for http]        dns://NAME[?type=TYPE][&by=tcp]
//! DESTINATION: SERVICE[.NAMESPACE]:PORT | lb/SERVICE:PORT | external/SERVICE:PORT | nodeport/NODE/SERVICE:PORT
//!            | node/NODE:NUMBER | pod/[NAMESPACE/]NAME:NUMBER | ADDRESS:NUMBER | $SAVED[:NUMBER]
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use signpost_core::object::Protocol;

/// Who sends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A pod.
    Pod(PodName),
    /// A process on a node.
    Node(String),
    /// A client beyond the router.
    Outside,
}

/// A pod's namespace and name. Shown without the namespace if that is `default`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// What is sent and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// How.
    pub scheme: Scheme,
    /// Where to.
    pub destination: Destination,
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// A TCP connection to the echo server.
    Tcp,
    /// A datagram to the echo server.
    Udp,
    /// An HTTP request for a path.
    Http(String),
    /// An ICMP echo request.
    Ping,
    /// Bytes as they are.
    Raw,
    /// A name lookup.
    Dns(Question),
}

/// What is asked of the name server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The type of records; `address`: A or AAAA, by the family that is asked over.
    pub kind: String,
    /// By TCP alone.
    pub tcp: bool,
}

impl Scheme {
    /// The transport under it; `None` where there is none.
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Scheme::Tcp | Scheme::Http(_) | Scheme::Raw | Scheme::Dns(Question { tcp: true, .. }) => {
                Some(Protocol::Tcp)
            }
            Scheme::Udp | Scheme::Dns(Question { tcp: false, .. }) => Some(Protocol::Udp),
            Scheme::Ping => None,
        }
    }
}

/// A Service by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRef {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// Which of a Service's ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRef {
    /// The port with this number. A number that the Service does not have is sent to all the same.
    Number(u16),
    /// The port with this name.
    Name(String),
    /// None given: what has no ports (an ICMP echo), or a saved address that has its own.
    None,
}

/// Where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The Service's cluster address.
    Cluster(ServiceRef, PortRef),
    /// Its load-balancer address.
    LoadBalancer(ServiceRef, PortRef),
    /// The first of its external addresses.
    External(ServiceRef, PortRef),
    /// A node's address and the Service's node port.
    NodePort(String, ServiceRef, PortRef),
    /// A node's address.
    Node(String, PortRef),
    /// A pod's address.
    Pod(PodName, PortRef),
    /// As written.
    Literal(SocketAddr),
    /// An address that a `save` step remembered.
    Saved(String, PortRef),
    /// A name, for a lookup.
    Name(String),
}

impl PodName {
    /// From `NAME` or `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> PodName {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        PodName { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace == "default" {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Pod(pod) => write!(f, "{pod}"),
            Source::Node(node) => write!(f, "node/{node}"),
            Source::Outside => f.write_str("outside"),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        if text == "outside" {
            return Ok(Source::Outside);
        }
        if let Some(node) = text.strip_prefix("node/") {
            return Ok(Source::Node(node.to_owned()));
        }
        let named = text.strip_prefix("pod/").unwrap_or(text);
        if named.is_empty() || named.matches('/').count() > 1 || named.contains(':') {
            return Err(format!("{text} is no sender; write a pod's name, NAMESPACE/POD, node/NAME or outside"));
        }
        Ok(Source::Pod(PodName::parse(named)))
    }
}

impl FromStr for ServiceRef {
    type Err = String;

    fn from_str(text: &str) -> Result<ServiceRef, String> {
        let (name, namespace) = text.split_once('.').unwrap_or((text, "default"));
        let fine = |part: &str| !part.is_empty() && !part.contains(['/', '.', ':']);
        if !fine(name) || !fine(namespace) {
            return Err(format!("{text} is no Service; write NAME or NAME.NAMESPACE"));
        }
        Ok(ServiceRef { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            None => match text.strip_prefix("raw:") {
                Some(rest) => ("raw", rest),
                None => ("tcp", text),
            },
        };
        if scheme == "dns" {
            return lookup(rest);
        }
        let (place, path) = if scheme == "http" { split_path(rest) } else { (rest, "/") };
        let scheme = match scheme {
            "tcp" => Scheme::Tcp,
            "udp" => Scheme::Udp,
            "http" => Scheme::Http(path.to_owned()),
            "ping" => Scheme::Ping,
            "raw" => Scheme::Raw,
            _ => return Err(format!("{scheme}:// is unknown; known are tcp, udp, http, ping, dns and raw")),
        };
        let destination: Destination = place.parse()?;
        if scheme.protocol().is_some() && destination.lacks_port() {
            return Err(format!("{text} names no port; write one after a colon"));
        }
        Ok(Target { scheme, destination })
    }
}

impl Destination {
    fn lacks_port(&self) -> bool {
        match self {
            Destination::Cluster(_, port)
            | Destination::LoadBalancer(_, port)
            | Destination::External(_, port)
            | Destination::NodePort(_, _, port)
            | Destination::Node(_, port)
            | Destination::Pod(_, port) => *port == PortRef::None,
            Destination::Literal(_) | Destination::Saved(..) | Destination::Name(_) => false,
        }
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Destination::Literal(address));
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse() {
            return Ok(Destination::Literal(SocketAddr::new(address, 0)));
        }
        let (place, port) = split_port(text)?;
        if let Some(saved) = place.strip_prefix('$') {
            return Ok(Destination::Saved(saved.to_owned(), port));
        }
        if let Some(service) = place.strip_prefix("lb/") {
            return Ok(Destination::LoadBalancer(service.parse()?, port));
        }
        if let Some(service) = place.strip_prefix("external/") {
            return Ok(Destination::External(service.parse()?, port));
        }
        if let Some(rest) = place.strip_prefix("nodeport/") {
            let (node, service) =
                rest.split_once('/').ok_or_else(|| format!("{text}: write nodeport/NODE/SERVICE:PORT"))?;
            return Ok(Destination::NodePort(node.to_owned(), service.parse()?, port));
        }
        if let Some(node) = place.strip_prefix("node/") {
            return Ok(Destination::Node(node.to_owned(), port));
        }
        if let Some(pod) = place.strip_prefix("pod/") {
            return Ok(Destination::Pod(PodName::parse(pod), port));
        }
        Ok(Destination::Cluster(place.parse()?, port))
    }
}

/// `NAME?type=TYPE`.
fn lookup(rest: &str) -> Result<Target, String> {
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut question = Question { kind: "A".to_owned(), tcp: false };
    for word in query.split('&').filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("type", kind)) if !kind.is_empty() => question.kind = kind.to_owned(),
            Some(("by", "tcp")) => question.tcp = true,
            _ => return Err(format!("{word} is unknown in dns://{rest}; write type=TYPE, by=tcp")),
        }
    }
    if name.is_empty() {
        return Err(format!("dns://{rest} names no name"));
    }
    Ok(Target { scheme: Scheme::Dns(question), destination: Destination::Name(name.to_owned()) })
}

/// A destination and the path behind it: the first slash after the port begins the path.
fn split_path(text: &str) -> (&str, &str) {
    // The colons of an IPv6 address are not the port's.
    let from = text.find(']').unwrap_or(0);
    let port = text[from..].find(':').map_or(0, |at| from + at);
    match text[port..].find('/') {
        Some(slash) => text.split_at(port + slash),
        None => (text, "/"),
    }
}

fn split_port(text: &str) -> Result<(&str, PortRef), String> {
    let Some((place, port)) = text.rsplit_once(':') else { return Ok((text, PortRef::None)) };
    if port.is_empty() {
        return Err(format!("{text} ends with a colon; a port's number or name belongs after it"));
    }
    if !port.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok((place, PortRef::Name(port.to_owned())));
    }
    match port.parse() {
        Ok(number) => Ok((place, PortRef::Number(number))),
        // A port's name may begin with a digit, but has a letter.
        Err(_) if port.contains(|c: char| c.is_ascii_alphabetic()) => Ok((place, PortRef::Name(port.to_owned()))),
        Err(_) => Err(format!("{port} is no port number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    fn service(namespace: &str, name: &str) -> ServiceRef {
        ServiceRef { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_service_and_port_is_a_tcp_connection_to_its_cluster_address() {
        let want = Destination::Cluster(service("default", "web"), PortRef::Number(80));
        assert_eq!(target("web:80"), Target { scheme: Scheme::Tcp, destination: want });
        let want = Destination::Cluster(service("shop", "web"), PortRef::Name("http".to_owned()));
        assert_eq!(target("udp://web.shop:http"), Target { scheme: Scheme::Udp, destination: want });
    }

    #[test]
    fn every_form_of_destination_is_understood() {
        let web = || service("default", "web");
        let n80 = || PortRef::Number(80);
        for (text, want) in [
            ("lb/web:80", Destination::LoadBalancer(web(), n80())),
            ("external/web:80", Destination::External(web(), n80())),
            ("nodeport/n1/web:80", Destination::NodePort("n1".to_owned(), web(), n80())),
            ("node/n1:80", Destination::Node("n1".to_owned(), n80())),
            ("pod/web-1:80", Destination::Pod(PodName::parse("web-1"), n80())),
            ("pod/shop/web-1:80", Destination::Pod(PodName::parse("shop/web-1"), n80())),
            ("10.96.0.1:80", Destination::Literal("10.96.0.1:80".parse().unwrap())),
            ("[fd00::1]:80", Destination::Literal("[fd00::1]:80".parse().unwrap())),
            ("$vip:80", Destination::Saved("vip".to_owned(), n80())),
            ("$vip", Destination::Saved("vip".to_owned(), PortRef::None)),
        ] {
            assert_eq!(target(text).destination, want, "{text}");
        }
    }

    #[test]
    fn the_path_of_an_http_request_begins_after_the_port() {
        for (text, path) in [
            ("http://web:80", "/"),
            ("http://web:80/a/b", "/a/b"),
            ("http://nodeport/n1/web:http/healthz", "/healthz"),
            ("http://[fd00::1]:80/x", "/x"),
        ] {
            assert_eq!(target(text).scheme, Scheme::Http(path.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_ping_needs_no_port_and_a_connection_does() {
        assert_eq!(target("ping://web").destination, Destination::Cluster(service("default", "web"), PortRef::None));
        assert!("web".parse::<Target>().is_err());
        assert!("web:".parse::<Target>().is_err());
        assert!("web:99999".parse::<Target>().is_err());
        assert!("ftp://web:80".parse::<Target>().is_err());
    }

    #[test]
    fn senders_are_pods_nodes_and_outside() {
        assert_eq!("outside".parse(), Ok(Source::Outside));
        assert_eq!("node/n1".parse(), Ok(Source::Node("n1".to_owned())));
        assert_eq!("shop/a".parse(), Ok(Source::Pod(PodName::parse("shop/a"))));
        assert!("a:80".parse::<Source>().is_err());
    }
}

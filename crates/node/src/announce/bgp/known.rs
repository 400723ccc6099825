//! What announcing by BGP needs to know of the API: peers, advertisements, communities, and what every announcer knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::{Node, Secret, Service};
use kube::{Api, Client};
use signpost_cluster::watch::{Told, Watches};
use signpost_core::announce::advertise::Announcer;
use signpost_core::announce::hash;
use signpost_core::labels::{Labels, any_selects};
use signpost_core::load_balancer::Pool;
use signpost_metallb::convert::{Fault, Pools, bgp_selects, labels, selectors};
use signpost_metallb::{BFDProfile, BGPAdvertisement, BGPPeer, Community, IPAddressPool, NAMESPACE};
use signpost_wire::bfd::Profile;
use signpost_wire::bgp::{Family, PeerAs, Route};
use tracing::warn;

use super::super::configuration::of_kind;
use super::super::known::{LoadBalancer, Table, announcer, load_balancer};
use super::bfd::BfdOptions;
use super::peer::PeerOptions;
use super::routes::BgpAdvertisement;
use crate::config::GoDuration;

const PORT: u16 = 179;
const HOLD_TIME: Duration = Duration::from_secs(90);

/// One thing that the API said.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // each is moved once, from a queue into a table
pub enum Word {
    /// Of a pool.
    Pool(Told<IPAddressPool>),
    /// Of an advertisement.
    Advertisement(Told<BGPAdvertisement>),
    /// Of a peer.
    Peer(Told<BGPPeer>),
    /// Of names of communities.
    Community(Told<Community>),
    /// Of BFD's times.
    Profile(Told<BFDProfile>),
    /// Of a load balancer.
    Service(Told<Service>),
    /// Of a node.
    Node(Told<Node>),
}

/// Watches what says whether anything is to be announced at all.
pub fn watch_configuration(client: Client, server: &str) -> impl Stream<Item = Word> + Send + Unpin + use<> {
    let mut watches = Watches::new(client, server);
    watches.add_optional("IPAddressPool", None, |told| vec![Word::Pool(told)]);
    watches.add_optional("BGPAdvertisement", None, |told| vec![Word::Advertisement(told)]);
    watches.add_optional("BGPPeer", None, |told| vec![Word::Peer(told)]);
    watches.add_optional("Community", None, |told| vec![Word::Community(told)]);
    watches.add_optional("BFDProfile", None, |told| vec![Word::Profile(told)]);
    watches.into_stream()
}

/// Watches what else is needed once something is.
pub fn watch_cluster(client: Client, server: &str) -> impl Stream<Item = Word> + Send + Unpin + use<> {
    let mut watches = Watches::new(client, server);
    let load_balancers = Some("spec.type=LoadBalancer".to_owned());
    watches.add_optional("Service", load_balancers, |told| vec![Word::Service(told)]);
    watches.add_optional("Node", None, |told| vec![Word::Node(told)]);
    watches.into_stream()
}

/// Everything.
#[derive(Default)]
pub struct Known {
    pools: Table<IPAddressPool>,
    written: Table<BGPAdvertisement>,
    peers: Table<BGPPeer>,
    communities: Table<Community>,
    profiles: Table<BFDProfile>,
    /// By namespace and name.
    pub services: Table<LoadBalancer>,
    nodes: Table<Announcer>,
    read_pools: Pools,
    usable_pools: Vec<Pool>,
    /// The advertisements that can be used; of a spoiled one the last good form.
    pub advertisements: Vec<BgpAdvertisement>,
    /// What cannot be used.
    pub faults: Vec<Fault>,
    /// What cannot be used of peers.
    peer_faults: Vec<Fault>,
    /// The last good forms of peers.
    good: BTreeMap<Arc<str>, Neighbour>,
}

/// A peer, and how BFD watches it. Apart, as a change of one is none of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The session of BGP.
    pub bgp: PeerOptions,
    /// The session of BFD, if there is to be one.
    pub bfd: Option<BfdOptions>,
}

impl Known {
    /// Takes in what the API said.
    pub fn hear(&mut self, word: Word) {
        match word {
            Word::Pool(told) => {
                self.pools.hear(told, Some);
                let pools: Vec<Arc<IPAddressPool>> = self.pools.all().cloned().collect();
                self.usable_pools = self.read_pools.update(&pools).0;
            }
            Word::Advertisement(told) => {
                self.written.hear(told, Some);
                self.read_advertisements();
            }
            Word::Community(told) => {
                self.communities.hear(told, Some);
                self.read_advertisements();
            }
            Word::Peer(told) => self.peers.hear(told, Some),
            Word::Profile(told) => self.profiles.hear(told, Some),
            Word::Service(told) => self.services.hear(told, |service| Some(load_balancer(&service))),
            Word::Node(told) => self.nodes.hear(told, |node| Some(announcer(&node))),
        }
    }

    /// Whether there is a peer and something that it could be told.
    pub fn has_work(&self) -> bool {
        self.peers.all().next().is_some() && !self.advertisements.is_empty()
    }

    /// Whether all kinds are known.
    pub fn is_whole(&self) -> bool {
        self.pools.is_synced()
            && self.written.is_synced()
            && self.peers.is_synced()
            && self.communities.is_synced()
            && self.profiles.is_synced()
            && self.services.is_synced()
            && self.nodes.is_synced()
    }

    /// The nodes, by name.
    pub fn nodes(&self) -> BTreeMap<Arc<str>, Announcer> {
        self.nodes.by_name()
    }

    /// See the other announcer's.
    pub fn pool_of(&self, service: &LoadBalancer, address: IpAddr) -> Option<Arc<str>> {
        let by_address = || self.usable_pools.iter().find(|pool| pool.has(address)).map(|pool| pool.name.clone());
        service.pool.clone().or_else(by_address)
    }

    /// The labels of a pool.
    pub fn pool_labels(&self, pool: &str) -> Labels {
        let found = self.pools.all().find(|object| object.name() == pool);
        labels(found.and_then(|object| object.metadata.labels.as_ref()))
    }

    fn read_advertisements(&mut self) {
        let names: BTreeMap<&str, &str> = self
            .communities
            .all()
            .flat_map(|object| &object.spec.communities)
            .map(|alias| (alias.name.as_str(), alias.value.as_str()))
            .collect();
        let mut read = Vec::new();
        let mut faults = Vec::new();
        for object in self.written.all() {
            match advertisement(object, &names) {
                Ok(advertisement) => read.push(advertisement),
                Err(problem) => {
                    faults.push(Fault { name: object.name().into(), problem });
                    let former = self.advertisements.iter().find(|one| &*one.selects.name == object.name());
                    read.extend(former.cloned());
                }
            }
        }
        for fault in faults.iter().filter(|fault| !self.faults.contains(fault)) {
            warn!(advertisement = %fault.name, problem = fault.problem, "a BGPAdvertisement cannot be used as it is written");
        }
        (self.advertisements, self.faults) = (read, faults);
    }

    /// Everything that cannot be used as it is written.
    pub fn all_faults(&self) -> Vec<Fault> {
        [of_kind("BGPAdvertisement", &self.faults), of_kind("BGPPeer", &self.peer_faults)].concat()
    }

    /// The peers that this node is to talk with. Of a spoiled one the last good form.
    pub async fn peers(&mut self, node: &Arc<str>, client: &Client) -> BTreeMap<Arc<str>, Neighbour> {
        let nodes = self.nodes();
        let Some(own) = nodes.get(node) else { return self.good.clone() };
        let (mut all, mut faults) = (BTreeMap::new(), Vec::new());
        let objects: Vec<Arc<BGPPeer>> = self.peers.all().cloned().collect();
        for object in objects {
            let name: Arc<str> = object.name().into();
            let read = match selectors("spec.nodeSelectors", &object.spec.node_selectors) {
                Ok(selectors) if !any_selects(&selectors, &own.labels) => continue,
                Ok(_) => match password(&object, client).await {
                    Ok(password) => peer(&object, own, node, password).and_then(|bgp| {
                        let bfd = self.bfd(&object, &bgp)?;
                        Ok(Neighbour { bgp, bfd })
                    }),
                    Err(problem) => Err(problem),
                },
                Err(problem) => Err(problem),
            };
            match read {
                Ok(neighbour) => drop(all.insert(name, neighbour)),
                Err(problem) => {
                    let fault = Fault { name: name.clone(), problem };
                    if !self.peer_faults.contains(&fault) {
                        warn!(peer = %fault.name, problem = fault.problem, "a BGPPeer cannot be used as it is written");
                    }
                    faults.push(fault);
                    all.extend(self.good.get(&name).map(|former| (name.clone(), former.clone())));
                }
            }
        }
        self.peer_faults = faults;
        self.good.clone_from(&all);
        all
    }

    fn bfd(&self, object: &BGPPeer, bgp: &PeerOptions) -> Result<Option<BfdOptions>, String> {
        let Some(wanted) = object.spec.bfd_profile.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
        if bgp.vrf.is_some() {
            return Err("spec.bfdProfile: BFD does not run in a vrf".to_owned());
        }
        let namespace = object.metadata.namespace.as_ref();
        let found =
            self.profiles.all().find(|one| one.name() == wanted && one.metadata.namespace.as_ref() == namespace);
        let found = found.ok_or_else(|| format!("spec.bfdProfile: there is no BFDProfile {wanted:?}"))?;
        let (profile, minimum_ttl) = profile(found).map_err(|problem| format!("BFDProfile {wanted}: {problem}"))?;
        Ok(Some(BfdOptions {
            peer: bgp.address.ip(),
            source: bgp.source,
            multi_hop: object.spec.ebgp_multi_hop.unwrap_or(false),
            minimum_ttl,
            profile,
        }))
    }
}

/// How fast BFD is to be, and the least TTL of its packets over several hops.
fn profile(object: &BFDProfile) -> Result<(Profile, u8), String> {
    let spec = &object.spec;
    let within = |field: &str, value: Option<i32>, default: u32, (least, most): (u32, u32)| {
        let value = value.map_or(Ok(default), u32::try_from).ok().filter(|value| (least..=most).contains(value));
        value.ok_or_else(|| format!("spec.{field}: it is {least} to {most}"))
    };
    if spec.echo_mode == Some(true) {
        return Err("spec.echoMode: this version does not do that".to_owned());
    }
    let millis = |field, value| within(field, value, 300, (10, 60_000)).map(|ms| Duration::from_millis(ms.into()));
    let small = |value: u32| u8::try_from(value).map_err(|_| "out of range".to_owned());
    let profile = Profile {
        transmit: millis("transmitInterval", spec.transmit_interval)?,
        receive: millis("receiveInterval", spec.receive_interval)?,
        multiplier: small(within("detectMultiplier", spec.detect_multiplier, 3, (2, 255))?)?,
        passive: spec.passive_mode.unwrap_or(false),
    };
    Ok((profile, small(within("minimumTtl", spec.minimum_ttl, 254, (1, 254))?)?))
}

async fn password(object: &BGPPeer, client: &Client) -> Result<Option<String>, String> {
    if let Some(password) = object.spec.password.as_deref().filter(|password| !password.is_empty()) {
        return Ok(Some(password.to_owned()));
    }
    let Some(reference) = &object.spec.password_secret else { return Ok(None) };
    let Some(name) = reference.name.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    let namespace = reference.namespace.as_deref().or(object.metadata.namespace.as_deref()).unwrap_or(NAMESPACE);
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = api.get_opt(name).await.map_err(|error| format!("spec.passwordSecret: {error}"))?;
    let data = secret.and_then(|secret| secret.data).and_then(|mut data| data.remove("password"));
    let bytes =
        data.ok_or_else(|| format!("spec.passwordSecret: there is no Secret {namespace}/{name} with a password"))?;
    String::from_utf8(bytes.0).map(Some).map_err(|_| "spec.passwordSecret: the password is no text".to_owned())
}

fn peer(object: &BGPPeer, own: &Announcer, node: &Arc<str>, password: Option<String>) -> Result<PeerOptions, String> {
    let spec = &object.spec;
    if spec.interface.is_some() {
        return Err("spec.interface: this version needs a peerAddress".to_owned());
    }
    let number = |field: &str, asn: i64| {
        let asn = u32::try_from(asn).ok().filter(|asn| *asn != 0);
        asn.ok_or_else(|| format!("spec.{field}: an AS number is 1 to 4294967295"))
    };
    let asn = number("myASN", spec.my_asn)?;
    // What the peer is told: it never sees the other number.
    let asn = spec.local_asn.map_or(Ok(asn), |local| number("localASN", local))?;
    let expected = match (spec.peer_asn, spec.dynamic_asn.as_deref()) {
        (Some(asn), None) => PeerAs::Number(number("peerASN", asn)?),
        (None, Some("internal")) => PeerAs::Internal,
        (None, Some("external")) => PeerAs::External,
        (None, Some(_)) => return Err("spec.dynamicASN: there are internal and external".to_owned()),
        (Some(_), Some(_)) | (None, None) => {
            return Err("spec.peerASN: exactly one of peerASN and dynamicASN has to be there".to_owned());
        }
    };
    let parse =
        |field: &str, text: &str| text.parse::<IpAddr>().map_err(|_| format!("spec.{field}: {text:?} is no address"));
    let address = parse("peerAddress", spec.peer_address.as_deref().unwrap_or_default())?;
    let port = spec.peer_port.filter(|port| *port != 0).map_or(Ok(PORT), u16::try_from);
    let port = port.map_err(|_| "spec.peerPort: a port is 1 to 65535".to_owned())?;
    let time = |field: &str, text: &Option<String>| -> Result<Option<Duration>, String> {
        let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let parsed: Result<GoDuration, _> = text.parse();
        parsed.map(|time| Some(time.0)).map_err(|_| format!("spec.{field}: {text:?} is no time such as 90s"))
    };
    let hold_time = time("holdTime", &spec.hold_time)?.unwrap_or(HOLD_TIME);
    if !hold_time.is_zero() && hold_time < Duration::from_secs(3) {
        return Err("spec.holdTime: 0 or at least 3s".to_owned());
    }
    let keepalive = time("keepaliveTime", &spec.keepalive_time)?;
    if keepalive.is_some_and(|keepalive| keepalive > hold_time) {
        return Err("spec.keepaliveTime: it is longer than holdTime".to_owned());
    }
    let of =
        |family: Family| own.addresses.iter().copied().find(|address| address.is_ipv4() == (family == Family::Ipv4));
    let next_hops = Family::ALL.into_iter().filter_map(|family| Some((family, of(family)?))).collect();
    let id = match spec.router_id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => id.parse().map_err(|_| format!("spec.routerID: {id:?} is no IPv4 address"))?,
        None => match of(Family::Ipv4) {
            Some(IpAddr::V4(address)) => address,
            _ => Ipv4Addr::from((hash(&[node.as_bytes()]) as u32).max(1)),
        },
    };
    Ok(PeerOptions {
        asn,
        peer: expected,
        address: SocketAddr::new(address, port),
        source: spec.source_address.as_deref().map(|text| parse("sourceAddress", text)).transpose()?,
        id,
        hold_time,
        keepalive,
        connect_time: time("connectTime", &spec.connect_time)?,
        password,
        next_hops,
        own_family_only: spec.disable_mp.unwrap_or(false),
        graceful_restart: spec.enable_graceful_restart.unwrap_or(false),
        vrf: spec.vrf.clone().filter(|vrf| !vrf.is_empty()),
    })
}

fn advertisement(object: &BGPAdvertisement, names: &BTreeMap<&str, &str>) -> Result<BgpAdvertisement, String> {
    let spec = &object.spec;
    let set = |names: &[String]| -> BTreeSet<Arc<str>> { names.iter().map(|name| name.as_str().into()).collect() };
    let length = |field: &str, length: Option<i32>, most: u8| -> Result<u8, String> {
        let length = length.map_or(Ok(most), u8::try_from).ok().filter(|length| *length <= most);
        length.ok_or_else(|| format!("spec.{field}: a length is 0 to {most}"))
    };
    let mut route = Route::default();
    if let Some(preference) = spec.local_pref.filter(|preference| *preference != 0) {
        route.local_pref =
            Some(u32::try_from(preference).map_err(|_| "spec.localPref: a preference is 0 to 4294967295".to_owned())?);
    }
    for (at, text) in spec.communities.iter().enumerate() {
        let value = names.get(text.as_str()).copied().unwrap_or(text);
        community(value, &mut route).ok_or_else(|| {
            format!(
                "spec.communities[{at}]: {text:?} is neither 65000:1, large:65000:1:2 nor a name that a Community gives"
            )
        })?;
    }
    Ok(BgpAdvertisement {
        selects: bgp_selects(object)?,
        lengths: (
            length("aggregationLength", spec.aggregation_length, 32)?,
            length("aggregationLengthV6", spec.aggregation_length_v6, 128)?,
        ),
        route,
        peers: set(&spec.peers),
    })
}

fn community(text: &str, route: &mut Route) -> Option<()> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [high, low] => {
            let (high, low): (u16, u16) = (high.parse().ok()?, low.parse().ok()?);
            route.communities.insert(u32::from(high) << 16 | u32::from(low));
        }
        ["large", a, b, c] => {
            route.large_communities.insert((a.parse().ok()?, b.parse().ok()?, c.parse().ok()?));
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: serde_json::Value) -> Result<PeerOptions, String> {
        let object: BGPPeer = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let addresses = vec!["172.18.0.11".parse().unwrap(), "fd00:172:18::11".parse().unwrap()];
        peer(&object, &Announcer { labels: Labels::new(), ready: true, addresses }, &"n1".into(), None)
    }

    #[test]
    fn a_peer_is_read_with_metallbs_defaults() {
        let options = read(json!({"myASN": 64512, "peerASN": 64513, "peerAddress": "172.18.0.1"})).unwrap();
        assert_eq!((options.address.to_string(), options.hold_time), ("172.18.0.1:179".into(), HOLD_TIME));
        assert_eq!((options.id, options.next_hops.len()), ("172.18.0.11".parse().unwrap(), 2));
    }

    #[test]
    fn what_cannot_be_is_told_with_its_field() {
        for (merge, said) in [
            (json!({"myASN": 0}), "spec.myASN"),
            (json!({"peerASN": 4294967296_i64}), "spec.peerASN"),
            (json!({"dynamicASN": "internal"}), "exactly one"),
            (json!({"peerAddress": "router"}), "spec.peerAddress: \"router\" is no address"),
            (json!({"peerPort": 70000}), "spec.peerPort"),
            (json!({"holdTime": "2s"}), "at least 3s"),
            (json!({"holdTime": "x"}), "is no time"),
            (json!({"keepaliveTime": "2m"}), "longer than holdTime"),
            (json!({"routerID": "fd00::1"}), "spec.routerID"),
            (json!({"interface": "eth0"}), "spec.interface: this version needs a peerAddress"),
            (json!({"localASN": -1}), "spec.localASN"),
        ] {
            let mut spec = json!({"myASN": 64512, "peerASN": 64513, "peerAddress": "172.18.0.1"});
            spec.as_object_mut().unwrap().extend(merge.as_object().unwrap().clone());
            let error = read(spec).unwrap_err();
            assert!(error.contains(said), "{merge}: {error}");
        }
    }

    #[test]
    fn a_local_as_number_is_what_the_peer_is_told() {
        let spec =
            json!({"myASN": 64512, "localASN": 64999, "peerASN": 64513, "peerAddress": "172.18.0.1", "vrf": "red"});
        let options = read(spec).unwrap();
        assert_eq!((options.asn, options.vrf.as_deref()), (64999, Some("red")));
    }

    #[test]
    fn bfd_in_a_vrf_is_refused() {
        let spec =
            json!({"myASN": 64512, "peerASN": 64513, "peerAddress": "172.18.0.1", "vrf": "red", "bfdProfile": "a"});
        let options = read(spec.clone()).unwrap();
        let object: BGPPeer = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let refused = Known::default().bfd(&object, &options).unwrap_err();
        assert_eq!(refused, "spec.bfdProfile: BFD does not run in a vrf");
    }

    #[test]
    fn a_profile_is_read_with_metallbs_defaults_and_bounds() {
        let read = |spec: serde_json::Value| {
            let object: BFDProfile = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            profile(&object)
        };
        let (default, ttl) = read(json!({})).unwrap();
        let span = Duration::from_millis(300);
        assert_eq!(
            (default.transmit, default.receive, default.multiplier, default.passive, ttl),
            (span, span, 3, false, 254)
        );
        for (spec, said) in [
            (json!({"receiveInterval": 9}), "spec.receiveInterval: it is 10 to 60000"),
            (json!({"transmitInterval": 60001}), "spec.transmitInterval"),
            (json!({"detectMultiplier": 1}), "spec.detectMultiplier: it is 2 to 255"),
            (json!({"minimumTtl": 255}), "spec.minimumTtl"),
            (json!({"echoMode": true}), "spec.echoMode"),
        ] {
            let error = read(spec).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn communities_are_read_in_three_forms() {
        let names = BTreeMap::from([("blackhole", "65535:666")]);
        let object = |communities: serde_json::Value| -> BGPAdvertisement {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"communities": communities}})).unwrap()
        };
        let read = advertisement(&object(json!(["64512:7", "large:1:2:3", "blackhole"])), &names).unwrap().route;
        assert_eq!(read.communities, [64512 << 16 | 7, 0xffff_029a].into());
        assert_eq!(read.large_communities, [(1, 2, 3)].into());
        for bad in ["nothing", "65536:1", "large:1:2", "1:2:3"] {
            assert!(advertisement(&object(json!([bad])), &names).unwrap_err().contains(bad));
        }
    }
}

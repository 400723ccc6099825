//! Tells how sessions stand and what they announce: BGPSessionState and ServiceBGPStatus objects, lines of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use signpost_core::announce::hash;
use signpost_core::object::ObjectName;
use signpost_metallb::NAMESPACE;
use signpost_metallb::convert::Fault;
use signpost_metallb::kind::{Kind, Object};
use signpost_metallb::state::{
    BGPSessionStateSpec, BGPSessionStateStatus, ServiceBGPStatusSpec, ServiceBGPStatusStatus,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info};

use super::super::RETRY;
use super::super::configuration::{self, Report};
use super::super::numbers::Numbers;
use super::bfd::BfdStates;
use super::known::Known;
use super::peer::PeerState;
use super::routes::Routes;

/// Peers whose BFD packets are thrown away.
fn too_far(bfd: &BfdStates) -> impl Iterator<Item = Fault> + '_ {
    bfd.iter().filter_map(|(peer, state)| {
        let hops = state.too_far?;
        let problem = format!(
            "BFD's packets come with a TTL of {hops}: a BFDProfile's minimumTtl (254 if it says nothing) and ebgpMultiHop let them in"
        );
        Some(Fault { name: format!("BGPPeer {peer}").into(), problem })
    })
}

/// Why sessions do not stand; empty: all do, or are on their way.
fn troubles(peers: &BTreeMap<Arc<str>, PeerState>) -> String {
    let troubled = peers.iter().filter(|(_, state)| state.state != "Established");
    let said = troubled.filter_map(|(peer, state)| Some(format!("BGPPeer {peer}: {}", state.trouble.as_ref()?)));
    said.collect::<Vec<_>>().join("; ")
}

/// What is to be told.
#[derive(Debug, Clone, Default, PartialEq)]
struct News {
    sessions: BTreeMap<String, BGPSessionStateStatus>,
    services: BTreeMap<String, ServiceBGPStatusStatus>,
    report: Option<Report>,
}

/// Tells in the background.
pub struct Teller {
    node: Arc<str>,
    news: watch::Sender<News>,
    announced: std::cell::RefCell<BTreeMap<ObjectName, BTreeSet<IpAddr>>>,
    numbers: Numbers,
    task: JoinHandle<()>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Teller {
    /// Must be called inside a tokio runtime.
    pub fn start(client: Client, node: Arc<str>, numbers: Numbers) -> Teller {
        let (news, follow) = watch::channel(News::default());
        let task = tokio::spawn(write_all(client, node.clone(), follow));
        Teller { node, news, announced: std::cell::RefCell::default(), numbers, task }
    }

    /// This is so now.
    pub fn tell(&self, routes: &Routes, peers: &BTreeMap<Arc<str>, PeerState>, bfd: &BfdStates, known: &Known) {
        let name = |parts: &[&str]| {
            let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
            format!("bgp-{:016x}", hash(&parts))
        };
        let sessions = peers.iter().map(|(peer, state)| {
            let status = BGPSessionStateStatus {
                bgp_status: state.state.to_owned(),
                bfd_status: bfd.get(peer).map_or("N/A".to_owned(), |session| format!("{:?}", session.state)),
                node: self.node.to_string(),
                peer: state.address.clone(),
                vrf: String::new(),
            };
            (name(&[&self.node, peer]), status)
        });
        let stands = |peer: &&Arc<str>| peers.get(*peer).is_some_and(|state| state.state == "Established");
        let mut services = BTreeMap::new();
        let mut announced = BTreeMap::new();
        for (service, (told, addresses)) in &routes.services {
            let told: Vec<String> = told.iter().filter(stands).map(ToString::to_string).collect();
            if told.is_empty() {
                continue;
            }
            announced.insert(service.clone(), addresses.clone());
            let status = ServiceBGPStatusStatus {
                node: self.node.to_string(),
                service_name: service.name.to_string(),
                service_namespace: service.namespace.to_string(),
                peers: told,
            };
            services.insert(name(&[&self.node, &service.namespace, &service.name]), status);
        }
        self.log(announced, known);
        let mut faults = known.all_faults();
        faults.extend(too_far(bfd));
        self.numbers.configured("bgp", faults.len());
        let report = Report {
            problems: configuration::problems(&faults),
            aspect: ("SessionsEstablished", "SessionDown"),
            trouble: troubles(peers),
        };
        let news = News { sessions: sessions.collect(), services, report: Some(report) };
        self.news.send_if_modified(|current| {
            let changed = *current != news;
            *current = news;
            changed
        });
    }

    fn log(&self, now: BTreeMap<ObjectName, BTreeSet<IpAddr>>, known: &Known) {
        let mut before = self.announced.borrow_mut();
        let joined =
            |addresses: &BTreeSet<IpAddr>| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        for (service, addresses) in now.iter().filter(|(service, now)| before.get(*service) != Some(*now)) {
            let pool = known.services.get(service).and_then(|one| one.pool.clone()).unwrap_or_default();
            info!(event = "serviceAnnounced", %service, ips = joined(addresses), %pool, protocol = "bgp", "this node announces a Service's addresses");
        }
        for (service, addresses) in before.iter().filter(|(service, _)| !now.contains_key(*service)) {
            info!(event = "serviceWithdrawn", %service, ips = joined(addresses), protocol = "bgp", "this node announces a Service's addresses no more");
        }
        let addresses = |addresses: &BTreeSet<IpAddr>| addresses.iter().copied().collect();
        let counted = now.iter().map(|(service, all)| (service.clone(), addresses(all))).collect();
        self.numbers.announced("bgp", counted);
        *before = now;
    }
}

async fn write_all(client: Client, node: Arc<str>, mut news: watch::Receiver<News>) {
    let sessions: Api<Object<BGPSessionStateSpec>> = Api::namespaced(client.clone(), NAMESPACE);
    let services: Api<Object<ServiceBGPStatusSpec>> = Api::namespaced(client.clone(), NAMESPACE);
    loop {
        let now = news.borrow_and_update().clone();
        let service_labels = |status: &ServiceBGPStatusStatus| {
            vec![
                ("metallb.io/service-name".to_owned(), status.service_name.clone()),
                ("metallb.io/service-namespace".to_owned(), status.service_namespace.clone()),
            ]
        };
        let first = write(&sessions, &node, &now.sessions, |_| Vec::new()).await;
        let second = write(&services, &node, &now.services, service_labels).await;
        let third = match &now.report {
            Some(report) => configuration::tell(&client, &node, "bgp", report).await,
            None => Ok(()),
        };
        let missed = first.and(second).and(third);
        if let Err(error) = &missed {
            debug!(%error, "how BGP stands could not be told; trying again");
        }
        let again =
            async { if missed.is_err() { tokio::time::sleep(RETRY).await } else { std::future::pending().await } };
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = again => {}
        }
    }
}

/// Makes this node's objects of a kind those that are wanted.
async fn write<S: Kind>(
    api: &Api<Object<S>>,
    node: &str,
    wanted: &BTreeMap<String, S::Status>,
    labels: impl Fn(&S::Status) -> Vec<(String, String)>,
) -> kube::Result<()> {
    let own = ListParams::default().labels(&format!("metallb.io/node={node}"));
    let mut there: BTreeMap<String, Object<S>> =
        api.list(&own).await?.into_iter().map(|object| (object.name().to_owned(), object)).collect();
    for (name, status) in wanted {
        let mut object = match there.remove(name) {
            Some(object) => object,
            None => {
                let all = labels(status).into_iter().chain([("metallb.io/node".to_owned(), node.to_owned())]);
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(NAMESPACE.to_owned()),
                    labels: Some(all.collect()),
                    ..ObjectMeta::default()
                };
                api.create(&PostParams::default(), &Object::new(metadata, S::default())).await?
            }
        };
        if object.status.as_ref() != Some(status) {
            object.status = Some(status.clone());
            api.replace_status(name, &PostParams::default(), &object).await?;
        }
    }
    for name in there.keys() {
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! What the kernel refuses is told where people look: in Events.

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use signpost_apiserver::{ApiConfig, ApiServer};

use super::*;
use crate::sync::tests::faults::in_trouble;

const NODE: &str = "n1";

/// Drives the loop until an Event of this reason is there.
async fn told<D>(sync: SyncLoop<D>, reason: &str) -> Event
where
    D: Datapath + Debug + Send + 'static,
    D::Program: Serialize + Send,
{
    let ranges = vec!["10.96.0.0/12".parse().unwrap()];
    let config = ApiConfig { dir: None, service_cidrs: ranges, node_ports: 30_000..=32_767, advertise: vec![] };
    let client = ApiServer::open(config).await.unwrap().client();
    let reporter = Reporter::start(client.clone(), "signpost-node", NODE);
    let (_addresses, addresses) = watch::channel(Local::default());
    let (_cache, cache) = watch::channel(false);
    let (_asking, questions) = mpsc::channel(1);
    let (_stop, stopped) = oneshot::channel();
    let hears = Hears { observed: futures::stream::pending(), addresses, cache, questions };
    let driver = tokio::spawn(drive(sync, NODE.into(), hears, reporter, stopped));
    let events: Api<Event> = Api::namespaced(client, "default");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        if let Some(event) = all.into_iter().find(|event| event.reason.as_deref() == Some(reason)) {
            driver.abort();
            return event;
        }
        assert!(Instant::now() < deadline, "no Event {reason}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_refuses_is_told_on_the_service_or_on_the_node() {
    let [one_service, everything] = in_trouble();
    let event = told(one_service, "ServiceRulesRefused").await;
    let of = (event.involved_object.kind.as_deref(), event.involved_object.name.as_deref());
    assert_eq!(of, (Some("Service"), Some("s13")));
    let message = event.message.unwrap();
    assert!(message.contains("the kernel of node n1 refuses") && message.contains("a fault"), "{message}");
    let event = told(everything, "ServiceRulesFailed").await;
    let of = (event.involved_object.kind.as_deref(), event.involved_object.name.as_deref());
    assert_eq!(of, (Some("Node"), Some(NODE)));
    assert!(event.message.unwrap().contains("nft is not installed"));
}

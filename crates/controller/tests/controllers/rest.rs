//! Time, storms, failures and restarts: no change is lost, and it comes to rest.

use super::*;

#[tokio::test]
async fn what_time_alone_brings_is_seen_in_time() {
    let lab = Lab::start(&["n1"]).await;
    let mut slow = deployment("slow", 1);
    slow["spec"]["minReadySeconds"] = 2.into();
    lab.create::<Deployment>(slow).await;
    let mut stuck = deployment("stuck", 1);
    stuck["spec"]["progressDeadlineSeconds"] = 2.into();
    stuck["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "such"});
    lab.create::<Deployment>(stuck).await;
    eventually("the pod is ready", || async { !lab.addresses("app=slow").await.is_empty() }).await;
    lab.settle().await;
    assert_eq!(available(&lab.api::<Deployment>().get("slow").await.expect("the Deployment")), 0);
    eventually("it has been ready long enough", || async {
        available(&lab.api::<Deployment>().get("slow").await.expect("the Deployment")) == 1
    })
    .await;
    eventually("the update that hangs is said to", || async {
        let stuck = lab.api::<Deployment>().get("stuck").await.expect("the Deployment");
        let conditions = stuck.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"))
    })
    .await;
}

/// Deployments and Services; while they start, pods come, go and change their readiness. Then: every Service has exactly
/// its Deployment's ready pods.
async fn storm(lab: &Lab, services: usize) {
    for number in 0..services {
        lab.create::<Service>(service(&format!("s{number}"))).await;
        lab.create::<Deployment>(deployment(&format!("s{number}"), 3)).await;
    }
    let rounds = (0..services).map(|number| async move {
        let name = format!("s{number}");
        for round in 0..6 {
            lab.merge::<Deployment>(&name, json!({"spec": {"replicas": 1 + (number + round) % 5}})).await;
            let selector = ListParams::default().labels(&format!("app={name}"));
            for pod in lab.api::<Pod>().list(&selector).await.expect("a list") {
                let held = (round + number) % 3 == 0;
                let patch = json!({"metadata": {"annotations": {"test/held": held.to_string()}}});
                let merge = Patch::Merge(patch);
                let _gone_meanwhile = lab.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &merge).await;
            }
        }
    });
    futures::future::join_all(rounds).await;
    eventually("every Service has its Deployment's ready pods", || async {
        let pods = lab.list::<Pod>().await;
        for number in 0..services {
            let name = format!("s{number}");
            let of_service = pods.iter().filter(|pod| pod.labels().get("app") == Some(&name));
            let ready: BTreeSet<String> = of_service
                .clone()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none() && signpost_controller::pods::is_ready(pod))
                .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
                .collect();
            if of_service.count() != 1 + (number + 5) % 5 || lab.ready(&name).await != ready {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test]
async fn under_load_no_change_is_lost_and_it_comes_to_rest() {
    let lab = Lab::start(&["n1", "n2", "n3"]).await;
    storm(&lab, 12).await;
    lab.settle().await;
    let quiet = lab.revisions();
    let noise = eventually("a write", || async { lab.revisions() != quiet });
    tokio::time::timeout(Duration::from_millis(300), noise).await.expect_err("something writes without a reason");
}

/// The API, but one request in eight fails before it does anything, one write in eight is done and said to have failed,
/// and watches end after a few words, in the middle of one or properly.
fn unreliable(server: &Arc<ApiServer>) -> kube::Client {
    let router = server.router();
    let count = Arc::new(AtomicU64::new(1));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (router, chance) = (router.clone(), chance(count.fetch_add(1, Ordering::Relaxed)));
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let is_read = request.method() == http::Method::GET;
            let failure = || (http::StatusCode::INTERNAL_SERVER_ERROR, "spoiled").into_response();
            if chance % 8 == 0 {
                return Ok::<_, Infallible>(failure());
            }
            let response = router.oneshot(request.map(Body::new)).await?;
            if is_watch {
                let (head, body) = response.into_parts();
                let said = body.into_data_stream().take(usize::try_from(chance / 8 % 12).expect("small"));
                let cut = futures::stream::iter((chance % 3 == 0).then(|| Err(axum::Error::new("cut"))));
                return Ok(axum::response::Response::from_parts(head, Body::from_stream(said.chain(cut))));
            }
            Ok(if !is_read && chance % 8 == 1 { failure() } else { response })
        }
    });
    kube::Client::new(service, "default")
}

/// A number that looks random (splitmix64), the same in each run.
fn chance(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[tokio::test]
async fn an_api_that_fails_and_watches_that_break_lose_nothing() {
    let mut lab = Lab::start(&["n1", "n2"]).await;
    lab.start_controllers_on(unreliable(&lab.server));
    storm(&lab, 4).await;
}

#[tokio::test]
async fn a_restart_finds_everything_as_it_should_be_and_writes_nothing() {
    let mut lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 3)).await;
    lab.create::<Service>(service("web")).await;
    lab.create::<StatefulSet>(json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template("db")},
    }))
    .await;
    eventually("all pods run", || async {
        lab.ready("web").await.len() == 3 && lab.addresses("app=db").await.len() == 2
    })
    .await;
    lab.settle().await;
    let before = lab.revisions();
    lab.controllers = None;
    lab.start_controllers();
    lab.settle().await;
    assert_eq!(lab.revisions(), before);
}

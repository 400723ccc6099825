//! Services, their slices, and what changes them.

use super::*;

#[tokio::test]
async fn a_deployment_and_a_service_become_pods_on_both_nodes_and_a_slice() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 3)).await;
    lab.create::<Service>(service("web")).await;
    eventually("three ready endpoints", || async { lab.ready("web").await.len() == 3 }).await;
    lab.settle().await;

    let pods = lab.list::<Pod>().await;
    let nodes: BTreeSet<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
    assert_eq!(nodes.len(), 2, "the pods are on both nodes");
    let slices = lab.list::<EndpointSlice>().await;
    let slice =
        slices.iter().find(|slice| slice.name_any().starts_with("web-")).expect("a slice named after the Service");
    let zones: BTreeSet<_> = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.zone.clone()).collect();
    assert_eq!(zones, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert!(slice.annotations().contains_key("endpoints.kubernetes.io/last-change-trigger-time"));

    let deployment = lab.api::<Deployment>().get("web").await.expect("the Deployment");
    let status = deployment.status.clone().expect("a status");
    assert_eq!((status.replicas, status.updated_replicas, available(&deployment)), (Some(3), Some(3), 3));
    assert_eq!(status.observed_generation, deployment.metadata.generation);
    let reason = |kind: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.filter(|condition| condition.type_ == kind).filter_map(|condition| condition.reason.clone()).next()
    };
    assert_eq!(reason("Available").as_deref(), Some("MinimumReplicasAvailable"));
    assert_eq!(reason("Progressing").as_deref(), Some("NewReplicaSetAvailable"));

    let endpoints = lab.api::<Endpoints>().get("web").await.expect("Endpoints of the Service's name");
    assert_eq!(endpoints.subsets.iter().flatten().flat_map(|subset| subset.addresses.iter().flatten()).count(), 3);
    eventually("events say what was done", || async {
        lab.reasons("Deployment").await.contains("ScalingReplicaSet")
            && lab.reasons("ReplicaSet").await.contains("SuccessfulCreate")
            && lab.reasons("Pod").await.contains("Scheduled")
    })
    .await;
}

#[tokio::test]
async fn a_change_of_readiness_reaches_the_slice_at_once() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    let pod = lab.list::<Pod>().await.remove(0).name_any();
    let mut worst = Duration::ZERO;
    for held in [true, false, true, false] {
        let annotation = json!({"metadata": {"annotations": {"test/held": held.to_string()}}});
        let start = Instant::now();
        lab.merge::<Pod>(&pod, annotation).await;
        let count = if held { 1 } else { 2 };
        eventually("the slice follows", || async { lab.ready("web").await.len() == count }).await;
        worst = worst.max(start.elapsed());
    }
    // Two writes, three watches and the polling of this test: far less on a quiet machine.
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}

#[tokio::test]
async fn slices_that_are_not_ours_are_left_alone() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Service>(json!({"metadata": {"name": "bare"}, "spec": {"ports": [{"port": 80}]}})).await;
    lab.create::<Service>(service("web")).await;
    for service in ["bare", "web"] {
        lab.create::<EndpointSlice>(json!({
            "metadata": {"name": format!("{service}-by-hand"), "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["192.0.2.7"]}],
        }))
        .await;
    }
    lab.create::<Pod>(json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "signpost/echo"}]},
    }))
    .await;
    eventually("the pod is in a slice of its own", || async { !lab.ready("web").await.is_empty() }).await;
    lab.settle().await;
    let slices = lab.list::<EndpointSlice>().await;
    for slice in slices.iter().filter(|slice| slice.name_any().ends_with("by-hand")) {
        assert_eq!(slice.metadata.generation, Some(1), "{} was written", slice.name_any());
    }
    assert_eq!(slices.iter().filter(|slice| slice.name_any().starts_with("bare")).count(), 1);
}

#[tokio::test]
async fn slices_follow_nodes_and_labels_and_come_back_when_deleted() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    lab.settle().await;

    let moved = Patch::Merge(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "c"}}}));
    lab.all::<Node>().patch("n1", &PatchParams::default(), &moved).await.expect("the API takes it");
    lab.settle().await;
    let slices = lab.list::<EndpointSlice>().await;
    let zones = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).filter_map(|end| end.zone.clone());
    assert_eq!(zones.collect::<BTreeSet<_>>(), BTreeSet::from(["c".to_owned()]));

    let slice = slices.iter().find(|slice| slice.name_any().starts_with("web-")).expect("a slice").name_any();
    lab.api::<EndpointSlice>().delete(&slice, &DeleteParams::default()).await.expect("deleted");
    lab.api::<Endpoints>().delete("web", &DeleteParams::default()).await.expect("deleted");
    lab.settle().await;
    assert_eq!(lab.ready("web").await.len(), 2);
    assert!(lab.api::<Endpoints>().get_opt("web").await.expect("an answer").is_some());

    let pod = lab.list::<Pod>().await.remove(0);
    lab.merge::<Pod>(&pod.name_any(), json!({"metadata": {"labels": {"app": "away"}}})).await;
    eventually("its ReplicaSet has replaced it", || async { lab.addresses("app=web").await.len() == 2 }).await;
    lab.settle().await;
    let address = pod.status.and_then(|status| status.pod_ip).expect("an address");
    assert!(!lab.ready("web").await.contains(&address));
    let released = lab.api::<Pod>().get(&pod.metadata.name.expect("a name")).await.expect("it stays");
    assert!(released.owner_references().is_empty());
}

#[tokio::test]
async fn a_service_that_selects_nobody_has_empty_endpoints_which_go_with_it() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Service>(service("web")).await;
    lab.settle().await;
    let endpoints = lab.api::<Endpoints>().get("web").await.expect("Endpoints of the Service's name");
    assert!(endpoints.subsets.is_none());
    let slices = lab.list::<EndpointSlice>().await;
    let slice = slices.iter().find(|slice| slice.name_any().starts_with("web-")).expect("a slice of the Service");
    assert_eq!(slice.owner_references()[0].name, "web");
    assert!(slice.endpoints.as_ref().is_none_or(Vec::is_empty));
    lab.api::<Service>().delete("web", &Default::default()).await.expect("it is there");
    lab.settle().await;
    assert!(lab.api::<Endpoints>().get_opt("web").await.expect("an answer").is_none());
    assert!(lab.list::<EndpointSlice>().await.iter().all(|slice| !slice.name_any().starts_with("web-")));
}

#[tokio::test]
async fn endpoints_made_by_hand_are_mirrored_until_they_are_gone() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Service>(json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})).await;
    let one = json!({"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 8080}]});
    lab.create::<Endpoints>(json!({"metadata": {"name": "web"}, "subsets": [one]})).await;
    lab.settle().await;
    assert_eq!(lab.ready("web").await, BTreeSet::from(["10.1.2.3".to_owned()]));
    let other = json!({"addresses": [{"ip": "10.1.2.4"}], "ports": [{"port": 8080}]});
    lab.merge::<Endpoints>("web", json!({"subsets": [other]})).await;
    lab.settle().await;
    assert_eq!(lab.ready("web").await, BTreeSet::from(["10.1.2.4".to_owned()]));
    lab.api::<Endpoints>().delete("web", &Default::default()).await.expect("they are there");
    lab.settle().await;
    assert!(lab.ready("web").await.is_empty());
}

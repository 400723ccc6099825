//! Deployments, StatefulSets and what they own.

use super::*;

#[tokio::test]
async fn a_rolling_update_keeps_enough_pods_and_ends_with_new_ones() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 4)).await;
    lab.create::<Service>(service("web")).await;
    eventually("four ready endpoints", || async { lab.ready("web").await.len() == 4 }).await;
    lab.settle().await;
    let before = lab.addresses("app=web").await;

    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "signpost/echo:2"}]}}}});
    lab.merge::<Deployment>("web", image).await;
    let mut least = usize::MAX;
    let start = Instant::now();
    loop {
        let ready = lab.ready("web").await;
        least = least.min(ready.len());
        if ready.len() == 4 && ready.is_disjoint(&before) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the update hangs");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(least >= 3, "25 % of 4 may be away, but only {least} were ready");
    lab.settle().await;
    let sets = lab.list::<ReplicaSet>().await;
    let revisions: BTreeMap<i32, String> = sets
        .iter()
        .map(|set| {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
            (replicas, set.annotations()["deployment.kubernetes.io/revision"].clone())
        })
        .collect();
    assert_eq!(revisions, BTreeMap::from([(0, "1".to_owned()), (4, "2".to_owned())]));
    let deployment = lab.api::<Deployment>().get("web").await.expect("the Deployment");
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "2");
}

#[tokio::test]
async fn scaling_follows_the_number_both_ways() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 1)).await;
    lab.create::<Service>(service("web")).await;
    for replicas in [5, 2, 0, 3] {
        lab.merge::<Deployment>("web", json!({"spec": {"replicas": replicas}})).await;
        eventually("as many ready endpoints as replicas", || async {
            lab.ready("web").await.len() == usize::try_from(replicas).expect("small")
                && available(&lab.api::<Deployment>().get("web").await.expect("the Deployment")) == replicas
        })
        .await;
    }
    eventually("the scaling down is told", || async { lab.reasons("ReplicaSet").await.contains("SuccessfulDelete") })
        .await;
}

#[tokio::test]
async fn a_stateful_set_makes_named_pods_in_order_and_updates_from_the_top() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Service>(json!({
        "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]},
    }))
    .await;
    lab.create::<StatefulSet>(json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template("db")},
    }))
    .await;
    eventually("three ready endpoints", || async { lab.ready("db").await.len() == 3 }).await;
    lab.settle().await;
    let mut pods = lab.list::<Pod>().await;
    pods.sort_by_key(|pod| pod.metadata.resource_version.clone());
    let names: BTreeSet<String> = pods.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"].map(str::to_owned).into());
    let slices = lab.list::<EndpointSlice>().await;
    let slice = slices.iter().find(|slice| slice.name_any().starts_with("db-")).expect("a slice");
    let hosts: BTreeSet<String> = slice.endpoints.iter().flatten().filter_map(|end| end.hostname.clone()).collect();
    assert_eq!(hosts, names);

    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "signpost/echo:2"}]}}}});
    lab.merge::<StatefulSet>("db", image).await;
    eventually("the update ends", || async {
        let set = lab.api::<StatefulSet>().get("db").await.expect("the StatefulSet");
        let status = set.status.clone().unwrap_or_default();
        status.observed_generation == set.metadata.generation
            && status.updated_replicas == Some(3)
            && status.ready_replicas == Some(3)
            && status.current_revision == status.update_revision
    })
    .await;
    lab.merge::<StatefulSet>("db", json!({"spec": {"replicas": 1}})).await;
    eventually("only the first is left", || async {
        lab.list::<Pod>().await.iter().map(ResourceExt::name_any).collect::<Vec<_>>() == ["db-0"]
    })
    .await;
}

#[tokio::test]
async fn what_belongs_to_a_deleted_owner_goes_too() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    lab.api::<Service>().delete("web", &DeleteParams::default()).await.expect("deleted");
    lab.api::<Deployment>().delete("web", &DeleteParams::background()).await.expect("deleted");
    eventually("nothing is left", || async {
        let slices = lab.list::<EndpointSlice>().await;
        lab.list::<Pod>().await.is_empty()
            && lab.list::<ReplicaSet>().await.is_empty()
            && lab.api::<Endpoints>().get_opt("web").await.expect("an answer").is_none()
            && !slices.iter().any(|slice| slice.name_any().starts_with("web-"))
    })
    .await;
    lab.settle().await;
}

#[tokio::test]
async fn orphans_stay_and_are_adopted_and_foreground_deletion_waits() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    eventually("two pods", || async { lab.addresses("app=web").await.len() == 2 }).await;
    lab.settle().await;
    let before = lab.addresses("app=web").await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    lab.api::<Deployment>().delete("web", &orphan).await.expect("deleted");
    eventually("the Deployment is gone", || async {
        lab.api::<Deployment>().get_opt("web").await.expect("an answer").is_none()
    })
    .await;
    lab.settle().await;
    assert_eq!(lab.addresses("app=web").await, before);
    assert!(lab.list::<ReplicaSet>().await[0].owner_references().is_empty());

    lab.create::<Deployment>(deployment("web", 2)).await;
    eventually("the old set is adopted", || async {
        lab.list::<ReplicaSet>().await.iter().all(|set| set.owner_references().len() == 1)
    })
    .await;
    lab.settle().await;
    assert_eq!((lab.addresses("app=web").await, lab.list::<ReplicaSet>().await.len()), (before, 1));

    lab.api::<Deployment>().delete("web", &DeleteParams::foreground()).await.expect("deleted");
    eventually("the Deployment goes when its pods are gone", || async {
        let gone = lab.api::<Deployment>().get_opt("web").await.expect("an answer").is_none();
        assert!(!gone || lab.list::<ReplicaSet>().await.is_empty());
        gone && lab.list::<Pod>().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_no_node_takes_waits_and_says_why_until_one_comes() {
    let lab = Lab::start(&[]).await;
    lab.create::<Deployment>(deployment("web", 1)).await;
    eventually("the pod says why it waits", || async { lab.reasons("Pod").await.contains("FailedScheduling") }).await;
    lab.settle().await;
    let pod = lab.list::<Pod>().await.remove(0);
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    assert_eq!(conditions[0].message.as_deref(), Some("no nodes available to schedule pods"));
    lab.add_node("n1", "a").await;
    eventually("it runs", || async { lab.addresses("app=web").await.len() == 1 }).await;
}

#[tokio::test]
async fn a_template_that_the_api_refuses_is_told_and_does_not_hold_up_the_rest() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<ReplicaSet>(json!({
        "metadata": {"name": "bad"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "bad"}}, "template": {
            "metadata": {"labels": {"app": "bad"}, "finalizers": ["no good name!"]},
            "spec": {"containers": [{"name": "main", "image": "signpost/echo"}]},
        }},
    }))
    .await;
    eventually("the failure is told", || async { lab.reasons("ReplicaSet").await.contains("FailedCreate") }).await;
    lab.settle().await;
    let set = lab.api::<ReplicaSet>().get("bad").await.expect("the ReplicaSet");
    let conditions = set.status.and_then(|status| status.conditions).unwrap_or_default();
    assert_eq!(conditions.first().and_then(|condition| condition.reason.as_deref()), Some("FailedCreate"));
}

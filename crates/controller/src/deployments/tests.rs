use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Step, plan};
use super::status::{Happened, says_the_same, status};
use super::{revision, rolling};

fn deployment(replicas: i32, image: &str, strategy: &Value) -> Deployment {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "d1", "generation": 1},
        "spec": {
            "replicas": replicas,
            "strategy": strategy,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}},
        },
    });
    serde_json::from_value(object).expect("a Deployment")
}

fn bounds(surge: &Value, unavailable: &Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// A cluster in small: a Deployment, its ReplicaSets, and how many pods of each are (not) ready.
struct Lab {
    deployment: Deployment,
    sets: BTreeMap<String, ReplicaSet>,
    pods: BTreeMap<String, (i32, i32)>,
    born: i64,
}

impl Lab {
    fn new(deployment: Deployment) -> Lab {
        Lab { deployment, sets: BTreeMap::new(), pods: BTreeMap::new(), born: 0 }
    }

    fn sets(&self) -> Vec<Arc<ReplicaSet>> {
        self.sets.values().cloned().map(Arc::new).collect()
    }

    fn ready(&self) -> i32 {
        self.pods.values().map(|(ready, _)| ready).sum()
    }

    fn asked(&self) -> i32 {
        rolling::asked(&self.sets())
    }

    /// Takes the steps; gives how many there were.
    fn step(&mut self) -> usize {
        let old_pods_run = {
            let (_, old) = revision::split(&self.deployment, &self.sets());
            old.iter().any(|set| self.pods[set.metadata.name.as_ref().expect("named")] != (0, 0))
        };
        let steps = plan(&self.deployment, &self.sets(), old_pods_run);
        for step in &steps {
            match step {
                Step::Create(set) => self.create(set),
                Step::Update(update) => {
                    let name = update.set.metadata.name.clone().expect("named");
                    let set = self.sets.get_mut(&name).expect("a set that is there");
                    set.metadata.annotations = Some(update.annotations.clone());
                    let spec = set.spec.as_mut().expect("a spec");
                    spec.replicas = update.replicas.or(spec.replicas);
                    spec.min_ready_seconds = update.min_ready_seconds;
                }
                Step::Remove(set) => {
                    let name = set.metadata.name.clone().expect("named");
                    assert_eq!(self.pods.remove(&name), Some((0, 0)), "a set with pods was removed");
                    self.sets.remove(&name);
                }
                Step::Revise(revision) => {
                    let annotations = self.deployment.metadata.annotations.get_or_insert_default();
                    annotations.insert(revision::REVISION.to_owned(), revision.clone());
                }
            }
        }
        self.follow();
        steps.len()
    }

    fn create(&mut self, set: &ReplicaSet) {
        let mut set = set.clone();
        self.born += 1;
        let name = set.metadata.name.clone().expect("named");
        set.metadata.uid = Some(format!("uid-{name}"));
        let born = Timestamp::from_second(self.born).expect("a time");
        set.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(born));
        assert!(self.sets.insert(name.clone(), set).is_none(), "a set was created twice");
        self.pods.insert(name, (0, 0));
    }

    /// What ReplicaSets do: as many pods as asked for, those that are not ready go first; then the statuses.
    fn follow(&mut self) {
        for (name, set) in &mut self.sets {
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).expect("a size");
            assert!(wanted >= 0);
            let (ready, unready) = self.pods.get_mut(name).expect("pods");
            *unready += (wanted - *ready - *unready).max(0);
            let going = (*ready + *unready - wanted).max(0);
            let idle = going.min(*unready);
            *unready -= idle;
            *ready -= going - idle;
            set.status = Some(ReplicaSetStatus {
                replicas: *ready + *unready,
                ready_replicas: Some(*ready),
                available_replicas: Some(*ready),
                ..ReplicaSetStatus::default()
            });
        }
        self.deployment.status = Some(self.status(None, Timestamp::UNIX_EPOCH));
    }

    fn status(&self, happened: Option<&Happened>, now: Timestamp) -> DeploymentStatus {
        status(&self.deployment, &self.sets(), happened, now).0
    }

    /// Pods get ready, or not any more.
    fn turn(&mut self, which: usize, to_ready: bool) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        let Some(name) = names.get(which % names.len().max(1)) else { return };
        let (ready, unready) = self.pods.get_mut(name).expect("pods");
        match to_ready {
            true if *unready > 0 => (*ready, *unready) = (*ready + 1, *unready - 1),
            false if *ready > 0 => (*ready, *unready) = (*ready - 1, *unready + 1),
            _ => {}
        }
        self.follow();
    }

    fn all_ready(&mut self) {
        for (ready, unready) in self.pods.values_mut() {
            (*ready, *unready) = (*ready + *unready, 0);
        }
        self.follow();
    }

    /// Steps and readiness until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..500 {
            if self.step() == 0 {
                let before = self.pods.clone();
                self.all_ready();
                if self.pods == before && self.step() == 0 {
                    return;
                }
            }
        }
        panic!("it never comes to rest: {:?}", self.pods);
    }

    fn set_image(&mut self, image: &str) {
        let spec = self.deployment.spec.as_mut().expect("a spec");
        spec.template.spec.as_mut().expect("a pod").containers[0].image = Some(image.to_owned());
    }

    fn scale(&mut self, replicas: i32) {
        self.deployment.spec.as_mut().expect("a spec").replicas = Some(replicas);
    }

    /// Sizes of the sets that have pods, by image.
    fn sizes(&self) -> Vec<(String, i32)> {
        let mut sizes: Vec<(String, i32)> = self
            .sets
            .iter()
            .map(|(name, set)| {
                let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).expect("a template");
                let image = template.spec.expect("a pod").containers[0].image.clone().expect("an image");
                (image, self.pods[name].0 + self.pods[name].1)
            })
            .filter(|(_, size)| *size > 0)
            .collect();
        sizes.sort();
        sizes
    }

    fn revision_of(&self, image: &str) -> i64 {
        let of = |set: &&ReplicaSet| {
            let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).expect("a template");
            template.spec.expect("a pod").containers[0].image.as_deref() == Some(image)
        };
        revision::revision(&self.sets.values().find(of).expect("a set").metadata)
    }
}

#[test]
fn an_update_ends_with_all_pods_new_and_the_old_set_kept_empty() {
    let mut lab = Lab::new(deployment(3, "a", &Value::Null));
    lab.settle();
    lab.set_image("b");
    lab.settle();
    assert_eq!(lab.sizes(), [("b".to_owned(), 3)]);
    assert_eq!((lab.revision_of("a"), lab.revision_of("b")), (1, 2));
    assert_eq!(revision::revision(&lab.deployment.metadata), 2);
}

#[test]
fn going_back_uses_the_old_set_with_the_newest_revision() {
    let mut lab = Lab::new(deployment(2, "a", &Value::Null));
    lab.settle();
    lab.set_image("b");
    lab.settle();
    lab.set_image("a");
    lab.settle();
    assert_eq!(lab.sizes(), [("a".to_owned(), 2)]);
    assert_eq!((lab.revision_of("b"), lab.revision_of("a"), lab.sets.len()), (2, 3, 2));
}

#[test]
fn recreate_waits_until_the_old_pods_are_gone() {
    let mut lab = Lab::new(deployment(3, "a", &json!({"type": "Recreate"})));
    lab.settle();
    lab.set_image("b");
    let sets = lab.sets();
    let steps = plan(&lab.deployment, &sets, true);
    assert!(matches!(&steps[..], [Step::Update(update), ..] if update.replicas == Some(0)), "{steps:?}");
    let mut emptied = sets[0].as_ref().clone();
    emptied.spec.as_mut().expect("a spec").replicas = Some(0);
    let emptied = [Arc::new(emptied)];
    assert!(!plan(&lab.deployment, &emptied, true).iter().any(|step| matches!(step, Step::Create(_))));
    assert!(plan(&lab.deployment, &emptied, false).iter().any(|step| matches!(step, Step::Create(_))));
    lab.settle();
    assert_eq!(lab.sizes(), [("b".to_owned(), 3)]);
}

#[test]
fn a_paused_deployment_scales_but_does_not_update() {
    let mut lab = Lab::new(deployment(2, "a", &Value::Null));
    lab.settle();
    lab.deployment.spec.as_mut().expect("a spec").paused = Some(true);
    lab.set_image("b");
    lab.scale(5);
    lab.settle();
    assert_eq!(lab.sizes(), [("a".to_owned(), 5)]);
}

#[test]
fn scaling_in_the_middle_of_an_update_is_shared_in_proportion() {
    let mut lab = Lab::new(deployment(10, "a", &bounds(&json!(3), &json!(2))));
    lab.settle();
    lab.set_image("b");
    while lab.step() > 0 {}
    assert_eq!(lab.sizes(), [("a".to_owned(), 8), ("b".to_owned(), 5)]);
    lab.scale(15);
    lab.step();
    assert_eq!(lab.sizes(), [("a".to_owned(), 11), ("b".to_owned(), 7)]);
}

#[test]
fn the_history_keeps_as_many_old_sets_as_asked_for() {
    let mut lab = Lab::new(deployment(1, "a", &Value::Null));
    lab.deployment.spec.as_mut().expect("a spec").revision_history_limit = Some(2);
    for image in ["a", "b", "c", "d", "e"] {
        lab.set_image(image);
        lab.settle();
    }
    assert_eq!(lab.sets.len(), 3);
    assert_eq!(lab.revision_of("c"), 3);
}

#[test]
fn percentages_round_surge_up_and_unavailability_down() {
    for (replicas, surge, unavailable, expected) in [
        (3, json!("25%"), json!("25%"), (1, 0)),
        (10, json!("25%"), json!("25%"), (3, 2)),
        (1, json!("25%"), json!("25%"), (1, 0)),
        (4, json!(0), json!(0), (0, 1)),
        (4, json!("0%"), json!("10%"), (0, 1)),
        (4, json!("junk"), json!("200%"), (0, 4)),
    ] {
        let deployment = deployment(replicas, "a", &bounds(&surge, &unavailable));
        let found = (rolling::max_surge(&deployment), rolling::max_unavailable(&deployment));
        assert_eq!(found, expected, "{replicas} {surge} {unavailable}");
    }
}

#[test]
fn the_hash_is_safe_in_names_and_differs_by_template_and_collision() {
    let template = |image: &str| deployment(1, image, &Value::Null).spec.expect("a spec").template;
    let hash = revision::template_hash(&template("a"), None);
    assert!(hash.len() <= 10 && hash.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)), "{hash}");
    assert_eq!(hash, revision::template_hash(&template("a"), None));
    assert_ne!(hash, revision::template_hash(&template("b"), None));
    assert_ne!(hash, revision::template_hash(&template("a"), Some(1)));
}

#[test]
fn annotations_of_the_deployment_reach_its_sets_but_not_those_of_kubectl() {
    let mut deployment = deployment(1, "a", &Value::Null);
    let annotations = [("note", "x"), ("kubectl.kubernetes.io/last-applied-configuration", "{}")];
    deployment.metadata.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let set = revision::new_set(&deployment, 1, 7);
    let annotations = set.metadata.annotations.expect("annotations");
    let mut keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, [revision::DESIRED, revision::MAX, revision::REVISION, "note"]);
}

fn condition(status: &DeploymentStatus, kind: &str) -> Option<(String, String)> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.type_ == kind)
        .map(|condition| (condition.status.clone(), condition.reason.clone().unwrap_or_default()))
        .next()
}

fn says(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

#[test]
fn conditions_follow_an_update_to_its_end_or_its_deadline() {
    let mut lab = Lab::new(deployment(2, "a", &Value::Null));
    let at = |second: i64| Timestamp::from_second(second).expect("a time");
    lab.step();
    lab.deployment.status = Some(DeploymentStatus::default());
    let created = lab.status(Some(&Happened::Created("web-x".to_owned())), at(10));
    assert_eq!(condition(&created, "Progressing"), says("True", "NewReplicaSetCreated"));
    assert_eq!(condition(&created, "Available"), says("False", "MinimumReplicasUnavailable"));

    let mut stuck = Lab { deployment: lab.deployment.clone(), sets: lab.sets.clone(), pods: lab.pods.clone(), born: 9 };
    stuck.deployment.status = Some(created.clone());
    let (waiting, again) = status(&stuck.deployment, &stuck.sets(), None, at(100));
    assert!(says_the_same(&waiting, &created), "nothing new to say");
    assert_eq!(again, Some(SignedDuration::from_secs(510)));
    let late = stuck.status(None, at(611));
    assert_eq!(condition(&late, "Progressing"), says("False", "ProgressDeadlineExceeded"));

    lab.settle();
    lab.deployment.status = Some(created);
    let done = lab.status(None, at(20));
    assert_eq!(condition(&done, "Progressing"), says("True", "NewReplicaSetAvailable"));
    assert_eq!(condition(&done, "Available"), says("True", "MinimumReplicasAvailable"));
    assert_eq!(
        (done.updated_replicas, done.available_replicas, done.unavailable_replicas),
        (Some(2), Some(2), Some(0))
    );
    lab.deployment.status = Some(done.clone());
    assert!(says_the_same(&lab.status(None, at(5000)), &done), "a finished update has no deadline");
}

/// Something that happens to a Deployment.
#[derive(Debug, Clone)]
enum Happens {
    Look,
    Ready(usize),
    Unready(usize),
    Image(u8),
    Scale(i32),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => Just(Happens::Look),
        6 => any::<usize>().prop_map(Happens::Ready),
        2 => any::<usize>().prop_map(Happens::Unready),
        1 => (0u8..4).prop_map(Happens::Image),
        1 => (0i32..12).prop_map(Happens::Scale),
    ]
}

fn bound() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0i32..5).prop_map(|number| json!(number)),
        (0u32..=100).prop_map(|percent| json!(format!("{percent}%")))
    ]
}

proptest! {
    /// Whatever happens to pods, templates and sizes: no look asks for more pods than the surge allows, none takes away
    /// available pods that are needed, and once pods stay ready the update ends.
    #[test]
    fn updates_keep_their_bounds_and_end(
        replicas in 0i32..12,
        surge in bound(),
        unavailable in bound(),
        story in prop::collection::vec(happens(), 0..80),
    ) {
        let mut lab = Lab::new(deployment(replicas, "0", &bounds(&surge, &unavailable)));
        for event in story {
            match event {
                Happens::Look => {
                    let (asked, ready) = (lab.asked(), lab.ready());
                    let wanted = rolling::replicas(&lab.deployment);
                    let sets = lab.sets();
                    let was_scaled = rolling::was_scaled(&lab.deployment, &sets.iter().collect::<Vec<_>>());
                    lab.step();
                    let most = wanted + rolling::max_surge(&lab.deployment);
                    prop_assert!(lab.asked() <= most.max(asked), "{} pods asked for, {most} allowed", lab.asked());
                    let least = wanted - rolling::max_unavailable(&lab.deployment);
                    if !was_scaled {
                        prop_assert!(lab.ready() >= least.min(ready), "{} of {ready} ready pods left, {least} needed", lab.ready());
                    }
                }
                Happens::Ready(which) => lab.turn(which, true),
                Happens::Unready(which) => lab.turn(which, false),
                Happens::Image(image) => lab.set_image(&image.to_string()),
                Happens::Scale(replicas) => lab.scale(replicas),
            }
        }
        lab.settle();
        let wanted = rolling::replicas(&lab.deployment);
        let image = lab.deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()?.containers[0].image.clone());
        let expected = if wanted == 0 { vec![] } else { vec![(image.expect("an image"), wanted)] };
        prop_assert_eq!(lab.sizes(), expected);
    }
}

use super::*;
use k8s_openapi::api::core::v1::{PodReadinessGate, PodSpec};

fn pod(policy: &str, containers: usize) -> Pod {
    let container =
        |n| Container { name: format!("c{n}"), image: Some("signpost/echo".into()), ..Container::default() };
    let spec = PodSpec {
        containers: (0..containers).map(container).collect(),
        restart_policy: Some(policy.into()),
        ..PodSpec::default()
    };
    Pod { spec: Some(spec), ..Pod::default() }
}

fn ended(code: i32) -> Ended {
    let time = Timestamp::UNIX_EPOCH;
    Ended { exit: Exit::Status(code), since: time, until: time, problem: None }
}

fn view(phase: Phase, last: Option<Ended>) -> ContainerView {
    ContainerView { phase, last, ready: false, started: true, restarts: 0 }
}

fn status(pod: &Pod, init: &[ContainerView], containers: &[ContainerView]) -> PodStatus {
    let addresses = ["10.244.1.2".parse().unwrap()];
    let now = Timestamp::UNIX_EPOCH;
    let facts = Facts { pod, addresses: &addresses, host_addresses: &[], start: now, init, containers, now };
    pod_status(&facts)
}

fn condition<'a>(status: &'a PodStatus, name: &str) -> &'a PodCondition {
    status.conditions.as_ref().unwrap().iter().find(|condition| condition.type_ == name).unwrap()
}

#[test]
fn phases_follow_the_containers_and_the_restart_policy() {
    let running = || view(Phase::Running { since: Timestamp::UNIX_EPOCH }, None);
    let backing_off = || view(Phase::Waiting { reason: "CrashLoopBackOff", message: None }, Some(ended(1)));
    let over = |code| view(Phase::Ended(ended(code)), None);
    let cases: [(&str, Vec<ContainerView>, &str); 9] = [
        ("Always", vec![ContainerView::creating()], "Pending"),
        ("Always", vec![running(), ContainerView::creating()], "Pending"),
        ("Always", vec![running(), over(1)], "Running"),
        ("Always", vec![backing_off()], "Running"),
        ("OnFailure", vec![over(0)], "Succeeded"),
        ("OnFailure", vec![over(0), backing_off()], "Running"),
        ("Never", vec![over(0), over(0)], "Succeeded"),
        ("Never", vec![over(0), over(3)], "Failed"),
        ("Never", vec![over(0), running()], "Running"),
    ];
    for (policy, views, phase) in cases {
        let status = status(&pod(policy, views.len()), &[], &views);
        assert_eq!(status.phase.as_deref(), Some(phase), "{policy} {views:?}");
    }
}

#[test]
fn init_containers_come_first() {
    let pod = pod("Never", 1);
    let waiting = [ContainerView::creating()];
    let pending = status(&pod, &[view(Phase::Running { since: Timestamp::UNIX_EPOCH }, None)], &waiting);
    assert_eq!(pending.phase.as_deref(), Some("Pending"));
    assert_eq!(condition(&pending, "Initialized").status, "False");
    let failed = status(&pod, &[view(Phase::Ended(ended(1)), None)], &waiting);
    assert_eq!(failed.phase.as_deref(), Some("Failed"));
}

#[test]
fn an_init_container_that_stays_counts_once_it_has_started_and_must_be_ready_as_well() {
    let mut pod = pod("Always", 1);
    let side = Container { name: "side".into(), restart_policy: Some("Always".into()), ..Container::default() };
    pod.spec.as_mut().unwrap().init_containers = Some(vec![side]);
    let main = [ContainerView::running(Timestamp::UNIX_EPOCH, true)];
    let pending = status(&pod, &[ContainerView::creating()], &[ContainerView::creating()]);
    assert_eq!(
        (pending.phase.as_deref(), condition(&pending, "Initialized").status.as_str()),
        (Some("Pending"), "False")
    );
    let unready = status(&pod, &[ContainerView::running(Timestamp::UNIX_EPOCH, false)], &main);
    assert_eq!((unready.phase.as_deref(), condition(&unready, "Ready").status.as_str()), (Some("Running"), "False"));
    let ready = status(&pod, &[ContainerView::running(Timestamp::UNIX_EPOCH, true)], &main);
    assert_eq!(condition(&ready, "Ready").status, "True");
    let crashed = status(&pod, &[view(Phase::Ended(ended(1)), None)], &main);
    assert_eq!(crashed.phase.as_deref(), Some("Running"));
}

#[test]
fn a_finished_init_container_is_ready_and_each_run_has_a_name_of_its_own() {
    let mut pod = pod("Always", 1);
    pod.spec.as_mut().unwrap().init_containers = Some(vec![Container { name: "i".into(), ..Container::default() }]);
    let restarted = |restarts| ContainerView {
        restarts,
        last: Some(ended(1)),
        ..ContainerView::running(Timestamp::UNIX_EPOCH, true)
    };
    let made = |views: &[ContainerView]| status(&pod, &[view(Phase::Ended(ended(0)), None)], views);
    let first = made(&[ContainerView::running(Timestamp::UNIX_EPOCH, true)]);
    assert!(first.init_container_statuses.as_ref().unwrap()[0].ready);
    let id = first.container_statuses.unwrap()[0].container_id.clone().unwrap();
    assert!(id.starts_with("signpost://") && id.len() == "signpost://".len() + 64, "{id}");
    let second = made(&[restarted(1)]).container_statuses.unwrap().remove(0);
    assert_ne!(second.container_id.as_ref(), Some(&id));
    assert_eq!(second.last_state.unwrap().terminated.unwrap().container_id, Some(id));
    let creating = made(&[ContainerView::creating()]).container_statuses.unwrap().remove(0);
    assert_eq!(creating.container_id, None);
}

#[test]
fn ready_names_the_containers_that_are_not_and_waits_for_gates() {
    let mut pod = pod("Always", 2);
    let ready = ContainerView::running(Timestamp::UNIX_EPOCH, true);
    let unready = ContainerView::running(Timestamp::UNIX_EPOCH, false);
    let one = status(&pod, &[], &[ready.clone(), unready]);
    assert_eq!(condition(&one, "Ready").message.as_deref(), Some("containers with unready status: [c1]"));
    let both = status(&pod, &[], &[ready.clone(), ready.clone()]);
    assert_eq!(condition(&both, "Ready").status, "True");
    pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![PodReadinessGate { condition_type: "example.com/gate".into() }]);
    let gated = status(&pod, &[], &[ready.clone(), ready.clone()]);
    assert_eq!(condition(&gated, "ContainersReady").status, "True");
    assert_eq!(condition(&gated, "Ready").status, "False");
    pod.status = Some(PodStatus {
        conditions: Some(vec![PodCondition {
            type_: "example.com/gate".into(),
            status: "True".into(),
            ..PodCondition::default()
        }]),
        ..PodStatus::default()
    });
    let open = status(&pod, &[], &[ready.clone(), ready]);
    assert_eq!(condition(&open, "Ready").status, "True");
    assert_eq!(condition(&open, "example.com/gate").status, "True", "kept");
}

#[test]
fn a_condition_that_stays_keeps_its_time() {
    let mut pod = pod("Always", 1);
    let views = [ContainerView::running(Timestamp::UNIX_EPOCH, true)];
    let first = status(&pod, &[], &views);
    pod.status = Some(first);
    let later = Timestamp::from_second(100).unwrap();
    let make = |views: &[ContainerView]| {
        pod_status(&Facts {
            pod: &pod,
            addresses: &[],
            host_addresses: &[],
            start: later,
            init: &[],
            containers: views,
            now: later,
        })
    };
    assert_eq!(condition(&make(&views), "Ready").last_transition_time, Some(Time(Timestamp::UNIX_EPOCH)));
    let unready = [ContainerView::running(Timestamp::UNIX_EPOCH, false)];
    assert_eq!(condition(&make(&unready), "Ready").last_transition_time, Some(Time(later)));
}

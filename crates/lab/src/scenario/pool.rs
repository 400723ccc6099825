//! Many scenarios in few labs: those with like nodes, families, mode and configuration follow each other in one lab, and
//! several labs work side by side.
//!
//! ```text
//! scenarios x modes x families ─▶ jobs, grouped by the lab they need ─▶ workers ─▶ reports in the jobs' order
//!                                                                        └ a lab each, swept between two jobs
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::format::{FamilyRun, Mode, Scenario};
use super::report::{Failure, RunReport};
use super::run::run;
use super::stage::{LabKey, Stage};
use crate::patience::patient;

/// What is run and how.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The modes to run, of those that a scenario is defined in.
    pub modes: Vec<Mode>,
    /// One family run alone; `None`: those that each scenario names.
    pub family: Option<FamilyRun>,
    /// Whether each scenario runs in the first of its families alone.
    pub once: bool,
    /// The signpost binary.
    pub program: PathBuf,
    /// How many labs work side by side.
    pub labs: usize,
    /// Whether each probe's outcome is compared with what the doctor says.
    pub doctor: bool,
}

#[derive(Debug)]
struct Job {
    index: usize,
    scenario: Arc<Scenario>,
}

type Groups = BTreeMap<LabKey, VecDeque<Job>>;

/// Runs scenarios and tells each report as soon as it is there; gives all, in the scenarios' order.
pub async fn run_all(scenarios: Vec<Scenario>, options: &PoolOptions, tell: impl FnMut(&RunReport)) -> Vec<RunReport> {
    let groups = grouped(scenarios, options);
    let wanted = wanted(&groups);
    let groups = Arc::new(Mutex::new(groups));
    let (send, receive) = mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for number in 0..options.labs.clamp(1, wanted.len().max(1)) {
        workers.spawn(work(number, groups.clone(), options.clone(), send.clone()));
    }
    drop(send);
    gather(wanted, workers, receive, tell).await
}

/// What each job's report says should its worker end without one, by the job's index.
fn wanted(groups: &Groups) -> BTreeMap<usize, RunReport> {
    let jobs = groups.iter().flat_map(|(key, jobs)| jobs.iter().map(move |job| (key, job)));
    jobs.map(|(key, job)| {
        let failure = Failure { line: 0, detail: "no report: the run was lost".to_owned() };
        let report = RunReport {
            file: job.scenario.file.clone(),
            name: job.scenario.name.clone(),
            run: Some((key.mode, key.family)),
            took: Duration::ZERO,
            failure: Some(failure),
        };
        (job.index, report)
    })
    .collect()
}

/// A report of every job: one that a dead worker took with it, or that no worker was left for, has failed.
async fn gather(
    wanted: BTreeMap<usize, RunReport>,
    mut workers: JoinSet<()>,
    mut receive: mpsc::UnboundedReceiver<(usize, RunReport)>,
    mut tell: impl FnMut(&RunReport),
) -> Vec<RunReport> {
    let mut reports = BTreeMap::new();
    while let Some((index, report)) = receive.recv().await {
        tell(&report);
        reports.insert(index, report);
    }
    let mut deaths = Vec::new();
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a worker died");
            deaths.push(format!("\na worker died: {error}"));
        }
    }
    for (index, mut lost) in wanted {
        if let Entry::Vacant(place) = reports.entry(index) {
            if let Some(failure) = &mut lost.failure {
                failure.detail.push_str(&deaths.concat());
            }
            tell(&lost);
            place.insert(lost);
        }
    }
    reports.into_values().collect()
}

fn grouped(scenarios: Vec<Scenario>, options: &PoolOptions) -> Groups {
    let mut groups = Groups::new();
    let mut index = 0;
    for scenario in scenarios {
        let scenario = Arc::new(scenario);
        for mode in options.modes.iter().filter(|mode| scenario.modes.contains(mode)) {
            let one = if options.once { scenario.families.first().copied() } else { None };
            let wanted = |family: &&FamilyRun| options.family.or(one).is_none_or(|only| only == **family);
            for family in scenario.families.iter().filter(wanted) {
                let key = LabKey {
                    mode: *mode,
                    family: *family,
                    nodes: scenario.nodes.clone(),
                    router: scenario.router,
                    dns: scenario.dns,
                    node_cache: scenario.node_cache,
                    node_config: Value::from_iter(scenario.node.clone()).to_string(),
                };
                groups.entry(key).or_default().push_back(Job { index, scenario: scenario.clone() });
                index += 1;
            }
        }
    }
    groups
}

/// One worker: keeps its lab while there are jobs for it, then takes the group with the most jobs left.
async fn work(
    number: usize,
    groups: Arc<Mutex<Groups>>,
    options: PoolOptions,
    send: mpsc::UnboundedSender<(usize, RunReport)>,
) {
    let mut current: Option<(LabKey, Stage)> = None;
    let mut labs = 0;
    loop {
        let held = current.as_ref().map(|(key, _)| key);
        let Some((key, job)) = next_job(&groups, held) else { break };
        let mut stage = match current.take() {
            Some((held, stage)) if held == key => Ok(stage),
            other => {
                if let Some((_, stage)) = other {
                    stage.close().await;
                }
                labs += 1;
                let name = format!("test-{}-{number}-{labs}", std::process::id());
                Stage::open(&name, &key, &options.program).await
            }
        };
        let started = Instant::now();
        let failure = match &mut stage {
            Ok(stage) => {
                stage.asks_doctor = options.doctor;
                run(stage, &job.scenario, key.mode, key.family).await.err()
            }
            Err(problem) => Some(Failure { line: 0, detail: format!("no lab: {problem}") }),
        };
        let report = RunReport {
            file: job.scenario.file.clone(),
            name: job.scenario.name.clone(),
            run: Some((key.mode, key.family)),
            took: started.elapsed(),
            failure,
        };
        let failed = report.failure.is_some();
        // Nobody reads any more when the runner was interrupted.
        let _ = send.send((job.index, report));
        current = match stage {
            // What it did to a node's kernel by hand was not undone: it must not fail the next one.
            Ok(stage) if failed => {
                stage.close().await;
                None
            }
            Ok(stage) => swept(stage).await.map(|stage| (key, stage)),
            Err(_) => None,
        };
    }
    if let Some((_, stage)) = current {
        stage.close().await;
    }
}

/// An empty lab again, or none: what cannot be emptied is thrown away.
async fn swept(mut stage: Stage) -> Option<Stage> {
    let swept = tokio::time::timeout(patient(Duration::from_secs(30)), stage.sweep()).await;
    match swept {
        Ok(Ok(())) => Some(stage),
        Ok(Err(problem)) => {
            tracing::warn!(problem, "a lab could not be emptied; the next scenario gets a new one");
            stage.close().await;
            None
        }
        Err(_) => {
            tracing::warn!("a lab was not empty in time; the next scenario gets a new one");
            stage.close().await;
            None
        }
    }
}

fn next_job(groups: &Mutex<Groups>, held: Option<&LabKey>) -> Option<(LabKey, Job)> {
    let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
    let left = |key: &&LabKey| groups.get(*key).is_some_and(|jobs| !jobs.is_empty());
    let key = match held.filter(left) {
        Some(key) => key.clone(),
        None => {
            let (key, jobs) = groups.iter().max_by_key(|(_, jobs)| jobs.len())?;
            if jobs.is_empty() {
                return None;
            }
            key.clone()
        }
    };
    let job = groups.get_mut(&key)?.pop_front()?;
    Some((key, job))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::format::parse;
    use super::*;

    fn scenario(head: &str) -> Scenario {
        parse(Path::new("a.yaml"), &format!("name: a\n{head}\nsteps:\n  - pause: 1s\n")).unwrap()
    }

    fn options(family: Option<FamilyRun>) -> PoolOptions {
        PoolOptions {
            modes: vec![Mode::Nftables],
            family,
            once: false,
            program: PathBuf::new(),
            labs: 2,
            doctor: false,
        }
    }

    #[test]
    fn scenarios_with_like_labs_are_grouped() {
        let scenarios =
            || vec![scenario("nodes: 2"), scenario("nodes: 2"), scenario("nodes: 1"), scenario("modes: [ipvs]")];
        let groups = grouped(scenarios(), &options(None));
        let mut sizes: Vec<_> = groups.values().map(VecDeque::len).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 1, 2, 2]);
        let groups = grouped(scenarios(), &options(Some(FamilyRun::Ipv6)));
        assert_eq!(groups.values().map(VecDeque::len).sum::<usize>(), 3);
    }

    #[test]
    fn once_is_the_first_family_of_each_scenario() {
        let scenarios = vec![scenario(""), scenario("families: [dual]"), scenario("families: [ipv6, ipv4]")];
        let groups = grouped(scenarios, &PoolOptions { once: true, ..options(None) });
        let of =
            |family| groups.iter().filter(|(key, _)| key.family == family).map(|(_, jobs)| jobs.len()).sum::<usize>();
        assert_eq!([FamilyRun::Ipv4, FamilyRun::Ipv6, FamilyRun::Dual].map(of), [1, 1, 1]);
    }

    #[test]
    fn a_worker_stays_with_its_lab_and_then_takes_the_largest_group() {
        let scenarios = vec![scenario("nodes: 1"), scenario("nodes: 2"), scenario("nodes: 2")];
        let groups = Mutex::new(grouped(scenarios, &options(Some(FamilyRun::Ipv4))));
        let (first, _) = next_job(&groups, None).unwrap();
        assert_eq!(first.nodes.len(), 2);
        assert_eq!(next_job(&groups, Some(&first)).unwrap().0, first);
        let (last, _) = next_job(&groups, Some(&first)).unwrap();
        assert_eq!(last.nodes.len(), 1);
        assert!(next_job(&groups, Some(&last)).is_none());
    }

    #[tokio::test]
    async fn jobs_without_report_fail_when_a_worker_dies() {
        let scenarios = vec![scenario("nodes: 1"), scenario("nodes: 1"), scenario("nodes: 1")];
        let groups = grouped(scenarios, &options(Some(FamilyRun::Ipv4)));
        let wanted = wanted(&groups);
        let first = RunReport { failure: None, ..wanted[&0].clone() };
        let (send, receive) = mpsc::unbounded_channel();
        let mut workers = JoinSet::new();
        workers.spawn(async move {
            send.send((0, first)).unwrap();
            panic!("out of luck");
        });
        let mut told = 0;
        let reports = gather(wanted, workers, receive, |_| told += 1).await;
        assert_eq!((reports.len(), told), (3, 3));
        assert_eq!(reports[0].failure, None);
        for lost in &reports[1..] {
            let detail = &lost.failure.as_ref().unwrap().detail;
            assert!(detail.contains("no report") && detail.contains("out of luck"), "{detail}");
            assert!(lost.lines().starts_with("FAIL a [nftables ipv4] a.yaml:1\n"), "{}", lost.lines());
        }
    }
}

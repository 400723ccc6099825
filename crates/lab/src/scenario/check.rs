//! Pure. What can be told of a scenario before a lab is made: steps that this version lacks, and names of nodes and pods
//! that nothing in the file makes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::address::{Destination, PodName, Source, Target};
use super::format::{Scenario, Step, StepKind};
use super::report::Failure;

/// Kinds that make pods, whose names the file does not tell.
const MAKERS: [&str; 7] =
    ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "List"];

/// The first step that cannot work.
///
/// # Errors
/// Its line, and what is wrong.
pub fn check(scenario: &Scenario) -> Result<(), Failure> {
    let names = Names::of(scenario);
    for step in &scenario.steps {
        problem(step, &names).map_or(Ok(()), |detail| Err(Failure { line: step.line, detail }))?;
    }
    Ok(())
}

struct Names {
    nodes: BTreeSet<String>,
    /// `None`: some pods get their names while it runs.
    pods: Option<BTreeSet<PodName>>,
}

impl Names {
    fn of(scenario: &Scenario) -> Names {
        let short = scenario.pods.iter();
        let mut pods: BTreeSet<PodName> =
            short.map(|pod| PodName { namespace: pod.namespace.clone(), name: pod.name.clone() }).collect();
        let applied = scenario.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Apply { objects, .. } => Some(objects),
            _ => None,
        });
        let mut all_known = true;
        for object in scenario.objects.iter().chain(applied.flatten()) {
            let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
            match (text("/kind"), text("/metadata/name")) {
                (Some("Pod"), Some(name)) => {
                    let namespace = text("/metadata/namespace").unwrap_or("default");
                    pods.insert(PodName { namespace: namespace.to_owned(), name: name.to_owned() });
                }
                (Some(kind), _) => all_known &= !MAKERS.contains(&kind) && kind != "Pod",
                (None, _) => {}
            }
        }
        Names { nodes: scenario.nodes.iter().map(|node| node.name.clone()).collect(), pods: all_known.then_some(pods) }
    }

    fn node(&self, name: &str) -> Option<String> {
        let name = name.strip_prefix("node/").unwrap_or(name);
        let known = || self.nodes.iter().cloned().collect::<Vec<_>>().join(", ");
        (!self.nodes.contains(name)).then(|| format!("there is no node {name}; there is {}", known()))
    }

    fn pod(&self, name: &PodName) -> Option<String> {
        let pods = self.pods.as_ref().filter(|pods| !pods.contains(name))?;
        let known: Vec<String> = pods.iter().map(ToString::to_string).collect();
        let known =
            if known.is_empty() { "the file makes none".to_owned() } else { format!("there is {}", known.join(", ")) };
        Some(format!("there is no pod {name}; {known}"))
    }

    fn source(&self, source: &Source) -> Option<String> {
        match source {
            Source::Pod(pod) => self.pod(pod),
            Source::Node(node) => self.node(node),
            Source::Outside => None,
        }
    }

    fn target(&self, target: &Target) -> Option<String> {
        match &target.destination {
            Destination::Pod(pod, _) => self.pod(pod),
            Destination::Node(node, _) | Destination::NodePort(node, ..) => self.node(node),
            _ => None,
        }
    }
}

fn problem(step: &Step, names: &Names) -> Option<String> {
    let lacks = |verb: &str| Some(format!("{verb}: this version lacks it"));
    match &step.kind {
        StepKind::Upgrade(_) => lacks("upgrade"),
        StepKind::Doctor(doctor) => {
            let from = doctor.from.as_ref().and_then(|from| names.source(from));
            from.or_else(|| doctor.to.as_ref().and_then(|to| names.target(to)))
        }
        StepKind::Probe { probe, .. } => {
            let from = probe.from.as_ref().and_then(|from| names.source(from));
            from.or_else(|| probe.to.as_ref().and_then(|to| names.target(to)))
        }
        StepKind::Trace(trace) => names.source(&trace.from).or_else(|| names.target(&trace.to)),
        StepKind::Load(load) => names.source(&load.from).or_else(|| names.target(&load.to)),
        StepKind::Exec { on, .. } => on.as_ref().and_then(|on| names.source(on)),
        StepKind::Set { pod, .. } => names.pod(&PodName::parse(pod)),
        StepKind::Route(route) => route.via.as_ref().and_then(|node| names.node(node)),
        StepKind::Restart(node)
        | StepKind::Kill(node)
        | StepKind::Start(node)
        | StepKind::Stop(node)
        | StepKind::Mode { node, .. }
        | StepKind::Cut(node)
        | StepKind::Mend(node) => names.node(node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::format::parse;
    use super::*;

    fn checked(objects: &str, step: &str) -> Result<(), Failure> {
        let text = format!(
            "name: a\nnodes: 2\npods:\n  - {{name: client}}\nobjects: [{objects}]\nsteps:\n  - pause: 1s\n  - {step}\n"
        );
        check(&parse(Path::new("a.yaml"), &text).unwrap())
    }

    #[test]
    fn names_that_nothing_makes_are_found_before_a_lab_is_made() {
        for (step, wrong) in [
            (
                "{probe: {from: clinet, to: \"web:80\"}, expect: {fails: any}}",
                "there is no pod clinet; there is client",
            ),
            (
                "{probe: {from: client, to: \"node/n3:80\"}, expect: {fails: any}}",
                "there is no node n3; there is n1, n2",
            ),
            (
                "{probe: {from: client, to: \"pod/x/y:80\"}, expect: {fails: any}}",
                "there is no pod x/y; there is client",
            ),
            ("{kill: node/n9}", "there is no node n9; there is n1, n2"),
            ("{mode: {node: n9, to: iptables}}", "there is no node n9; there is n1, n2"),
            ("{cut: {link: n9}}", "there is no node n9; there is n1, n2"),
            ("{set: {pod: web, ready: false}}", "there is no pod web; there is client"),
        ] {
            assert_eq!(checked("", step), Err(Failure { line: 8, detail: wrong.to_owned() }), "{step}");
        }
        assert_eq!(checked("", "{probe: {from: client, to: \"pod/client:80\"}, expect: {fails: any}}"), Ok(()));
    }

    #[test]
    fn pods_that_a_deployment_makes_are_not_doubted() {
        let step = "{probe: {from: client, to: \"pod/web-1:80\"}, expect: {fails: any}}";
        assert_eq!(checked("{kind: Deployment, metadata: {name: web}}", step), Ok(()));
        assert_eq!(checked("{kind: Pod, metadata: {name: web-1}}", step), Ok(()));
        assert!(checked("{kind: Service, metadata: {name: web}}", step).is_err());
    }

    #[test]
    fn steps_of_a_later_version_are_refused() {
        let step = "{upgrade: node/n1}";
        assert!(checked("", step).unwrap_err().detail.ends_with("this version lacks it"), "{step}");
    }
}

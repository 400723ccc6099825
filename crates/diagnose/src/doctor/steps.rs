//! Pure. The steps from a name to an answer, each with what was concluded and from what: also of those that are well.

use std::collections::BTreeSet;

use signpost_core::object::ObjectName;

use super::cause::Step;
use super::finding::{Diagnosis, Severity, StepSeen, Verdict};
use super::ground::Ground;
use super::object::{ServiceObject, endpoint_ready, selector_text};

/// What to say of a step that is well; `None`: nothing can be told.
fn well(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    diagnosis: &Diagnosis,
    passed: &BTreeSet<String>,
    step: Step,
) -> Option<String> {
    let nodes = || passed.iter().cloned().collect::<Vec<_>>().join(", ");
    let all_read = passed.iter().all(|node| ground.is_read(node)) && !passed.is_empty();
    Some(match step {
        Step::Name => {
            let addresses: Vec<String> = service.cluster_ips().iter().map(ToString::to_string).collect();
            let ports: Vec<String> =
                service.ports().iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect();
            let address = if service.is_headless() { "headless".to_owned() } else { addresses.join(", ") };
            format!("{address}, ports {}", ports.join(", "))
        }
        Step::Endpoints => {
            let endpoints: Vec<_> = ground.slices_of(name).iter().flat_map(|slice| slice.endpoints()).collect();
            let ready = endpoints.iter().filter(|endpoint| endpoint_ready(endpoint)).count();
            format!("{ready} of {} endpoints ready", endpoints.len())
        }
        Step::Selector => {
            let selector = service.selector();
            if selector.is_empty() {
                "no selector".to_owned()
            } else {
                let pods = ground.pods_of(&name.namespace, &selector).len();
                format!("{} finds {pods} pods", selector_text(&selector))
            }
        }
        Step::Rules if all_read => format!("objects, plan and kernel agree on {}", nodes()),
        Step::Conntrack if all_read => {
            let most = passed.iter().filter_map(|node| {
                let state = &ground.node(node)?.conntrack;
                Some(100 * state.count? / state.max?.max(1))
            });
            format!("at most {} % full on {}", most.max()?, nodes())
        }
        Step::Way if diagnosis.ways.1 > 0 => {
            let (answered, all) = diagnosis.ways;
            format!("{answered} of {all} ways that were walked have an answer")
        }
        Step::Outside => match service.kind() {
            "NodePort" | "LoadBalancer" => "nothing found; clients outside were not asked".to_owned(),
            _ => "it is for clients inside".to_owned(),
        },
        Step::Family => {
            let families: BTreeSet<&str> =
                service.cluster_ips().iter().map(|ip| if ip.is_ipv4() { "ipv4" } else { "ipv6" }).collect();
            if families.is_empty() {
                "no cluster address".to_owned()
            } else {
                families.into_iter().collect::<Vec<_>>().join(", ")
            }
        }
        Step::Rules | Step::Conntrack | Step::Way => return None,
    })
}

pub(super) fn seen(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    diagnosis: &Diagnosis,
    passed: &BTreeSet<String>,
) -> Vec<StepSeen> {
    let of = |step: Step| {
        let mine = || diagnosis.findings.iter().filter(|finding| finding.code.cause().step == step);
        let (verdict, text) = match mine().map(|finding| finding.severity).min() {
            Some(severity) => {
                let words: Vec<String> =
                    mine().map(|finding| format!("{} {}", finding.code, finding.code.cause().title)).collect();
                (if severity == Severity::Broken { Verdict::Broken } else { Verdict::Degraded }, words.join("; "))
            }
            None if step == Step::Way && diagnosis.ways.0 < diagnosis.ways.1 => {
                let (answered, all) = diagnosis.ways;
                let verdict = if answered == 0 { Verdict::Broken } else { Verdict::Degraded };
                (verdict, format!("{answered} of {all} ways that were walked have an answer"))
            }
            None => match well(ground, service, name, diagnosis, passed, step) {
                Some(text) => (Verdict::Healthy, text),
                None if passed.is_empty() => (Verdict::Undetermined, "no packet was walked".to_owned()),
                None => (Verdict::Undetermined, "not every node on the way was read".to_owned()),
            },
        };
        StepSeen { step, verdict, text }
    };
    Step::ALL.into_iter().map(of).collect()
}

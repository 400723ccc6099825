//! How long the doctor and a trace take at a size: `doctor_speed SERVICES ENDPOINTS`. Prints one line of JSON. Beside the time that
//! passed stands that of the processor (`Cpu`), which other work on the machine changes less.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};
use signpost_core::object::ObjectName;
use signpost_diagnose::doctor::{Question, diagnose};
use signpost_diagnose::listed::Listed;
use signpost_diagnose::planned::plan_anew;
use signpost_diagnose::program::Program;
use signpost_diagnose::snapshot::{KernelState, NodeState, PodState, Snapshot};
use signpost_diagnose::trace::{self, trace};

const NODES: u32 = 4;

fn address(net: u32, number: u32) -> String {
    let [_, b, c, d] = number.to_be_bytes();
    format!("10.{}.{c}.{d}", net + u32::from(b))
}

fn snapshot(services: u32, endpoints: u32) -> Snapshot {
    let mut objects = Listed::default();
    for n in 0..NODES {
        objects.nodes.push(json!({
            "metadata": {"name": format!("n{n}")},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("172.18.0.1{n}")}]},
        }));
    }
    for service in 0..services {
        let name = format!("service-{service}");
        let namespace = format!("namespace-{}", service % 100);
        let ip = address(96, service + 1);
        objects.services.push(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
        }));
        let mut listed: Vec<Value> = Vec::new();
        for number in 0..endpoints {
            let pod = service * endpoints + number;
            let (ip, node) = (address(128, pod + 1), format!("n{}", pod % NODES));
            listed.push(json!({"addresses": [ip], "conditions": {"ready": true}, "nodeName": node}));
            objects.pods.push(json!({
                "metadata": {"namespace": namespace, "name": format!("{name}-{number}"), "labels": {"app": name}},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]},
            }));
        }
        objects.slices.push(json!({
            "addressType": "IPv4",
            "metadata": {"namespace": namespace, "name": format!("{name}-a"), "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
            "endpoints": listed,
        }));
    }
    let mut nodes: BTreeMap<String, NodeState> = (0..NODES).map(|n| (format!("n{n}"), NodeState::default())).collect();
    plan_anew(&objects, &mut nodes);
    for state in nodes.values_mut() {
        state.plans.clone_from(&state.wanted);
        let program = |plan| Program::Nftables(signpost_datapath::nftables::Program::of(plan));
        state.programs = state.plans.iter().map(|(family, plan)| (*family, program(plan))).collect();
        state.kernel = state.plans.keys().map(|family| (*family, KernelState::default())).collect();
    }
    let listening = PodState::default();
    let pods = objects.pods.iter().filter_map(|pod| {
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
        Some((format!("{}/{}", text("/metadata/namespace")?, text("/metadata/name")?), listening.clone()))
    });
    Snapshot { pods: pods.take(0).collect(), nodes, objects, lab: true, ..Snapshot::default() }
}

/// How long work takes, and how long a processor was at it, in milliseconds.
fn timed(work: &dyn Fn()) -> (f64, f64) {
    let (started, worked) = (Instant::now(), processor_ms());
    work();
    (started.elapsed().as_secs_f64() * 1e3, processor_ms() - worked)
}

/// How long this thread has run.
fn processor_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e6
}

/// A line of what the kernel says of this process' memory.
fn memory(line: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|found| found.strip_prefix(line)).unwrap_or_default().trim().to_owned()
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (services, endpoints) = (arguments.next().unwrap_or(5000), arguments.next().unwrap_or(10));
    let snapshot = snapshot(services, endpoints);
    let objects = memory("VmRSS:");
    let one = Question { service: Some(ObjectName::new("namespace-7", "service-7")), ..Question::default() };
    let one = timed(&|| drop(diagnose(&snapshot, &one)));
    let all = timed(&|| drop(diagnose(&snapshot, &Question::default())));
    let question = trace::Question {
        from: "namespace-1/service-1-0".parse().expect("it is a pod"),
        to: "service-7.namespace-7:80".parse().expect("it is a destination"),
        family: None,
        protocol: None,
    };
    let traced = timed(&|| drop(trace(&snapshot, &question)));
    let figures = json!({
        "bench": "doctor", "services": services, "endpoints": endpoints, "nodes": NODES,
        "doctorOneMs": one.0, "doctorOneCpuMs": one.1, "doctorAllMs": all.0, "doctorAllCpuMs": all.1,
        "traceMs": traced.0, "traceCpuMs": traced.1, "snapshot": objects, "peak": memory("VmHWM:"),
    });
    println!("{figures}");
}

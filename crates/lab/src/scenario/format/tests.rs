use std::path::Path;
use std::time::Duration;

use super::*;

const WHOLE: &str = r#"
name: a Local policy drops where no endpoint is local
why: kube-proxy drops, it does not reject, when endpoints exist elsewhere
cases: ["service.go: should be able to up and down services"]
nodes: 2
families: [ipv4, dual]
modes: [nftables]
node: {nodePortAddresses: [primary], masqueradeAll: false}
pods:
  - {name: web-1, node: n1, labels: {app: web}, listen: [tcp/8080, http=udp/8080], grace: 30s}
  - {name: client, node: n2, ready: false}
objects:
  - apiVersion: v1
    kind: Service
    metadata: {name: web}
    spec: {type: NodePort, ports: [{name: http, port: 80, targetPort: 8080}]}
steps:
  - probe: {from: client, to: "web:80"}
    expect: {reach: [web-1], source: client}
  - save: {vip: web, range: {ipv4: 10.0.0.0/8}}
  - route: {to: $vip, via: n1}
  - route: {to: $vip}
  - delete: {kind: Service, name: web}
  - probe: {from: client, to: "$vip:80", timeout: 500ms}
    expect: {fails: any, mode: {nftables: timeout, ebpf: {reach: [web-1]}}}
  - apply: []
    expect: {refused: already}
  - expect: {object: {kind: Service, name: web}, path: .spec.type, equals: NodePort, within: 2s}
  - expect: {event: {on: Service/web, reason: Malformed}}
  - restart: node/n1
  - mode: {node: n1, to: iptables}
  - cut: {link: n2}
  - load: {name: L, from: client, to: "web:80", rate: 200/s}
  - end: {load: L, expect: {lost: 0}}
  - exec: {on: node/n1, run: [ip, addr], expect: {stdout: "10\\."}}
  - doctor: {service: web, expect: {code: SP201}}
"#;

fn read(text: &str) -> Result<Scenario, FormatError> {
    parse(Path::new("a.yaml"), text)
}

fn read_step(step: &str) -> Result<Scenario, FormatError> {
    read(&format!("name: x\nsteps:\n  - {step}\n"))
}

#[test]
fn every_word_of_the_contract_is_read() {
    let scenario = read(WHOLE).unwrap();
    assert_eq!(scenario.nodes.len(), 2);
    assert_eq!(scenario.families, [FamilyRun::Ipv4, FamilyRun::Dual]);
    assert_eq!(scenario.pods[0].grace_s, Some(30));
    assert_eq!(scenario.pods[0].listen[1].name.as_deref(), Some("http"));
    assert!(!scenario.pods[1].ready);
    assert_eq!(scenario.cases, ["service.go: should be able to up and down services"]);
    assert_eq!(scenario.steps.len(), 16);
    assert_eq!(scenario.steps[0].line, 18);
}

#[test]
fn defaults_are_one_node_both_families_and_every_mode() {
    let scenario = read_step("pause: 1s").unwrap();
    assert_eq!(scenario.nodes[0].name, "n1");
    assert_eq!(scenario.families, [FamilyRun::Ipv4, FamilyRun::Ipv6]);
    assert_eq!(scenario.modes, Mode::ALL);
}

fn expected(expect: &str) -> Expect {
    let scenario = read_step(&format!("{{probe: {{from: a, to: 'b:80'}}, expect: {expect}}}")).unwrap();
    let StepKind::Probe { expect, .. } = &scenario.steps[0].kind else { panic!("a probe") };
    Expect::clone(expect)
}

#[test]
fn a_deviation_holds_in_its_mode_and_family_alone() {
    let expect = expected("{fails: any, mode: {nftables: timeout, ebpf: {reach: [web-1]}}, family: {dual: refused}}");
    let fails = |mode, family| expect.in_run(mode, family).fails;
    assert_eq!(fails(Mode::Nftables, FamilyRun::Ipv4), Some(Fails::Timeout));
    assert_eq!(fails(Mode::Ipvs, FamilyRun::Ipv4), Some(Fails::Any));
    assert_eq!(fails(Mode::Ipvs, FamilyRun::Dual), Some(Fails::Refused));
    assert_eq!(fails(Mode::Nftables, FamilyRun::Dual), Some(Fails::Timeout));
    let ebpf = expect.in_run(Mode::Ebpf, FamilyRun::Ipv4);
    assert_eq!((ebpf.fails, ebpf.reach), (None, Some(vec!["web-1".to_owned()])));
}

#[test]
fn a_deviation_changes_only_the_fields_that_it_has() {
    let expect = expected("{reach: [a], source: client, within: 2s, mode: {ebpf: {source: node}, ipvs: refused}}");
    let ebpf = expect.in_run(Mode::Ebpf, FamilyRun::Ipv4);
    assert_eq!((ebpf.reach, ebpf.source), (Some(vec!["a".to_owned()]), Some(PeerExpect::Node)));
    let ipvs = expect.in_run(Mode::Ipvs, FamilyRun::Ipv4);
    assert_eq!((ipvs.reach, ipvs.source, ipvs.fails), (None, None, Some(Fails::Refused)));
    assert_eq!(ipvs.within, Some(Duration::from_secs(2)));
}

#[test]
fn an_error_names_file_line_and_field() {
    for (text, line, field) in [
        ("name: x\nsteps:\n  - probe: {from: a, to: 'b:80', trys: 3}\n", 3, "trys"),
        ("name: x\nnodes: many\nsteps: []\n", 2, "nodes"),
        ("name: x\nsteps:\n  - pause: soon\n", 3, "pause"),
        ("name: x\nfamilies: [ipv5]\nsteps:\n  - pause: 1s\n", 2, "families"),
        ("name: x\nsteps:\n  - probe: {from: a, to: 'b'}\n", 3, "to"),
        ("name: x\nsteps:\n  - probe: {from: a, to: 'b:80'}\n    expect: {source: nobody}\n", 4, "source"),
        ("name: x\nsteps:\n  - restart: n1\n", 3, "restart"),
        ("name: x\npods:\n  - {name: a, node: n7}\nsteps:\n  - pause: 1s\n", 2, "pods"),
        ("name: x\npods:\n  - {name: a, listen: [8080]}\nsteps:\n  - pause: 1s\n", 3, "listen"),
    ] {
        let error = read(text).unwrap_err();
        assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{text}{error}");
        assert!(error.to_string().starts_with(&format!("a.yaml:{line}:")), "{error}");
    }
}

#[test]
fn a_step_has_exactly_one_verb() {
    assert!(read_step("{pause: 1s, restart: node/n1}").unwrap_err().problem.contains("one verb"));
    assert!(read_step("{}").unwrap_err().problem.contains("nothing"));
    assert!(read_step("{pause: 1s, expect: {fails: any}}").unwrap_err().problem.contains("no expect"));
}

#[test]
fn contradictory_expectations_are_refused() {
    for expect in ["{fails: any, reach: [a]}", "{reach: []}", "{share: {a: 0.5}}", "{refused: x}", "{body: '('}"] {
        let step = format!("{{probe: {{from: a, to: 'b:80'}}, expect: {expect}}}");
        assert!(read_step(&step).is_err(), "{expect}");
    }
}

#[test]
fn durations_have_units() {
    assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
    assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
    for text in ["5", "s", "1d", "-1s", "1e400s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn every_scenario_of_the_project_is_understood() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let scenario = parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{e}"));
                assert!(scenario.why.is_some(), "{}: says no why", path.display());
                read += 1;
            }
        }
    }
    assert!(read >= 25, "{read}");
}

#[test]
fn a_load_is_ended_once_and_after_its_start() {
    let load = "  - load: {name: L, from: a, to: 'b:80', rate: 1/s}\n";
    let end = "  - end: {load: L, expect: {lost: 0}}\n";
    let read = |steps: &[&str]| read(&format!("name: x\nsteps:\n  - pause: 1s\n{}", steps.concat()));
    assert!(read(&[load, end, load, end]).is_ok());
    for (steps, line, wrong) in [
        (&[load][..], 4, "no step ends the load L"),
        (&[load, end, end][..], 6, "no load L runs here"),
        (&[end, load][..], 4, "no load L runs here"),
        (&[load, load, end][..], 5, "a load L runs already"),
    ] {
        let error = read(steps).unwrap_err();
        assert_eq!((error.line, error.problem.as_str()), (line, wrong), "{error}");
    }
}

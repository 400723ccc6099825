//! Kubernetes' end-to-end cases: `scenarios/e2e.tsv` has a line for each of the 180 of `test/e2e/network` (1.36.2), with the
//! scenarios and tests that show it, or the reason why none does. These tests hold the table and the files together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::format::{FamilyRun, Mode, Scenario, parse};

/// Lines of the table: none may get lost.
const CASES: usize = 180;
const HEAD: &str = "file\tline\tclass\ttitle\tshown by\treason";
/// Network namespaces and a proxy are enough; the same with SCTP; API objects or controllers as well; the API alone; a
/// kubelet; the Internet or a cloud.
const CLASSES: [&str; 6] = ["N", "N(sctp)", "N+A", "A", "K", "X"];

struct Case {
    /// `FILE: TITLE`, as a scenario's `cases` names it.
    name: String,
    file: String,
    class: String,
    scenarios: Vec<String>,
    /// File and function.
    tests: Vec<(String, String)>,
    reason: String,
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn table() -> Vec<Case> {
    let text = fs::read_to_string(root().join("scenarios/e2e.tsv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEAD));
    lines.map(case).collect()
}

fn case(line: &str) -> Case {
    let [file, number, class, title, shown, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
        panic!("six columns: {line}");
    };
    assert!(number.parse::<u32>().is_ok(), "{line}");
    let (tests, scenarios): (Vec<&str>, Vec<&str>) = shown.split(' ').partition(|word| word.starts_with("test:"));
    let test = |word: &&str| {
        let (path, function) = word.trim_start_matches("test:").split_once('#').expect("test:FILE#FUNCTION");
        (path.to_owned(), function.to_owned())
    };
    Case {
        name: format!("{file}: {title}"),
        file: file.to_owned(),
        class: class.to_owned(),
        scenarios: scenarios.into_iter().filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        tests: tests.iter().map(test).collect(),
        reason: reason.to_owned(),
    }
}

/// Every scenario of the project, by its path below `scenarios` without its ending.
pub(super) fn scenarios() -> BTreeMap<String, Scenario> {
    let folder = root().join("scenarios");
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "yaml") {
                let name = path.strip_prefix(&folder).unwrap().with_extension("").display().to_string();
                let scenario = parse(&path, &fs::read_to_string(&path).unwrap());
                found.insert(name, scenario.unwrap_or_else(|error| panic!("{error}")));
            }
        }
    }
    found
}

/// Where the scenarios of a case are defined.
fn runs(case: &Case, scenarios: &BTreeMap<String, Scenario>) -> BTreeSet<(Mode, FamilyRun)> {
    let of = |scenario: &Scenario| {
        let (modes, families) = (scenario.modes.clone(), scenario.families.clone());
        modes.into_iter().flat_map(move |mode| families.clone().into_iter().map(move |family| (mode, family)))
    };
    let mut runs: BTreeSet<_> = case.scenarios.iter().flat_map(|name| of(&scenarios[name])).collect();
    for (mode, _) in runs.clone().into_iter().filter(|(_, family)| *family == FamilyRun::Dual) {
        runs.extend([(mode, FamilyRun::Ipv4), (mode, FamilyRun::Ipv6)]);
    }
    runs
}

/// The modes and families that a case is to be shown in.
fn wanted(case: &Case) -> BTreeSet<(Mode, FamilyRun)> {
    let both = [FamilyRun::Ipv4, FamilyRun::Ipv6];
    let families: &[FamilyRun] = if case.file == "dual_stack.go" { &[FamilyRun::Dual] } else { &both };
    Mode::ALL.into_iter().flat_map(|mode| families.iter().map(move |family| (mode, *family))).collect()
}

#[test]
fn the_table_has_every_case_once() {
    let cases = table();
    assert_eq!(cases.len(), CASES);
    let mut seen = BTreeMap::<&str, usize>::new();
    for case in &cases {
        assert!(CLASSES.contains(&case.class.as_str()), "{}: class {}", case.name, case.class);
        *seen.entry(&case.name).or_default() += 1;
    }
    // One title stands twice upstream.
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert_eq!(twice, [(&"networking.go: should provide Internet connection for containers", &2)]);
}

#[test]
fn what_the_table_names_is_there_and_names_the_case() {
    let scenarios = scenarios();
    for case in table() {
        for name in &case.scenarios {
            let scenario = scenarios.get(name).unwrap_or_else(|| panic!("{}: no scenario {name}", case.name));
            assert!(scenario.cases.contains(&case.name), "scenarios/{name}.yaml does not name {:?}", case.name);
        }
        for (file, function) in &case.tests {
            let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(text.contains(&format!("fn {function}(")), "{file} has no {function}");
        }
    }
}

#[test]
fn a_scenario_names_only_cases_that_the_table_has_it_for() {
    let cases = table();
    for (name, scenario) in scenarios() {
        for named in &scenario.cases {
            let known = cases.iter().find(|case| case.name == *named);
            let known = known.unwrap_or_else(|| panic!("scenarios/{name}.yaml: there is no case {named:?}"));
            assert!(known.scenarios.contains(&name), "scenarios/e2e.tsv has not {name} for {named:?}");
        }
    }
}

#[test]
fn every_exception_has_a_reason() {
    let scenarios = scenarios();
    for case in table() {
        let of_proxy = case.class.starts_with('N');
        let missing: Vec<_> = if of_proxy {
            wanted(&case)
                .difference(&runs(&case, &scenarios))
                .map(|(mode, family)| format!("{mode} {family}"))
                .collect()
        } else {
            Vec::new()
        };
        let is_shown = !case.scenarios.is_empty() || !case.tests.is_empty();
        let needs_reason = !is_shown || !missing.is_empty();
        assert!(!needs_reason || !case.reason.is_empty(), "{}: no reason for {}", case.name, missing.join(", "));
    }
}

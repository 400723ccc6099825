//! Which scenarios run in the mode IPVS, in virtual machines: a core on two kernels and those of this mode alone (`make vm`), all that
//! are defined in it on one (`make vm-all`). `scenarios/ipvs.tsv` has the core and every exception with its reason; tools/vm.sh
//! runs by it. These tests hold the table and the files together, so that nothing is left out without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::e2e_cases::{root, scenarios};
use super::format::Mode;

const HEAD: &str = "scenario\truns\treason";

struct Row {
    runs: String,
    reason: String,
}

fn table() -> BTreeMap<String, Row> {
    let text = fs::read_to_string(root().join("scenarios/ipvs.tsv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEAD));
    let mut rows = BTreeMap::new();
    for line in lines {
        let [scenario, runs, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}")
        };
        let row = Row { runs: runs.to_owned(), reason: reason.to_owned() };
        assert!(rows.insert(scenario.to_owned(), row).is_none(), "{scenario} is there twice");
    }
    rows
}

fn named<'a>(rows: &'a BTreeMap<String, Row>, runs: &str) -> BTreeSet<&'a str> {
    rows.iter().filter(|(_, row)| row.runs == runs).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_table_names_scenarios_and_gives_a_reason_for_each_exception() {
    let scenarios = scenarios();
    for (name, row) in table() {
        let is_there = match name.strip_suffix('*') {
            Some(folder) => scenarios.keys().any(|scenario| scenario.starts_with(folder)),
            None => scenarios.contains_key(&name),
        };
        assert!(is_there, "no scenario {name}");
        match row.runs.as_str() {
            "core" => assert_eq!(row.reason, "", "{name}: a core scenario runs, and needs no reason"),
            "undefined" | "left out" => assert!(!row.reason.is_empty(), "{name}: no reason"),
            other => panic!("{name}: {other}"),
        }
    }
}

/// One of another mode alone is that mode's own, and says so by itself.
#[test]
fn what_several_other_modes_have_and_ipvs_has_not_is_named() {
    let (rows, scenarios) = (table(), scenarios());
    let named = named(&rows, "undefined");
    for (name, scenario) in &scenarios {
        let is_undefined = !scenario.modes.contains(&Mode::Ipvs);
        let is_named = named.contains(name.as_str());
        assert!(is_undefined || !is_named, "{name} is defined in ipvs");
        assert!(!is_undefined || is_named || scenario.modes.len() == 1, "{name}: scenarios/ipvs.tsv has no reason");
    }
}

#[test]
fn few_are_left_out_one_by_one_and_the_core_is_small_and_runs() {
    let (rows, scenarios) = (table(), scenarios());
    let core = named(&rows, "core");
    assert!((5..=10).contains(&core.len()), "{} scenarios", core.len());
    assert!(core.iter().all(|name| scenarios[*name].modes.contains(&Mode::Ipvs)));
    let alone = named(&rows, "left out").into_iter().filter(|name| !name.ends_with('*'));
    assert!(alone.count() * 20 < scenarios.len(), "more than a twentieth is left out");
}

#[test]
fn the_machines_run_by_the_table() {
    let script = fs::read_to_string(root().join("tools/vm.sh")).unwrap();
    assert!(script.contains("scenarios/ipvs.tsv"));
}

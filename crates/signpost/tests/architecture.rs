//! The shape of the house, held by tests: no circle between modules, no I/O in a pure file, no file over 1,000 lines,
//! crates depend only downwards, unsafe only in `sys.rs`.
//!
//! Source text is read, not parsed: comments and strings are cut out, then `crate::…` and `super::…` paths give the
//! edges. A module is a direct child of a crate's root, as the circle between those is what a reader meets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MOST_LINES: usize = 1_000;

/// What no pure file may name outside of its tests.
const IMPURE: [&str; 22] = [
    "std::fs",
    "env::var",
    "env::args",
    "env::current",
    "std::process",
    "std::thread",
    "std::os::",
    "SystemTime",
    "Instant::now",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "File::open",
    "tracing::",
    "println!",
    "eprintln!",
    "tokio::",
    "nix::",
    "libc::",
    "Mutex",
    "RwLock",
];

/// The crates each crate may use. `core` uses none of ours; nothing uses the binary.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("core", &[]),
    ("wire", &[]),
    ("metallb", &["core"]),
    ("datapath", &["core"]),
    ("cluster", &["core"]),
    ("node", &["core", "datapath", "cluster", "wire", "metallb"]),
    ("controller", &["core", "metallb"]),
    ("apiserver", &["core", "metallb"]),
    ("diagnose", &["core", "datapath", "cluster"]),
    ("dns", &["core", "cluster"]),
    ("lab", &["core", "datapath", "cluster", "node", "controller", "apiserver", "diagnose"]),
    ("signpost", &["core", "datapath", "cluster", "node", "controller", "apiserver", "lab", "diagnose", "dns"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn crate_sources(name: &str) -> Vec<PathBuf> {
    rust_files(&root().join("crates").join(name).join("src"))
}

/// The text before the tests that stand in the file itself, which are its end. A `mod tests;` further up ends nothing.
fn before_tests(text: &str) -> &str {
    let opens = |(at, _): &(usize, &str)| {
        let module = text[*at..].lines().nth(2).unwrap_or_default();
        module.starts_with("mod ") && module.ends_with('{')
    };
    text.match_indices("\n#[cfg(test)]").find(opens).map_or(text, |(at, _)| &text[..at])
}

/// The code of a file: without comments, string contents and its own tests.
fn code_of(text: &str) -> String {
    let text = before_tests(text);
    let mut code = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                characters.next();
            }
            '"' => in_string = !in_string,
            '\'' if !in_string && characters.peek() == Some(&'"') => {
                characters.next();
            }
            '/' if !in_string && characters.peek() == Some(&'/') => {
                for skipped in characters.by_ref() {
                    if skipped == '\n' {
                        code.push('\n');
                        break;
                    }
                }
            }
            _ if in_string => {}
            _ => code.push(character),
        }
    }
    code
}

/// The module of a file, as its top-level name in the crate: `plan/policy.rs` is in `plan`; `lib.rs` has none.
fn top_module(crate_name: &str, file: &Path) -> Option<String> {
    let source = root().join("crates").join(crate_name).join("src");
    let relative = file.strip_prefix(source).expect("the file is in the crate");
    let first = relative.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs");
    (!["lib", "main"].contains(&name)).then(|| name.to_owned())
}

fn module_edges(crate_name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let files = crate_sources(crate_name);
    let modules: BTreeSet<String> = files.iter().filter_map(|file| top_module(crate_name, file)).collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let Some(from) = top_module(crate_name, file) else { continue };
        if file.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let code = code_of(&fs::read_to_string(file).expect("a source file can be read"));
        for rest in code.split("crate::").skip(1) {
            for target in first_names(rest) {
                if target != from && modules.contains(&target) {
                    edges.entry(from.clone()).or_default().insert(target);
                }
            }
        }
    }
    edges
}

/// The first path segment after `crate::`; each first segment of a group `crate::{a::B, c}`.
fn first_names(rest: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut item = String::new();
    for character in group.chars() {
        match character {
            '}' if depth == 0 => break,
            ',' if depth == 0 => names.push(name(&std::mem::take(&mut item))),
            _ => {
                depth += i32::from(character == '{') - i32::from(character == '}');
                item.push(character);
            }
        }
    }
    names.push(name(&item));
    names
}

fn circle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        at: &str,
        edges: &BTreeMap<String, BTreeSet<String>>,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|module| module == at) {
            return Some(path[start..].to_vec());
        }
        if done.contains(at) {
            return None;
        }
        path.push(at.to_owned());
        for next in edges.get(at).into_iter().flatten() {
            if let Some(found) = visit(next, edges, path, done) {
                return Some(found);
            }
        }
        path.pop();
        done.insert(at.to_owned());
        None
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|start| visit(start, edges, &mut Vec::new(), &mut done))
}

#[test]
fn modules_of_a_crate_import_each_other_in_no_circle() {
    for (name, _) in MAY_USE {
        if let Some(found) = circle(&module_edges(name)) {
            panic!("crates/{name}: the modules {} import each other in a circle", found.join(" -> "));
        }
    }
}

#[test]
fn a_circle_would_be_found() {
    let edges = BTreeMap::from([
        ("a".to_owned(), BTreeSet::from(["b".to_owned()])),
        ("b".to_owned(), BTreeSet::from(["c".to_owned()])),
        ("c".to_owned(), BTreeSet::from(["b".to_owned()])),
    ]);
    assert_eq!(circle(&edges), Some(vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!(
        before_tests("a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod tests {\nc"),
        "a\n#[cfg(test)]\nmod tests;\nb"
    );
    assert_eq!(first_names("{plan::{A, B}, walk}; x"), ["plan", "walk"]);
    assert_eq!(first_names("plan::NodePlan"), ["plan"]);
    assert_eq!(code_of("a \"crate::x\" // crate::y\nb"), "a \"\" \nb".replace("\"\"", ""));
}

#[test]
fn a_file_that_calls_itself_pure_does_no_io() {
    let mut pure = 0;
    for (name, _) in MAY_USE {
        for file in crate_sources(name) {
            let text = fs::read_to_string(&file).unwrap();
            if !text.starts_with("//! Pure.") {
                continue;
            }
            pure += 1;
            let code = code_of(&text);
            for impure in IMPURE {
                assert!(!code.contains(impure), "{} says it is pure, but uses {impure}", file.display());
            }
        }
    }
    assert!(pure > 3, "only {pure} pure files were found: the test reads the wrong folder");
}

#[test]
fn every_file_of_core_is_pure() {
    for file in crate_sources("core") {
        if file.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! Pure."), "{}: a file of core begins with `//! Pure.`", file.display());
    }
}

#[test]
fn no_file_is_longer_than_a_thousand_lines() {
    for file in rust_files(&root().join("crates")) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines, the most is {MOST_LINES}", file.display());
    }
}

#[test]
fn crates_depend_only_downwards() {
    let folders: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let known: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(folders, known, "a crate is new or gone: say in MAY_USE what it may use");
    for (name, allowed) in MAY_USE {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or(&manifest);
        for line in dependencies.lines().filter(|line| line.starts_with("signpost-")) {
            let used = line.trim_start_matches("signpost-").split(['.', ' ', '=']).next().unwrap_or_default();
            assert!(allowed.contains(&used), "crates/{name} must not use signpost-{used}");
        }
    }
}

#[test]
fn unsafe_stands_only_in_sys_files_of_datapath_node_and_lab() {
    for (name, _) in MAY_USE {
        for file in crate_sources(name) {
            let code = code_of(&fs::read_to_string(&file).unwrap());
            let allowed =
                ["datapath", "node", "lab"].contains(&name) && file.file_name().is_some_and(|name| name == "sys.rs");
            let unsafe_word = code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            assert!(allowed || !unsafe_word, "{} has unsafe code", file.display());
        }
    }
}

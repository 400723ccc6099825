//! `signpost node --probe`: what this kernel has of what the mode ebpf uses, a line each, and which mode `auto` takes.

use std::ffi::OsStr;
use std::process::ExitCode;

use signpost_datapath::ebpf::KernelConfig;
use signpost_datapath::ebpf::features::{Feature, suffice};
use signpost_datapath::probe;
use signpost_node::config::ModeName;
use signpost_node::mode;

/// Prints it. The exit status is 0 if the mode can be here, else 1.
pub fn print(config: &KernelConfig) -> ExitCode {
    let all = probe::ebpf_features(config, OsStr::new("nft"));
    print!("{}", table(&all));
    match mode::choose(ModeName::Auto, mode::check) {
        Ok(chosen) => println!("auto takes {} ({})", chosen.mode, chosen.reason()),
        Err(error) => println!("auto takes none: {error}"),
    }
    if suffice(&all) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(features: &[Feature]) -> String {
    let rows: Vec<[String; 4]> = features.iter().map(row).collect();
    let head = ["FEATURE", "HERE", "FOR", "SAID"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].len()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2)];
    let line = |[name, here, purpose, said]: &[String; 4]| {
        format!("{name:0$}  {here:1$}  {purpose:2$}  {said}\n", widths[0], widths[1], widths[2])
    };
    [&head].into_iter().chain(&rows).map(line).collect()
}

fn row(feature: &Feature) -> [String; 4] {
    let (here, said) = match (&feature.found, feature.otherwise) {
        (Ok(said), _) => ("yes", said.clone()),
        (Err(said), None) => ("MISSING", format!("{said}: the mode cannot be used")),
        (Err(said), Some(otherwise)) => ("no", format!("{said}: {otherwise}")),
    };
    // Errors may come in lines.
    [feature.name.clone(), here.to_owned(), feature.purpose.to_owned(), said.replace('\n', " ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_is_done_without_it() {
        let feature = |found: Result<&str, &str>, otherwise| Feature {
            name: "a thing".to_owned(),
            purpose: "all",
            found: found.map(str::to_owned).map_err(str::to_owned),
            otherwise,
        };
        let all = [feature(Ok("there"), None), feature(Err("not built"), Some("left")), feature(Err("old"), None)];
        assert_eq!(
            table(&all),
            "FEATURE  HERE     FOR  SAID\n\
             a thing  yes      all  there\n\
             a thing  no       all  not built: left\n\
             a thing  MISSING  all  old: the mode cannot be used\n"
        );
    }
}

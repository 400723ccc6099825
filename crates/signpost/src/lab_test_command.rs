//! `signpost lab test`: runs scenario files, each in every mode and family, and says which hold.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use signpost_lab::scenario::check::check;
use signpost_lab::scenario::format::{FamilyRun, Mode, Scenario, parse};
use signpost_lab::scenario::pool::{PoolOptions, run_all};
use signpost_lab::scenario::report::{Failure, RunReport, junit, summary};
use signpost_lab::scenario::stage::mode_problem;
use tokio::signal::unix::{SignalKind, signal};

/// Run scenarios: what the plan says, what the rules say and what the kernel does must agree with the file.
#[derive(Debug, Args)]
pub struct LabTestCommand {
    /// Modes to run, with commas between; each must work on this kernel. Default: those that do.
    #[arg(long = "mode", value_delimiter = ',', value_name = "MODES")]
    modes: Vec<Mode>,
    /// Run this family alone: ipv4, ipv6 or dual.
    #[arg(long)]
    family: Option<FamilyRun>,
    /// Run each scenario in the first of its families alone.
    #[arg(long, conflicts_with = "family")]
    once: bool,
    /// After each probe ask the doctor: what got an answer must not be called broken, and what got none not healthy.
    #[arg(long)]
    doctor: bool,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// How many labs work side by side.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    labs: u16,
    /// Scenario files, or folders with such.
    #[arg(required = true, value_name = "FILE|FOLDER")]
    paths: Vec<PathBuf>,
}

impl LabTestCommand {
    /// Runs it; the exit code is 0 only if nothing failed.
    ///
    /// # Errors
    /// There is no file, a mode that was named does not work here, or the results cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        signpost_lab::patience::factor()?;
        let files = all_files(&self.paths)?;
        if let Some(file) = &self.junit {
            // Before the long part, not after it.
            let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
            open.with_context(|| format!("--junit {}: cannot write there", file.display()))?;
        }
        let options = PoolOptions {
            modes: chosen_modes(&self.modes)?,
            family: self.family,
            once: self.once,
            program: std::env::current_exe().context("cannot find the signpost program itself")?,
            labs: usize::from(self.labs),
            doctor: self.doctor,
        };
        let mut reports = Vec::new();
        let mut scenarios = Vec::new();
        for file in files {
            match read(&file) {
                Ok(scenario) => scenarios.push(scenario),
                Err(failure) => reports.push(RunReport::refused(file, failure)),
            }
        }
        reports.iter().for_each(|report| print(&report.lines()));
        let families: BTreeSet<FamilyRun> = scenarios.iter().flat_map(|s| s.families.iter().copied()).collect();
        let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
        let run = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                run = run_all(scenarios, &options, |report| print(&report.lines())) => Ok(run),
                _ = tokio::signal::ctrl_c() => bail!("interrupted; the labs are taken down"),
                _ = terminate.recv() => bail!("terminated; the labs are taken down"),
            }
        })?;
        reports.extend(run);
        let mut failed = reports.iter().any(|report| report.failure.is_some());
        if reports.is_empty() {
            failed = true;
            print(&format!("{}\n", nothing_ran(self.family, &options.modes, &families)));
        }
        if let Some(file) = &self.junit
            && let Err(error) = std::fs::write(file, junit(&reports))
        {
            failed = true;
            eprintln!("--junit {}: {error}", file.display());
        }
        print(&format!("{}\n", summary(&reports)));
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Why no scenario ran.
fn nothing_ran(family: Option<FamilyRun>, modes: &[Mode], families: &BTreeSet<FamilyRun>) -> String {
    let families: Vec<String> = families.iter().map(ToString::to_string).collect();
    match family {
        Some(family) if !families.contains(&family.to_string()) => {
            format!("nothing to run: --family {family}, but the scenarios are for {}", families.join(", "))
        }
        _ => {
            let modes: Vec<String> = modes.iter().map(ToString::to_string).collect();
            format!("nothing to run: none of the scenarios is for the modes {}", modes.join(", "))
        }
    }
}

/// To the standard output, at once. A reader that left is no reason to stop: labs are to be taken down.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The modes that were named, each of which must work; else those that do, saying which were left out.
fn chosen_modes(named: &[Mode]) -> anyhow::Result<Vec<Mode>> {
    if !named.is_empty() {
        for mode in named {
            if let Some(problem) = mode_problem(*mode) {
                bail!("mode {mode} cannot run here: {problem}");
            }
        }
        return Ok(named.to_vec());
    }
    let mut modes = Vec::new();
    for mode in Mode::ALL {
        match mode_problem(mode) {
            None => modes.push(mode),
            Some(problem) => print(&format!("left out: mode {mode} ({problem})\n")),
        }
    }
    if modes.is_empty() {
        bail!("no mode can run here");
    }
    Ok(modes)
}

/// Every scenario file under the paths, sorted.
fn all_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    if files.is_empty() {
        bail!("no scenario (*.yaml) found under the given paths");
    }
    Ok(files)
}

/// A scenario that can be run; a file that is wrong fails alone, the others run.
fn read(file: &Path) -> Result<Scenario, Failure> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Failure { line: 0, detail: format!("cannot read it: {error}") })?;
    let scenario = parse(file, &text).map_err(|error| Failure { line: error.line, detail: error.to_string() })?;
    check(&scenario)?;
    Ok(scenario)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let failed = || format!("cannot read {}", path.display());
    if !std::fs::metadata(path).with_context(failed)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).with_context(failed)? {
        entries.push(entry.with_context(failed)?.path());
    }
    entries.sort();
    for entry in entries {
        let is_yaml = entry.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if entry.is_dir() {
            collect(&entry, files)?;
        } else if is_yaml {
            files.push(entry);
        }
    }
    Ok(())
}

//! `signpost lab test`: runs scenario files, each in every mode and family, and says which hold.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use signpost_lab::scenario::format::{FamilyRun, Mode, Scenario, parse};
use signpost_lab::scenario::pool::{PoolOptions, run_all};
use signpost_lab::scenario::report::{junit, summary};
use signpost_lab::scenario::stage::mode_problem;

/// Run scenarios: what the plan says, what the rules say and what the kernel does must agree with the file.
#[derive(Debug, Args)]
pub struct LabTestCommand {
    /// Modes to run, with commas between; each must work on this kernel. Default: those that do.
    #[arg(long = "mode", value_delimiter = ',', value_name = "MODES")]
    modes: Vec<Mode>,
    /// Run this family alone: ipv4, ipv6 or dual.
    #[arg(long)]
    family: Option<FamilyRun>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// How many labs work side by side.
    #[arg(long, default_value_t = 3)]
    labs: usize,
    /// Scenario files, or folders with such.
    #[arg(required = true, value_name = "FILE|FOLDER")]
    paths: Vec<PathBuf>,
}

impl LabTestCommand {
    /// Runs it; the exit code is 0 only if nothing failed.
    ///
    /// # Errors
    /// A file cannot be read or understood, or a mode that was named does not work here.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let scenarios = read_all(&self.paths)?;
        let options = PoolOptions {
            modes: chosen_modes(&self.modes)?,
            family: self.family,
            program: std::env::current_exe().context("cannot find the signpost program itself")?,
            labs: self.labs,
        };
        let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
        let reports = runtime.block_on(async {
            tokio::select! {
                reports = run_all(scenarios, &options, |report| print(&report.lines())) => Ok(reports),
                _ = tokio::signal::ctrl_c() => bail!("interrupted; the labs are taken down"),
            }
        })?;
        if let Some(file) = &self.junit {
            std::fs::write(file, junit(&reports)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        print(&format!("{}\n", summary(&reports)));
        if reports.is_empty() {
            bail!("none of the scenarios is defined for these modes and families");
        }
        let failed = reports.iter().any(|report| report.failure.is_some());
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// Every scenario under the paths, sorted by path. All are read before the first runs: a typing error shows at once.
fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Scenario>> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files)?;
    }
    if files.is_empty() {
        bail!("no scenario (*.yaml) found under the given paths");
    }
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(parse(file, &text)?)
    };
    files.iter().map(read).collect()
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

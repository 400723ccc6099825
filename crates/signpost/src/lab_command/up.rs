//! `signpost lab up`. The process that the person called starts the supervisor (the same command with `--foreground`),
//! shows what it says, and leaves when the lab is up; the supervisor stays.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use signpost_lab::spec::{LoadBalancing, SpecError};
use signpost_lab::{DEFAULT_NAME, Families, Lab, LabError, LabSpec, control, spawner};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is left of the runtime gets so long to end.
const LAST: Duration = Duration::from_secs(5);
/// The supervisor's last word to the process that started it.
const UP: &str = "UP";

/// Start a lab.
#[derive(Args)]
pub struct UpCommand {
    /// How many nodes.
    #[arg(long, default_value_t = 2, value_name = "N")]
    nodes: usize,
    /// The node daemons' mode: auto, ebpf, nftables, iptables, ipvs.
    #[arg(long, default_value = "auto", value_name = "M")]
    mode: String,
    /// Address families: ipv4, ipv6 or dual.
    #[arg(long, default_value = "dual")]
    families: Families,
    /// Give Services of type LoadBalancer addresses, and announce them: l2 or bgp (needs BIRD).
    #[arg(long, value_name = "HOW")]
    lb: Option<LoadBalancing>,
    /// Do without the cluster's name service, the Service kube-dns.
    #[arg(long)]
    no_dns: bool,
    /// Let each node answer its pods' questions for names itself: see docs/dns.md.
    #[arg(long, conflicts_with = "no_dns")]
    node_cache: bool,
    /// The lab's name; labs of different names run side by side.
    #[arg(long, env = "SIGNPOST_LAB", default_value = DEFAULT_NAME)]
    name: String,
    /// Where its state goes; default: /run/signpost/labs/NAME
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which program of this machine an image stands for. May be given several times.
    #[arg(long = "image", value_name = "NAME=PATH")]
    images: Vec<String>,
    /// Stay in the foreground; SIGINT, SIGTERM and SIGHUP end the lab.
    #[arg(long)]
    foreground: bool,
    /// Be the supervisor of `up`: go to the background when the lab is up.
    #[arg(long, hide = true)]
    supervise: bool,
}

impl UpCommand {
    /// Does it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let spec = self.spec()?;
        if self.foreground || self.supervise {
            return supervise(spec, self.supervise);
        }
        start_supervisor(&spec.name)
    }

    fn spec(&self) -> anyhow::Result<LabSpec> {
        let program = std::env::current_exe().context("cannot find the signpost program itself")?;
        let mut spec = LabSpec::new(&self.name, self.nodes, program);
        spec.durable = true;
        spec.families = self.families;
        spec.mode.clone_from(&self.mode);
        spec.dir.clone_from(&self.dir);
        spec.load_balancing = self.lb;
        spec.dns = !self.no_dns;
        spec.node_cache = self.node_cache;
        spec.images = images(&self.images)?;
        spec.check()?;
        Ok(spec)
    }
}

fn images(given: &[String]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut images = BTreeMap::new();
    for text in given {
        let bad = || SpecError::Image { given: text.clone() };
        let (name, path) =
            text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty()).ok_or_else(bad)?;
        let path = PathBuf::from(path);
        let meta =
            std::fs::metadata(&path).with_context(|| format!("--image {text}: cannot find {}", path.display()))?;
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            bail!("--image {text}: {} is no program that can be executed", path.display());
        }
        if images.insert(name.to_owned(), path.canonicalize()?).is_some() {
            bail!("--image {text}: the image {name} stands twice");
        }
    }
    Ok(images)
}

/// Runs the lab in this process until it is told to end.
fn supervise(spec: LabSpec, to_background: bool) -> anyhow::Result<ExitCode> {
    super::log(!to_background);
    let name = spec.name.clone();
    let runtime = tokio::runtime::Runtime::new()?;
    let came_up = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = hang_up()?;
        let mut told = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                Some(()) = async { hang_up.as_mut()?.recv().await } => {}
            }
        };
        let lab = tokio::select! {
            lab = Lab::start_telling(spec, |step| println!("{step}")) => lab?,
            // What was made so far goes with the future that was making it.
            () = told() => return anyhow::Ok(false),
        };
        let listener = control::listener(&lab)?;
        if to_background {
            println!("{UP}");
            to_log(&lab)?;
        } else {
            print!("{}", how_to_use(lab.record()));
        }
        control::serve(lab, listener, told()).await?;
        Ok(true)
    })?;
    // Whatever was at work in another thread just then ends here, and what it made after all had been cleared is cleared.
    runtime.shutdown_timeout(LAST);
    match signpost_lab::state::clear_dead(&name) {
        // Another has the name by now, and cleared it.
        Ok(_) | Err(LabError::NameTaken { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(if came_up { ExitCode::SUCCESS } else { ExitCode::from(130) })
}

/// The end of the terminal; `None`: whoever started this (nohup) wants it ignored.
fn hang_up() -> anyhow::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read the own state")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = 1 << (nix::libc::SIGHUP - 1);
    Ok(if ignored & bit == 0 { Some(signal(SignalKind::hangup())?) } else { None })
}

/// Standard output and error go to the lab's log from now on: whoever reads the caller's shall see their end.
fn to_log(lab: &Lab) -> anyhow::Result<()> {
    let path = lab.record().dir.join("lab.log");
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    nix::unistd::dup2_stdout(&log)?;
    nix::unistd::dup2_stderr(&log)?;
    Ok(())
}

fn start_supervisor(name: &str) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--supervise").stdin(Stdio::null()).stdout(Stdio::piped());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Taken over before there is a child that could miss the signal.
    let mut interrupt = runtime.block_on(async { signal(SignalKind::interrupt()) })?;
    let mut child = spawner::detach(&mut command).context("cannot start the lab's supervisor")?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    std::thread::spawn(move || {
        runtime.block_on(async move {
            while interrupt.recv().await.is_some() {
                eprintln!("ending the lab ...");
                // It may have ended already.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            }
        });
    });
    if !follow(&mut child)? {
        let status = child.wait()?;
        if let Some(number) = status.signal() {
            signpost_lab::state::clear_dead(name)?;
            bail!("the lab's process was ended by signal {number} before the lab was up; what it left is removed");
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
        return Ok(ExitCode::from(code.unwrap_or(1)));
    }
    let record = signpost_lab::state::record(name).context("the lab ended just now")?;
    let took = began.elapsed().as_secs_f64();
    print!("lab {name} is up after {took:.1} s\n{}", how_to_use(&record));
    Ok(ExitCode::SUCCESS)
}

/// Shows the supervisor's steps; whether the lab came up.
fn follow(child: &mut Child) -> anyhow::Result<bool> {
    let output = child.stdout.take().context("the supervisor's output was asked for")?;
    let dim = super::in_colour(&std::io::stdout());
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == UP {
            return Ok(true);
        }
        let mut out = std::io::stdout().lock();
        if dim { writeln!(out, "\x1b[2m{line}\x1b[0m")? } else { writeln!(out, "{line}")? }
    }
    Ok(false)
}

fn how_to_use(record: &signpost_lab::state::Record) -> String {
    let default = std::env::var("SIGNPOST_LAB").unwrap_or_else(|_| DEFAULT_NAME.to_owned());
    let name = if record.name == default { String::new() } else { format!(" --name {}", record.name) };
    format!("\n  export KUBECONFIG={}\n\nstop it with: signpost lab down{name}\n", record.kubeconfig.display())
}

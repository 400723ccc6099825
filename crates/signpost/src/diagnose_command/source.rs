//! Where a snapshot comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use signpost_diagnose::collect::{self, Find, Reach, api};
use signpost_diagnose::planned::plan_anew;
use signpost_diagnose::snapshot::{NodeState, Snapshot};
use signpost_lab::state::Record;
use signpost_lab::{DEFAULT_NAME, inspection, state};
use tokio::time::Instant;

/// Which cluster is looked at.
#[derive(Args)]
pub(super) struct SourceOptions {
    /// A lab's name. Default: the lab that the kubeconfig is of, else the one that runs.
    #[arg(long, env = "SIGNPOST_LAB", value_name = "NAME")]
    lab: Option<String>,
    /// The cluster's kubeconfig.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A snapshot that was saved: no cluster is asked.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// This machine is the node of that name: its kernel is read.
    #[arg(long, value_name = "NODE")]
    here: Option<String>,
    /// How long reading may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl SourceOptions {
    /// Takes a snapshot, or reads one.
    ///
    /// # Errors
    /// There is no cluster, or it does not answer; the file is no snapshot.
    pub(super) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        if let Some(file) = &self.from_file {
            return read(file);
        }
        let (reach, kubeconfig) = self.reach()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connected = signpost_cluster::client::connect(kubeconfig.as_deref(), None);
        let connection = runtime.block_on(connected)?;
        let origin = connection.server.clone();
        let limit = Duration::from_secs(self.timeout);
        // What is read again, since something differed, has the whole time anew: the API is known to answer then.
        let mut until = Instant::now() + limit;
        let first = runtime.block_on(async {
            let ask = connection.client.apiserver_version();
            tokio::time::timeout_at(until, ask)
                .await
                .with_context(|| format!("{origin} does not answer in {} s (--timeout)", self.timeout))?
                .with_context(|| format!("no cluster answers at {origin}"))
        });
        first?;
        let mut snapshot = collect::snapshot(&reach, || {
            let listed = runtime.block_on(api::list(&connection.client, until));
            until = Instant::now() + limit;
            listed
        });
        if snapshot.origin.is_empty() {
            snapshot.origin = origin;
        }
        Ok(snapshot)
    }

    /// How nodes and pods are entered, and how the API is reached.
    fn reach(&self) -> anyhow::Result<(Reach, Option<PathBuf>)> {
        if let Some(name) = &self.lab {
            let record =
                living(name).with_context(|| format!("no lab named {name} runs: see `signpost lab status`"))?;
            return Ok((inspection::of_record(&record), Some(record.kubeconfig)));
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            let mut labs = state::records().into_iter();
            let of_lab = labs.find(|record| record.kubeconfig == *kubeconfig && state::lives(&record.name));
            return Ok(match of_lab {
                Some(record) => (inspection::of_record(&record), Some(record.kubeconfig)),
                None => (self.cluster(), Some(kubeconfig.clone())),
            });
        }
        let running: Vec<Record> = state::records().into_iter().filter(|record| state::lives(&record.name)).collect();
        match running.as_slice() {
            [record] => Ok((inspection::of_record(record), Some(record.kubeconfig.clone()))),
            [] => match self.usual_kubeconfig() {
                Some(file) => Ok((self.cluster(), Some(file))),
                None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Ok((self.cluster(), None)),
                None => bail!(
                    "no cluster: no lab runs (`signpost lab up` starts one), and there is no --kubeconfig and no --from-file"
                ),
            },
            several => {
                if let Some(record) = several.iter().find(|record| record.name == DEFAULT_NAME) {
                    return Ok((inspection::of_record(record), Some(record.kubeconfig.clone())));
                }
                let names: Vec<&str> = several.iter().map(|record| record.name.as_str()).collect();
                bail!("several labs run ({}): say which by --lab NAME", names.join(", "))
            }
        }
    }

    fn usual_kubeconfig(&self) -> Option<PathBuf> {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".kube/config")).filter(|file| file.is_file())
    }

    /// A cluster whose nodes are other machines; this one may be one of them.
    fn cluster(&self) -> Reach {
        let here = self.here.clone();
        let nodes: Find = Box::new(move |names| {
            let own = names.iter().filter(|name| Some(*name) == here.as_ref());
            own.map(|name| (name.clone(), Box::new(|| Ok(())) as collect::Enter)).collect()
        });
        Reach {
            nodes,
            pods: Box::new(|_| BTreeMap::new()),
            lab: false,
            origin: String::new(),
            outside: Vec::new(),
            others: BTreeSet::new(),
            routes: BTreeMap::new(),
        }
    }
}

fn living(name: &str) -> Option<Record> {
    state::record(name).filter(|_| state::lives(name))
}

fn read(file: &Path) -> anyhow::Result<Snapshot> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("cannot read the snapshot from standard input")?
    } else {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    };
    let mut snapshot = Snapshot::parse(&text).with_context(|| file.display().to_string())?;
    for name in snapshot.objects.nodes.iter().filter_map(signpost_diagnose::listed::name) {
        let unreached = Some("the file tells nothing of it".to_owned());
        let nothing = NodeState { unreached, ..NodeState::default() };
        snapshot.nodes.entry(name.to_owned()).or_insert(nothing);
    }
    plan_anew(&snapshot.objects, &mut snapshot.nodes);
    Ok(snapshot)
}

/// Writes a snapshot to a file that only its owner can read.
///
/// # Errors
/// It cannot be written.
pub(super) fn save(snapshot: &Snapshot, file: &Path) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let failed = || format!("--save {}: cannot write there", file.display());
    let mut out = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
        .with_context(failed)?;
    let text = serde_json::to_vec(snapshot)?;
    out.write_all(&text).with_context(failed)
}

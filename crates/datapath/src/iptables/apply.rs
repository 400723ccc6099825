//! Reads and writes the kernel, with `iptables-save` and `iptables-restore`: the kernel's interface to them changes, theirs does not.

use std::io::{self, BufWriter, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use signpost_core::object::Family;

use super::chain::Table;
use super::change::Change;
use super::observed::Observed;

/// Why the kernel could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program is not there.
    #[error("{program} is not installed: install the package iptables, or choose another mode")]
    Missing {
        /// What was to be run.
        program: String,
    },
    /// The program could not be started or spoken to.
    #[error("cannot {op} with {program}: {source}")]
    Run {
        /// What was to be done.
        op: &'static str,
        /// What was to be run.
        program: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel does not let this process.
    #[error(
        "the kernel does not let this process {op}: run it as root, or with CAP_NET_ADMIN in its network namespace"
    )]
    NotPermitted {
        /// What was to be done.
        op: &'static str,
    },
    /// Another program holds the lock that all of iptables' users share.
    #[error(
        "cannot {op}: another program has held /run/xtables.lock for {waited_s} s; `lsof /run/xtables.lock` names it"
    )]
    Locked {
        /// What was to be done.
        op: &'static str,
        /// So long it was waited.
        waited_s: u64,
    },
    /// It refused. The table that it names is unchanged; one before it may be changed already.
    #[error("{program} refused to {op}: {said}")]
    Refused {
        /// What was to be done.
        op: &'static str,
        /// What was run.
        program: String,
        /// What it said, the first lines.
        said: String,
    },
    /// Another Service proxy's rules are there.
    #[error(
        "the {family} chains KUBE-SERVICES and others are kube-proxy's: two Service proxies cannot serve one node. Remove kube-proxy \
         from it and run `kube-proxy --cleanup` or restart the node, or let signpost take the chains over (--take-over)"
    )]
    Foreign {
        /// Their family.
        family: Family,
    },
}

/// Which of the two iptables: both can be on one machine, and the kernel obeys the rules of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// On nf_tables.
    Nft,
    /// The kernel's old interface.
    Legacy,
    /// Whatever is installed under the plain name.
    Plain,
}

/// The most of a complaint that is kept.
const COMPLAINT_MOST_BYTES: u64 = 2_000;
/// `iptables-restore` ends with this if it does not get the lock.
const LOCKED: i32 = 4;
const LOCK_FILE: &str = "XTABLES_LOCKFILE";

/// The programs of one family and variant.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub family: Family,
    pub variant: Variant,
    pub lock_wait: Duration,
    /// Another lock than the machine's.
    pub lock_file: Option<std::path::PathBuf>,
}

impl Tool {
    fn program(&self, verb: &str) -> String {
        let family = match self.family {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        };
        match self.variant {
            Variant::Nft => format!("{family}-nft-{verb}"),
            Variant::Legacy => format!("{family}-legacy-{verb}"),
            Variant::Plain => format!("{family}-{verb}"),
        }
    }

    /// Lists the tables that are used.
    pub fn observe(&self) -> Result<Observed, IptablesError> {
        let mut observed = Observed::default();
        for table in Table::ALL {
            observed.read(self.save(table.name())?.lines());
        }
        Ok(observed)
    }

    /// The text of a table. One that is not there is empty.
    pub fn save(&self, table: &str) -> Result<String, IptablesError> {
        const OP: &str = "list the rules";
        let program = self.program("save");
        let mut child = self.spawn(OP, &program, &["-t", table], Stdio::null(), Stdio::piped())?;
        let (saved, said) = thread::scope(|scope| {
            let stderr = child.stderr.take().expect("it was piped");
            let said = scope.spawn(|| complaint(stderr));
            let mut saved = String::new();
            let read = child.stdout.take().expect("it was piped").read_to_string(&mut saved);
            (read.map(|_| saved), said.join().expect("reading does not panic"))
        });
        self.end(OP, &program, child, said)?;
        saved.map_err(|source| IptablesError::Run { op: OP, program, source })
    }

    /// Carries a change out: one transaction per table.
    pub fn restore(&self, op: &'static str, change: &Change) -> Result<(), IptablesError> {
        let is_nft = self.is_nft();
        self.restore_with(op, |out| if is_nft { change.write_for_nft(out) } else { change.write(out) })
    }

    /// Whether these programs are those on nf_tables. Not known: no, which is right for both.
    pub fn is_nft(&self) -> bool {
        let says_so = || {
            let said = Command::new(self.program("restore")).arg("--version").stderr(Stdio::null()).output();
            said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("nf_tables"))
        };
        match self.variant {
            Variant::Nft => true,
            Variant::Legacy => false,
            Variant::Plain => says_so(),
        }
    }

    /// How many packets met the rule of a chain that has this comment; none if there is no such rule.
    pub fn packets(&self, table: Table, chain: &str, comment: &str) -> Result<u64, IptablesError> {
        const OP: &str = "read what a rule counted";
        let restore = self.program("restore");
        let program = restore.trim_end_matches("-restore");
        let wait = self.lock_wait.as_secs().max(1).to_string();
        let arguments = ["-w", &wait, "-t", table.name(), "-nvxL", chain];
        let child = self.spawn(OP, program, &arguments, Stdio::null(), Stdio::piped())?;
        let failed = |source| IptablesError::Run { op: OP, program: program.to_owned(), source };
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let said =
                String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(COMPLAINT_MOST_BYTES as usize)]);
            return Err(IptablesError::Refused {
                op: OP,
                program: program.to_owned(),
                said: said.trim_end().to_owned(),
            });
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        Ok(counted(&listed, comment))
    }

    /// The same with a text as `iptables-restore` reads it.
    pub fn restore_text(&self, op: &'static str, text: &str) -> Result<(), IptablesError> {
        self.restore_with(op, |out| out.write_all(text.as_bytes()))
    }

    fn restore_with(
        &self,
        op: &'static str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), IptablesError> {
        let program = self.program("restore");
        let wait = self.lock_wait.as_secs().max(1).to_string();
        let mut child = self.spawn(op, &program, &["-w", &wait, "--noflush"], Stdio::piped(), Stdio::null())?;
        let (written, said) = thread::scope(|scope| {
            let stderr = child.stderr.take().expect("it was piped");
            let said = scope.spawn(|| complaint(stderr));
            let mut stdin = BufWriter::with_capacity(1 << 16, child.stdin.take().expect("it was piped"));
            let written = write(&mut stdin).and_then(|()| stdin.flush());
            drop(stdin);
            (written, said.join().expect("reading does not panic"))
        });
        self.end(op, &program, child, said)?;
        written.map_err(|source| IptablesError::Run { op, program, source })
    }

    fn spawn(
        &self,
        op: &'static str,
        program: &str,
        arguments: &[&str],
        stdin: Stdio,
        stdout: Stdio,
    ) -> Result<Child, IptablesError> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        if let Some(file) = &self.lock_file {
            command.env(LOCK_FILE, file);
        }
        command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => IptablesError::Missing { program: program.to_owned() },
            _ => IptablesError::Run { op, program: program.to_owned(), source },
        })
    }

    fn end(&self, op: &'static str, program: &str, mut child: Child, said: String) -> Result<(), IptablesError> {
        let status = child.wait().map_err(|source| IptablesError::Run { op, program: program.to_owned(), source })?;
        if status.success() {
            return Ok(());
        }
        if said.contains("Permission denied") || said.contains("Operation not permitted") {
            return Err(IptablesError::NotPermitted { op });
        }
        if status.code() == Some(LOCKED) && said.contains("lock") {
            return Err(IptablesError::Locked { op, waited_s: self.lock_wait.as_secs().max(1) });
        }
        Err(IptablesError::Refused { op, program: program.to_owned(), said: said.trim_end().to_owned() })
    }
}

/// The packets of the rules with a comment, in what `iptables -nvxL` lists.
fn counted(listed: &str, comment: &str) -> u64 {
    let comment = format!("/* {comment} */");
    let rules = listed.lines().filter(|line| line.contains(&comment));
    rules.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// The first lines of what a child says, and the rest read and left, so that it can end.
fn complaint(mut stderr: impl Read) -> String {
    let mut said = Vec::new();
    let read = (&mut stderr).take(COMPLAINT_MOST_BYTES).read_to_end(&mut said);
    if let Err(error) = read.and_then(|_| io::copy(&mut stderr, &mut io::sink())) {
        return format!("(its complaint could not be read: {error})");
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_those_of_the_rule_with_the_comment() {
        let listed = "Chain KUBE-POSTROUTING (1 references)\n    pkts      bytes target     prot opt in     out     source               destination\n\
            12      720            all  --  *      *       0.0.0.0/0            0.0.0.0/0            /* counted */ ctstate DNAT ctorigdst 127.0.0.0/8\n\
            99      999 RETURN     all  --  *      *       0.0.0.0/0            0.0.0.0/0            mark match ! 0x4000/0x4000\n";
        assert_eq!([counted(listed, "counted"), counted(listed, "count")], [12, 0]);
    }
}

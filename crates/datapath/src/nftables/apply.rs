//! Writes the kernel, with `nft`: the command line is the interface that its makers document and keep, and a script of it
//! is one transaction.

use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::errno::Errno;
use signpost_core::object::Family;

use super::layout::{TABLE, ip};
use super::netlink::NetlinkError;

/// Why the kernel could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NftablesError {
    /// The program is not there.
    #[error("{} is not installed: install the package nftables (version 1.0.6 or newer), or choose another mode", .program.display())]
    Missing {
        /// What was to be run.
        program: OsString,
    },
    /// The program could not be started or spoken to.
    #[error("cannot {op} with {}: {source}", .program.display())]
    Run {
        /// What was to be done.
        op: &'static str,
        /// What was to be run.
        program: OsString,
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
    /// It refused; nothing was changed.
    #[error("nft refused to {op} in the table {} {TABLE}, nothing was changed: {said}", ip(*.family))]
    Refused {
        /// What was to be done.
        op: &'static str,
        /// The table's family.
        family: Family,
        /// What it said, the first lines.
        said: String,
    },
    /// The kernel does not list what it has.
    #[error("the kernel does not list the table {} {TABLE}: {source}; signpost needs Linux 6.1 or newer with nf_tables", ip(*.family))]
    Netlink {
        /// The table's family.
        family: Family,
        /// Why not.
        #[source]
        source: Errno,
    },
    /// Its answer is not to be used.
    #[error("cannot read the kernel's listing of the table {} {TABLE}: {source}", ip(*.family))]
    Answer {
        /// The table's family.
        family: Family,
        /// What is wrong.
        #[source]
        source: NetlinkError,
    },
    /// The table is kube-proxy's.
    #[error(
        "the table {0} {TABLE} is kube-proxy's: two Service proxies cannot serve one node. Remove kube-proxy from it and \
         run `nft delete table {0} {TABLE}`, or let signpost take the table over (--take-over)", ip(*.family)
    )]
    Foreign {
        /// The table's family.
        family: Family,
    },
}

/// The most of nft's complaint that is kept: it repeats the line it stumbled over, which may be long.
const COMPLAINT_MOST_BYTES: u64 = 2_000;

/// The program, and the family whose table it is used for.
#[derive(Debug, Clone)]
pub(super) struct Nft {
    pub program: OsString,
    pub family: Family,
}

impl Nft {
    /// Runs a script that `write` writes: one transaction.
    pub fn run(
        &self,
        op: &'static str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), NftablesError> {
        let mut child = self.spawn(op)?;
        let stdin = child.stdin.take().expect("it was piped");
        let said = thread::scope(|scope| {
            let stderr = child.stderr.take().expect("it was piped");
            let said = scope.spawn(|| complaint(stderr));
            let mut stdin = BufWriter::with_capacity(1 << 16, stdin);
            let written = write(&mut stdin).and_then(|()| stdin.flush());
            drop(stdin);
            match written {
                // It ended before it read all: its status and complaint say why.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                written => written.map_err(|source| self.failed(op, source))?,
            }
            Ok(said.join().expect("reading does not panic"))
        });
        self.end(op, child, said)
    }

    fn spawn(&self, op: &'static str) -> Result<Child, NftablesError> {
        let mut command = Command::new(&self.program);
        command.args(["-f", "-"]).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => NftablesError::Missing { program: self.program.clone() },
            _ => self.failed(op, source),
        })
    }

    fn end(
        &self,
        op: &'static str,
        mut child: Child,
        said: Result<String, NftablesError>,
    ) -> Result<(), NftablesError> {
        let status = child.wait().map_err(|source| self.failed(op, source))?;
        let said = said?;
        if status.success() {
            return Ok(());
        }
        if said.contains("Operation not permitted") {
            return Err(NftablesError::NotPermitted { op });
        }
        Err(NftablesError::Refused { op, family: self.family, said: said.trim_end().to_owned() })
    }

    fn failed(&self, op: &'static str, source: io::Error) -> NftablesError {
        NftablesError::Run { op, program: self.program.clone(), source }
    }
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
    use std::path::Path;

    use super::*;

    /// Runs a script of a megabyte with a program that pretends to be nft.
    fn run(folder: &Path, pretend: &str) -> Result<(), NftablesError> {
        let nft = Nft { program: crate::pretend::program(folder, "nft", pretend).into(), family: Family::Ipv6 };
        nft.run("change rules", |out| out.write_all(&[b'#'; 1 << 20]))
    }

    #[test]
    fn the_whole_script_is_read_and_what_nft_says_is_told() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), "test $(wc -c) = 1048576").unwrap();
        let error = run(folder.path(), "cat > /dev/null; echo 'Error: File exists' >&2; exit 1").unwrap_err();
        let text = "nft refused to change rules in the table ip6 kube-proxy, nothing was changed: Error: File exists";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn an_nft_that_ends_before_it_read_all_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(folder.path(), "echo 'Error: syntax error' >&2; exit 1").unwrap_err();
        assert!(error.to_string().ends_with("Error: syntax error"), "{error}");
        let error = run(folder.path(), "echo 'netlink: Error: Operation not permitted' >&2; exit 1").unwrap_err();
        assert!(matches!(error, NftablesError::NotPermitted { .. }), "{error}");
    }

    #[test]
    fn of_a_long_complaint_the_begin_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(folder.path(), "cat > /dev/null; yes complaint | head -c 1000000 >&2; exit 1").unwrap_err();
        assert!(error.to_string().len() < 2_200, "{}", error.to_string().len());
    }

    #[test]
    fn a_missing_nft_says_what_to_install() {
        let nft = Nft { program: "/nowhere/nft".into(), family: Family::Ipv4 };
        let error = nft.run("change rules", |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("install the package nftables"), "{error}");
    }
}

//! The number of the ruleset's generation: the kernel counts every transaction of nftables in the network namespace, whoever
//! makes it. Asking costs microseconds, so who keeps rules sees at once that someone else was there.

use std::sync::{Mutex, PoisonError};

use signpost_core::object::Family;

use super::observe::Socket;

/// Tells others' transactions from those that a tool of iptables makes for us, of which the kernel counts any number. Shared by
/// the families of a node: the kernel counts for both.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    generation: Generation,
    /// The kernel's number when it was last looked at.
    last: Option<u32>,
    /// So often it was another than after our own last step, and so many steps we made.
    changes: u32,
}

impl Watch {
    /// A number that each step of our own raises by one, and what others did between two looks, too.
    pub(crate) fn number(&self) -> Option<u32> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = seen.generation.read()?;
        if seen.last.replace(now).is_some_and(|before| before != now) {
            seen.changes = seen.changes.wrapping_add(1);
        }
        Some(seen.changes)
    }

    /// A step of our own.
    pub(crate) fn own<T>(&self, step: impl FnOnce() -> T) -> T {
        // What others did before it stays told.
        self.number();
        let done = step();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.changes = seen.changes.wrapping_add(1);
        seen.last = seen.generation.read();
        done
    }
}

/// Asks for the number; the socket stays in the network namespace of the thread that asked first.
#[derive(Debug, Default)]
pub(super) struct Generation(Option<Socket>);

impl Generation {
    /// `None`: the kernel does not say.
    pub(super) fn read(&mut self) -> Option<u32> {
        // The same number for every family.
        let socket = match &mut self.0 {
            Some(socket) => socket,
            none => none.insert(Socket::open(Family::Ipv4).ok()?),
        };
        let generation = socket.generation();
        if generation.is_err() {
            // The next question begins afresh.
            self.0 = None;
        }
        generation.ok()
    }
}

impl Clone for Generation {
    /// The copy opens a socket of its own.
    fn clone(&self) -> Generation {
        Generation::default()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_step_of_ours_counts_once_whatever_it_does_and_so_does_what_others_did() {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            let nft = |rest: &str| {
                assert!(Command::new("nft").args(rest.split(' ')).status().unwrap().success());
            };
            let watch = Watch::default();
            let before = watch.number().unwrap();
            watch.own(|| ["add table ip a", "add table ip b"].map(nft));
            assert_eq!(watch.number(), Some(before + 1));
            watch.own(|| ());
            assert_eq!(watch.number(), Some(before + 2));
            nft("add table ip c");
            watch.own(|| nft("add table ip d"));
            assert_eq!(watch.number(), Some(before + 4));
            nft("delete table ip c");
            assert_eq!([watch.number(), watch.number()], [Some(before + 5); 2]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn each_transaction_of_anyone_raises_it_by_one_and_asking_does_not() {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            let mut generation = Generation::default();
            let before = generation.read().unwrap();
            assert_eq!(generation.read(), Some(before));
            let status = Command::new("nft").args(["add", "table", "ip", "someone"]).status().unwrap();
            assert!(status.success());
            assert_eq!(generation.read(), Some(before + 1));
            assert_eq!(generation.clone().read(), Some(before + 1));
            assert!(Command::new("nft").args(["list", "ruleset"]).status().unwrap().success());
            assert_eq!(generation.read(), Some(before + 1));
        })
        .join()
        .unwrap();
    }
}

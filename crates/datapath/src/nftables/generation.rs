//! The number of the ruleset's generation: the kernel counts every transaction of nftables in the network namespace, whoever
//! makes it. Asking costs microseconds, so who keeps rules sees at once that someone else was there.

use signpost_core::object::Family;

use super::observe::Socket;

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

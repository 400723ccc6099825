//! The system calls that nix and std do not offer safely: code between fork and exec, capabilities, the terminal's
//! ioctls, received file descriptors. Small functions, each with the reason why it is sound; everything else in this
//! crate is safe code.
#![allow(unsafe_code)] // this file is the crate's one place for it

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tokio::io::unix::AsyncFd;

/// Runs `step` in the child between fork and exec. `step` may only make system calls: no allocation, no lock.
pub fn before_exec(command: &mut Command, step: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: the callers in this crate (spawner.rs, init.rs) make only system calls on values made before the fork.
    unsafe { command.pre_exec(step) };
}

/// A set of capabilities, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// What a pod keeps: enough for ping, tcpdump, low ports and changing its user, nothing that reaches the machine.
    pub const POD: Capabilities = Capabilities(
        1 << 0      // CHOWN
            | 1 << 3    // FOWNER
            | 1 << 5    // KILL
            | 1 << 6    // SETGID
            | 1 << 7    // SETUID
            | 1 << 10   // NET_BIND_SERVICE
            | 1 << 13, // NET_RAW
    );
}

/// Gives up for ever, for this process and all that it starts, every capability but `keep`.
///
/// # Errors
/// The kernel refused; the process must not go on.
pub fn limit_capabilities(keep: Capabilities) -> io::Result<()> {
    for capability in 0..64 {
        if keep.0 & (1 << capability) == 0 {
            // SAFETY: prctl with integer arguments only.
            let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) };
            match Errno::result(result) {
                Ok(_) => {}
                Err(Errno::EINVAL) if capability > 0 => break, // the kernel knows no capability of this number
                Err(error) => return Err(error.into()),
            }
        }
    }
    // SAFETY: prctl with integer arguments only.
    let result = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    Errno::result(result)?;
    set_capabilities(keep)
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn set_capabilities(keep: Capabilities) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522; // linux/capability.h: two words of 32
    let header = CapabilityHeader { version: VERSION_3, pid: 0 };
    let word = |bits: u64| CapabilityData { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [word(keep.0 & 0xffff_ffff), word(keep.0 >> 32)];
    // SAFETY: both pointers are to values of the layout that version 3 asks for, alive during the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    Errno::result(result)?;
    Ok(())
}

/// Makes all mounts below `/` that this process sees read-only: those of its mount namespace alone, which must be its own.
///
/// # Errors
/// The kernel refused (before Linux 5.12 it cannot).
pub fn read_only_mounts() -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path ends with a zero byte; the attributes are of the size that is said, alive during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result)?;
    Ok(())
}

/// A process, held so that its number cannot come to mean another one.
///
/// # Errors
/// There is no such process.
pub fn hold_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open with integer arguments only.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends SIGKILL to a process that is held.
///
/// # Errors
/// It has ended.
pub fn kill_process(process: &OwnedFd) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal takes a null pointer for "as kill(2) does".
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0) };
    Errno::result(result)?;
    Ok(())
}

/// Makes the terminal on file descriptor 0 the controlling one of this session, which must have none.
///
/// # Errors
/// Not a terminal, or it controls another session.
pub fn take_terminal() -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer.
    let result = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
    Errno::result(result)?;
    Ok(())
}

/// Tells a terminal its size.
///
/// # Errors
/// Not a terminal.
pub fn set_terminal_size(terminal: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize, alive during the call.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(result)?;
    Ok(())
}

/// A terminal's size: columns, rows.
///
/// # Errors
/// Not a terminal.
pub fn terminal_size(terminal: impl AsFd) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, alive during the call.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    Errno::result(result)?;
    Ok((size.ws_col, size.ws_row))
}

/// Receives one message and the file descriptors that came with it. Zero bytes: the other side is gone. The length
/// is that of the whole message, also where `buffer` held only its beginning.
///
/// # Errors
/// As recvmsg.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], flags: MsgFlags) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([libc::c_int; 3]);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut parts,
        Some(&mut space),
        flags | MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_TRUNC,
    )?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these descriptors for this process; nobody else knows their numbers.
            received.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, received))
}

/// A descriptor whose readiness the current runtime watches.
///
/// # Errors
/// The runtime could not take it.
pub fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, under the same number, for as long as the `AsyncFd` that owns it.
    unsafe { AsyncFd::register(descriptor) }.map_err(Into::into)
}

/// Brings an interface of this thread's network namespace up.
///
/// # Errors
/// No such interface, or no right to.
pub fn interface_up(socket: impl AsFd, name: &str) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::ENAMETOOLONG.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq with a terminated name, alive during the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_gave_up_capabilities_has_only_the_kept_ones() {
        let status = std::thread::spawn(|| {
            limit_capabilities(Capabilities::POD).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        })
        .join()
        .unwrap();
        let expected = format!("{:016x}", Capabilities::POD.0);
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            assert!(line.ends_with(&expected), "{line}");
        }
    }

    #[test]
    fn descriptors_travel_with_a_message() {
        use nix::sys::socket::{AddressFamily, ControlMessage, SockFlag, SockType, sendmsg, socketpair};
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let numbers = [file.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&numbers)];
        sendmsg::<()>(a.as_raw_fd(), &[io::IoSlice::new(b"x")], &control, MsgFlags::empty(), None).unwrap();
        let mut buffer = [0; 8];
        let (length, received) = receive(&b, &mut buffer, MsgFlags::empty()).unwrap();
        assert_eq!((length, received.len()), (1, 1));
        drop(a);
        assert_eq!(receive(&b, &mut buffer, MsgFlags::empty()).unwrap().0, 0);
    }
}

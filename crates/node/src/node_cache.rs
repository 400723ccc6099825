//! Hears from this node's cache for names whether it is ready, and gives the node the addresses at which it answers. See
//! [`signpost_core::node_cache`].

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket,
};
use signpost_core::node_cache::{self, SILENCE};
use signpost_core::object::Family;
use signpost_datapath::ipvs::link::{self, Answer};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tracing::{info, warn};

/// Whether the cache is ready. The task behind it ends with the receiver. Must be called inside a tokio runtime.
///
/// # Errors
/// The system gives no socket, or another has it.
pub fn follow() -> io::Result<watch::Receiver<bool>> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(node_cache::SOCKET)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = hear(listener, &sender) => {}
        }
    });
    Ok(receiver)
}

/// One cache after the other: a second one waits until the first has ended.
async fn hear(listener: UnixListener, sender: &watch::Sender<bool>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "the node's cache for names cannot be heard");
                tokio::time::sleep(SILENCE).await;
                continue;
            }
        };
        // Whoever is not root is not trusted with the node's names.
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == 0) {
            attend(stream, sender).await;
        }
    }
}

/// Until the cache closes its end, or is silent for too long.
async fn attend(mut stream: UnixStream, sender: &watch::Sender<bool>) {
    let mut beats = [0; 64];
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, stream.read(&mut beats)).await {
        if *sender.borrow() {
            continue;
        }
        if let Err(error) = set_addresses(true) {
            warn!(%error, "the node's cache for names is ready, but its addresses cannot be given to this node");
            return;
        }
        info!("the node's cache for names is ready: this node's questions go there");
        sender.send_replace(true);
    }
    if sender.send_replace(false) {
        warn!("the node's cache for names is gone: questions go to the cluster's name service");
    }
}

/// Takes away the addresses that a cache answered at.
///
/// # Errors
/// The kernel refused.
pub fn remove_addresses() -> io::Result<()> {
    set_addresses(false)
}

/// Gives the loopback interface the cache's addresses, or takes them.
fn set_addresses(wanted: bool) -> io::Result<()> {
    let loopback = if_nametoindex("lo")?;
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    for (sequence, family) in (1..).zip([Family::Ipv4, Family::Ipv6]) {
        let address: IpAddr = node_cache::address(family);
        let make = if wanted { link::add_address } else { link::delete_address };
        sendto(netlink.as_raw_fd(), &make(sequence, loopback, address), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut buffer = [0; 4096];
        let length = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let answer = link::answers(&buffer[..length]).find(|(to, _)| *to == sequence);
        let errno = answer.map(|(_, answer)| match answer {
            Answer::Acknowledged(errno) => errno,
            _ => 0,
        });
        match errno.map(Errno::from_raw) {
            None => return Err(io::Error::other("the kernel does not answer")),
            Some(Errno::EEXIST) if wanted => {}
            Some(Errno::EADDRNOTAVAIL) if !wanted => {}
            // A kernel may have no IPv6; then nobody asks over it.
            Some(Errno::EOPNOTSUPP | Errno::EACCES) if family == Family::Ipv6 => {}
            Some(_) if errno == Some(0) => {}
            Some(error) => return Err(error.into()),
        }
    }
    Ok(())
}

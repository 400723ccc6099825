//! A terminal for a program that runs elsewhere: the person's own one is passed through to it and back.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::Mode;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};

use crate::sys;

/// A terminal: our side and the program's.
///
/// # Errors
/// The machine has no more terminals.
pub fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname_r(&ours)?;
    let theirs = open(name.as_str(), OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok((ours.into(), theirs))
}

/// Our side of a terminal, for reading and writing.
#[derive(Clone)]
pub struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    /// From our side, which must be non-blocking.
    ///
    /// # Errors
    /// The runtime could not take it.
    pub fn new(ours: OwnedFd) -> io::Result<Terminal> {
        Ok(Terminal(Arc::new(sys::watch(ours)?)))
    }

    /// Tells it its size.
    ///
    /// # Errors
    /// It is closed.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        sys::set_terminal_size(self.0.get_ref(), columns, rows)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        loop {
            let mut ready = std::task::ready!(self.0.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            match ready.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), unfilled)?)) {
                Ok(result) => {
                    buffer.advance(result?);
                    return std::task::Poll::Ready(Ok(()));
                }
                Err(_would_block) => continue,
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        data: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        loop {
            let mut ready = std::task::ready!(self.0.poll_write_ready(context))?;
            match ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), data)?)) {
                Ok(result) => return std::task::Poll::Ready(result),
                Err(_would_block) => continue,
            }
        }
    }

    fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// The person's terminal in raw mode: every key goes to the program. Dropped: as it was before.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Switches standard input to raw mode.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn begin() -> io::Result<Raw> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone by now.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}

/// Passes keys, output and changes of size between standard input and output and a program's terminal, until all who
/// had the program's side open have closed it. The thread that reads keys stays behind: end the process soon.
///
/// # Errors
/// A descriptor could not be used.
pub fn pass_through(ours: OwnedFd) -> io::Result<()> {
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::empty()))?;
    fit(&ours)?;
    let (mut keys, mut screen) = (File::from(ours.try_clone()?), File::from(ours.try_clone()?));
    std::thread::spawn(move || {
        // The end of the keys is not the end of the program.
        let _ = io::copy(&mut io::stdin().lock(), &mut keys);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let Ok(mut resized) = signal(SignalKind::window_change()) else { return };
            while resized.recv().await.is_some() && fit(&ours).is_ok() {}
        });
    });
    let mut output = io::stdout().lock();
    let mut buffer = vec![0; 32 * 1024];
    // EIO: all who had the program's side open have closed it.
    while let Ok(length @ 1..) = screen.read(&mut buffer) {
        output.write_all(&buffer[..length])?;
        output.flush()?;
    }
    Ok(())
}

fn fit(terminal: &OwnedFd) -> io::Result<()> {
    let (columns, rows) = sys::terminal_size(io::stdin().as_fd())?;
    sys::set_terminal_size(terminal, columns, rows)
}

//! Answers exec and logs of pods: the API carries the bytes, here they come from and go to the pod's programs.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use signpost_apiserver::pod_streams::{ContainerRef, ExecRequest, LogOptions, PodStreamError, PodStreams};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Entry, Handle, Inside, Shared, logs, mirror};
use crate::sandbox::{Program, Start};
use crate::terminal::Terminal;

pub(super) struct Streams {
    pub shared: Arc<Shared>,
}

impl PodStreams for Streams {
    fn logs(
        &self,
        container: ContainerRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, PodStreamError>> {
        Box::pin(async move {
            let entry = entry(&self.shared, &container)?;
            if entry.pod.borrow().as_ref().is_some_and(|pod| mirror::is_mirror(pod)) {
                let context = &self.shared.context;
                let path = mirror::log(&context.state, &context.nodes[usize::from(entry.node) - 1]);
                let reason = |error| format!("the daemon's log cannot be read: {error}");
                return mirror::read(&path, options).map_err(|error| PodStreamError::NotRunning {
                    pod: container.pod.clone(),
                    container: container.container.clone().unwrap_or_default(),
                    reason: reason(error),
                });
            }
            let (_, name, handle) = inside(&entry, &container)?;
            let unavailable = |reason: String| PodStreamError::NotRunning {
                pod: container.pod.clone(),
                container: name.to_owned(),
                reason,
            };
            let (run, running) =
                handle.log.get().ok_or_else(|| unavailable("it has not been started yet".to_owned()))?;
            let (run, running) = match options.previous {
                false => (run, running),
                true => {
                    let before = run.checked_sub(1);
                    (before.ok_or_else(|| unavailable("it has not been restarted".to_owned()))?, None)
                }
            };
            logs::read(logs::path(&handle.folder, run), options, running)
                .map_err(|error| unavailable(format!("its log cannot be read: {error}")))
        })
    }

    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<i32, PodStreamError>> {
        Box::pin(async move {
            let container = request.container.clone();
            let entry = entry(&self.shared, &container)?;
            let (inside, _, handle) = inside(&entry, &container)?;
            let start = start_of(&entry, handle, request.command.clone())?;
            let failed = failed(&request.command);
            let program = request.command.first().cloned().unwrap_or_default();
            let (result, output) = match request.terminal.clone() {
                Some(sizes) => with_terminal(inside, start, sizes, request).await,
                None => with_pipes(inside, start, request).await,
            };
            match (result, output) {
                (Err(error), Some(to)) if refusal(&error).is_some() => Ok(refuse(&program, &error, to).await),
                (result, _) => result.map_err(failed),
            }
        })
    }
}

/// What a shell's status for a program would be that cannot be run.
fn refusal(error: &io::Error) -> Option<i32> {
    match error.kind() {
        io::ErrorKind::NotFound => Some(127),
        io::ErrorKind::PermissionDenied => Some(126),
        _ => None,
    }
}

/// Tells the client that there is no such program, where it looks for errors.
async fn refuse(program: &str, error: &io::Error, mut to: Output) -> i32 {
    let text = format!("exec failed: {}\r\n", start_problem(program, error));
    // The client may have left.
    let _ = to.write_all(text.as_bytes()).await;
    let _ = to.shutdown().await;
    refusal(error).unwrap_or(126)
}

/// Why a program cannot be started, as container runtimes say it.
pub(super) fn start_problem(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("exec: {program:?}: stat {program}: no such file or directory")
        }
        io::ErrorKind::NotFound => format!("exec: {program:?}: executable file not found in $PATH"),
        io::ErrorKind::PermissionDenied => format!("exec: {program:?}: permission denied"),
        _ => format!("exec: {program:?}: {error}"),
    }
}

type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Runs a program on file descriptors of this machine.
pub(super) async fn run(
    shared: &Shared,
    container: &ContainerRef,
    command: Vec<String>,
    streams: [OwnedFd; 3],
) -> Result<i32, PodStreamError> {
    let entry = entry(shared, container)?;
    let (inside, _, handle) = inside(&entry, container)?;
    let failed = failed(&command);
    let start = start_of(&entry, handle, command)?;
    let program = inside.sandbox.start_program(start, streams).await.map_err(failed)?;
    Ok(Ending(Some(program)).exit().await)
}

/// Runs a program in a terminal of the pod. Gives the program, to be waited for, and our side of the terminal.
pub(super) async fn run_in_terminal(
    shared: &Shared,
    container: &ContainerRef,
    command: Vec<String>,
    size: (u16, u16),
) -> Result<(Ending, OwnedFd), PodStreamError> {
    let entry = entry(shared, container)?;
    let (inside, _, handle) = inside(&entry, container)?;
    let failed = failed(&command);
    let start = in_terminal(start_of(&entry, handle, command)?);
    let (program, terminal) = inside.sandbox.start_in_terminal(start, size).await.map_err(failed)?;
    Ok((Ending(Some(program)), terminal))
}

fn start_of(entry: &Entry, handle: &Handle, command: Vec<String>) -> Result<Start, PodStreamError> {
    let template = handle.template.borrow().clone();
    let template = template.ok_or_else(|| PodStreamError::NotRunning {
        pod: entry.name.clone(),
        container: handle.name.clone(),
        reason: "it has not been started; `kubectl describe pod` tells why".to_owned(),
    })?;
    Ok(Start { argv: command, ..template })
}

fn in_terminal(mut start: Start) -> Start {
    start.env.push(("TERM".to_owned(), "xterm".to_owned()));
    start
}

fn failed(command: &[String]) -> impl FnOnce(io::Error) -> PodStreamError + use<> {
    let program = command.first().cloned().unwrap_or_default();
    move |source| PodStreamError::Start { program, source }
}

fn entry(shared: &Shared, container: &ContainerRef) -> Result<Arc<Entry>, PodStreamError> {
    shared.find(&container.namespace, &container.pod).ok_or_else(|| PodStreamError::NotRunning {
        pod: container.pod.clone(),
        container: container.container.clone().unwrap_or_else(|| "of the pod".to_owned()),
        reason: "the pod runs on no node of the lab".to_owned(),
    })
}

fn inside<'a>(
    entry: &'a Entry,
    container: &'a ContainerRef,
) -> Result<(&'a Inside, &'a str, &'a Handle), PodStreamError> {
    let refuse = |name: &str, reason: &str| PodStreamError::NotRunning {
        pod: entry.name.clone(),
        container: name.to_owned(),
        reason: reason.to_owned(),
    };
    let Some(inside) = entry.inside.get() else {
        let pod = entry.pod.borrow().clone();
        let first = pod.as_ref().and_then(|pod| pod.spec.as_ref()?.containers.first()).map(|first| first.name.clone());
        let name = container.container.as_deref().or(first.as_deref()).unwrap_or("of the pod");
        return Err(refuse(name, "the pod has no sandbox: it is being made, or the pod is a light one"));
    };
    let name = container.container.as_deref().unwrap_or(&inside.first);
    let handle = inside.containers.get(name);
    Ok((inside, name, handle.ok_or_else(|| refuse(name, "it cannot run; `kubectl describe pod` tells why"))?))
}

/// What a program left in its outputs is passed on for so long after its end.
const LAST_OUTPUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Gives the status; or why nothing was started, with the client's output for errors.
async fn with_pipes(inside: &Inside, start: Start, request: ExecRequest) -> (io::Result<i32>, Option<Output>) {
    let (mut stdout, mut stderr) = (request.stdout, request.stderr);
    let (has_input, has_output, has_errors) = (request.stdin.is_some(), stdout.is_some(), stderr.is_some());
    let started = async move {
        let input = match has_input {
            false => (File::open("/dev/null")?.into(), None),
            true => {
                let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
                (read, Some(pipe::Sender::from_owned_fd(write)?))
            }
        };
        let (out, error) = (output(has_output)?, output(has_errors)?);
        let program = inside.sandbox.start_program(start, [input.0, out.0, error.0]).await?;
        io::Result::Ok((Ending(Some(program)), input.1, out.1, error.1))
    };
    let (program, input, out, error) = match started.await {
        Ok(started) => started,
        Err(error) => return (Err(error), stderr.take().or(stdout.take())),
    };
    let mut copying = JoinSet::new();
    if let (Some(from), Some(to)) = (request.stdin, input) {
        tokio::spawn(copy(from, to)); // ends with its program, which may well leave input unread
    }
    for (from, to) in [(out, stdout), (error, stderr)] {
        if let (Some(from), Some(to)) = (from, to) {
            copying.spawn(copy(from, to));
        }
    }
    let code = program.exit().await;
    // Its children may hold its outputs open for as long as they live; the client waits for the program alone.
    if tokio::time::timeout(LAST_OUTPUT, async { while copying.join_next().await.is_some() {} }).await.is_err() {
        tracing::debug!("a program's outputs are held open after its end");
    }
    (Ok(code), None)
}

/// A program's side of an output and ours, if somebody reads it.
fn output(wanted: bool) -> io::Result<(OwnedFd, Option<pipe::Receiver>)> {
    if !wanted {
        return Ok((File::options().write(true).open("/dev/null")?.into(), None));
    }
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    Ok((write, Some(pipe::Receiver::from_owned_fd(read)?)))
}

async fn with_terminal(
    inside: &Inside,
    start: Start,
    sizes: watch::Receiver<(u16, u16)>,
    request: ExecRequest,
) -> (io::Result<i32>, Option<Output>) {
    let size = *sizes.borrow();
    let started = async {
        let (program, terminal) = inside.sandbox.start_in_terminal(in_terminal(start), size).await?;
        io::Result::Ok((Ending(Some(program)), Terminal::new(terminal)?))
    };
    let (program, terminal) = match started.await {
        Ok(started) => started,
        Err(error) => return (Err(error), request.stdout),
    };
    let mut side = JoinSet::new();
    if let Some(from) = request.stdin {
        side.spawn(copy(from, terminal.clone()));
    }
    side.spawn(resize(terminal.clone(), sizes));
    if let Some(to) = request.stdout {
        // EIO: the last of those who had the terminal open is gone. All of their output was read by then.
        copy(terminal, to).await;
    }
    (Ok(program.exit().await), None)
}

async fn resize(terminal: Terminal, mut sizes: watch::Receiver<(u16, u16)>) {
    while sizes.changed().await.is_ok() {
        let (columns, rows) = *sizes.borrow_and_update();
        if let Err(error) = terminal.resize(columns, rows) {
            tracing::debug!(%error, "terminal keeps its size");
        }
    }
}

/// Copies until either side ends; both are closed then.
async fn copy(mut from: impl AsyncRead + Send + Unpin, mut to: impl AsyncWrite + Send + Unpin) {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => {
                if to.write_all(&buffer[..length]).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
        }
    }
    // The other side may be gone: then there is nothing to end.
    let _ = to.shutdown().await;
}

/// A program that is ended when nobody waits for it any more.
pub struct Ending(Option<Program>);

impl Ending {
    /// Waits for its end: its status, 128 + signal if one ended it.
    pub async fn exit(mut self) -> i32 {
        let Some(program) = &self.0 else { return 0 };
        let code = program.exit().await.code();
        self.0 = None;
        code
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(program) = self.0.take() {
            tokio::spawn(async move {
                // The pod may have ended meanwhile.
                let _ = program.signal(Signal::SIGHUP, true).await;
                let _ = program.signal(Signal::SIGKILL, true).await;
            });
        }
    }
}

//! What the API asks of whoever runs the pods: logs and exec. The lab's kubelets answer; the API only carries the bytes.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name; `None`: the pod's only or first one.
    pub container: Option<String>,
}

/// The query of `pods/log`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on with what is written from now on.
    pub follow: bool,
    /// Only so many of the last lines.
    pub tail_lines: Option<u64>,
    /// Only what is younger than so many seconds.
    pub since_seconds: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
    /// The run before the last restart.
    pub previous: bool,
    /// Each line begins with its RFC 3339 time.
    pub timestamps: bool,
}

/// The query and the streams of `pods/exec`.
pub struct ExecRequest {
    /// Where.
    pub container: ContainerRef,
    /// Program and arguments, as given: no shell.
    pub command: Vec<String>,
    /// The client's input, if it asked for one. Its end is the end of the program's input.
    pub stdin: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Takes the program's output.
    pub stdout: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Takes the program's error output; `None` with a terminal, which has one output.
    pub stderr: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// With a terminal: its size in columns and rows, and each change of it.
    pub terminal: Option<watch::Receiver<(u16, u16)>>,
}

/// Why a stream could not be had. The API turns each into its Status.
#[derive(Debug, thiserror::Error)]
pub enum PodStreamError {
    /// The pod has no such container, or it never ran.
    #[error("container {container} in pod {pod} is not available: {reason}")]
    NotRunning {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// In a few words.
        reason: String,
    },
    /// The program could not be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// What was asked for.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Whoever runs pods.
pub trait PodStreams: Send + Sync + 'static {
    /// What a container wrote.
    fn logs(
        &self,
        container: ContainerRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, std::io::Result<Bytes>>, PodStreamError>>;

    /// Runs a program in a container until it ends; gives its exit status (128 + signal when a signal ended it). When the
    /// future is dropped (the client left), the program is ended.
    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<i32, PodStreamError>>;
}

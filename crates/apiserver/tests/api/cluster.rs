//! A server with a kubeconfig, and kubectl to run against it.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use signpost_apiserver::{ApiConfig, ApiServer, TlsIdentity, Token, kubeconfig, write_private};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// An API on the loopback. Ends when dropped.
pub struct Cluster {
    /// The server itself.
    pub server: Arc<ApiServer>,
    dir: tempfile::TempDir,
    shutdown: CancellationToken,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Exit status.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.server.close();
    }
}

impl Cluster {
    /// A dual-stack one, in memory.
    pub async fn start() -> Cluster {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("the loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let config = ApiConfig {
            service_cidrs: ["10.96.0.0/12", "fd00:10:96::/112"].map(|cidr| cidr.parse().expect("a network")).to_vec(),
            advertise: vec![address],
            ..ApiConfig::default()
        };
        let server = ApiServer::open(config).await.expect("a server in memory opens");
        let tls = TlsIdentity::generate(&[], &[]).expect("a certificate can be made");
        let (token, shutdown) = (Token::generate(), CancellationToken::new());
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = kubeconfig(&format!("https://{address}"), &tls, &token);
        write_private(&dir.path().join("config"), config.as_bytes()).expect("it can be written");
        tokio::spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move { server.serve(listener, &tls, token, shutdown).await }
        });
        Cluster { server, dir, shutdown }
    }

    /// A file of this test's own.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).expect("the test's directory can be written");
        path
    }

    /// A kubectl that was not started yet. `SIGNPOST_KUBECTL` names another one than the path's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let program = std::env::var("SIGNPOST_KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("KUBECONFIG", self.dir.path().join("config"))
            .env("HOME", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl to its end.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, b"").await
    }

    /// Runs kubectl to its end, with input.
    pub async fn run_with(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().expect("kubectl is installed");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        // It may end without reading all of it.
        let writing = tokio::spawn(async move { stdin.write_all(&input).await });
        let deadline = std::time::Duration::from_secs(60);
        let output =
            tokio::time::timeout(deadline, child.wait_with_output()).await.expect("kubectl ends within a minute");
        let output = output.expect("its output can be read");
        writing.abort();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Output { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs kubectl; it must succeed. Gives what it printed.
    pub async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.code, 0, "kubectl {}\n{output:#?}", arguments.join(" "));
        output.out
    }

    /// Runs kubectl; it must fail. Gives the error.
    pub async fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_ne!(output.code, 0, "kubectl {}\n{output:#?}", arguments.join(" "));
        output.err
    }
}

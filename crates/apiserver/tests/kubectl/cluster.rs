//! A server on the loopback and the real kubectl beside it.

use serde_json::Value;
use signpost_apiserver::{ApiConfig, ApiServer, TlsIdentity, Token, kubeconfig};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest that one kubectl may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An API in memory, served over TLS; ends with its value.
pub struct Cluster {
    home: TempDir,
    _shutdown: DropGuard,
}

/// What a kubectl said.
#[derive(Debug)]
pub struct Answer {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

impl Cluster {
    pub async fn start() -> Cluster {
        let server = ApiServer::open(ApiConfig::default()).await.expect("a server in memory opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback has a free port");
        let identity = TlsIdentity::generate(&[], &[]).expect("a certificate can be made");
        let token = Token::generate();
        let url = format!("https://{}", listener.local_addr().expect("a bound socket has an address"));
        let home = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(home.path().join("config"), kubeconfig(&url, &identity, &token)).expect("it can be written");
        let shutdown = CancellationToken::new();
        let ended = shutdown.clone();
        tokio::spawn(async move { server.serve(listener, &identity, token, ended).await });
        Cluster { home, _shutdown: shutdown.drop_guard() }
    }

    fn command(&self, line: &[&str]) -> Command {
        let program = std::env::var("SIGNPOST_KUBECTL").unwrap_or_else(|_| "kubectl".into());
        let mut command = Command::new(program);
        command.args(line).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.home.path().join("config"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs `kubectl LINE`; `input` is its standard input. Words in the line are parted by spaces.
    pub async fn run(&self, line: &str, input: &str) -> Answer {
        self.words(&line.split_whitespace().collect::<Vec<_>>(), input).await
    }

    /// Runs kubectl with arguments that may hold spaces.
    pub async fn words(&self, line: &[&str], input: &str) -> Answer {
        end(self.command(line), line, input).await
    }

    /// Runs a kubectl that calls an editor.
    pub async fn edit(&self, line: &str, editor: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.command(&words);
        command.env("EDITOR", editor);
        end(command, &words, "").await
    }

    /// What a kubectl that must succeed prints.
    pub async fn ok(&self, line: &str) -> String {
        self.fed(line, "").await
    }

    /// As `ok`, with standard input.
    pub async fn fed(&self, line: &str, input: &str) -> String {
        let answer = self.run(line, input).await;
        assert!(answer.ok, "kubectl {line}: {}{}", answer.out, answer.err);
        answer.out
    }

    /// What a kubectl that must fail says of it.
    pub async fn fails(&self, line: &str, input: &str) -> String {
        let answer = self.run(line, input).await;
        assert!(!answer.ok, "kubectl {line} succeeds: {}", answer.out);
        answer.err
    }

    /// An object as the API has it.
    pub async fn get(&self, what: &str) -> Value {
        let text = self.ok(&format!("get {what} -o json")).await;
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// A kubectl that goes on, and the lines that it prints.
    pub fn begin(&self, line: &str) -> Running {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut child = self.command(&words).spawn().expect("kubectl is installed");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Running { lines, child }
    }
}

async fn end(mut command: Command, line: &[&str], input: &str) -> Answer {
    let mut child = command.spawn().expect("kubectl is installed (or SIGNPOST_KUBECTL names it)");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A kubectl that does not read its input closes it.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("kubectl {line:?} did not end")).expect("its output can be read");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("kubectl prints UTF-8");
    Answer { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
}

/// A kubectl under way; ends with its value.
pub struct Running {
    lines: BufReader<tokio::process::ChildStdout>,
    child: Child,
}

impl Running {
    /// The next line, without its end.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.lines.read_line(&mut line)).await;
        assert!(read.expect("a line comes").expect("it can be read") > 0, "kubectl ended");
        line.trim_end().to_owned()
    }

    /// Waits for its end; whether it succeeded.
    pub async fn end(mut self) -> bool {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("kubectl ends");
        status.expect("it can be waited for").success()
    }
}

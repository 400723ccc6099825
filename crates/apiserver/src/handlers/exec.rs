//! GET `pods/exec` as a WebSocket: the streams of a program in a container, multiplexed by a first byte.
//!
//! ```text
//! client ──0 stdin, 4 resize, 255 end of stdin (v5)──▶ incoming ──▶ program
//! client ◀──1 stdout, 2 stderr, 3 Status, close 1000── outgoing ◀── program
//! ```
//!
//! Subprotocols `v5.channel.k8s.io` and `v4.channel.k8s.io` (KEP-4006). When the client leaves, the program is ended.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Call;
use super::logs::{container, streams};
use crate::error::ApiError;
use crate::object;
use crate::pod_streams::{ExecRequest, PodStreamError, PodStreams};
use crate::state::ServerState;

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
const CHUNK: usize = 32 << 10;
const LARGEST_MESSAGE: usize = 1 << 20;
/// A client that is gone without a word is found out by a ping that can't be sent.
const PING_EVERY: Duration = Duration::from_secs(10);
/// After a program's end its output has so long to arrive here.
const DRAIN: Duration = Duration::from_secs(5);
const FIRST_SIZE: (u16, u16) = (80, 24);

pub(super) async fn exec(server: &Arc<ServerState>, call: &Call, request: Request<Body>) -> Result<Response, ApiError> {
    let container = container(server, call)?;
    let streams = streams(server)?.clone();
    let command: Vec<String> = call.query.all("command").into_iter().map(str::to_owned).collect();
    if command.is_empty() {
        return Err(ApiError::bad_request("you must specify at least one command"));
    }
    let wants = Wants {
        stdin: call.query.flag("stdin"),
        stdout: call.query.flag("stdout"),
        stderr: call.query.flag("stderr"),
        terminal: call.query.flag("tty"),
    };
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.map_err(|rejection| {
        // Clients before 1.31 begin with SPDY.
        ApiError::bad_request(format!(
            "unable to upgrade: exec runs over WebSocket here ({rejection}); use kubectl 1.31 or newer, or set \
             KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true"
        ))
    })?;
    let upgrade = upgrade.protocols(PROTOCOLS).max_message_size(LARGEST_MESSAGE).max_frame_size(LARGEST_MESSAGE);
    let closing = server.closing.clone();
    Ok(upgrade.on_upgrade(async move |socket| {
        let session = session(socket, streams, container, command, wants);
        tokio::select! {
            () = session => {}
            () = closing.cancelled() => {}
        }
    }))
}

#[derive(Clone, Copy)]
struct Wants {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    terminal: bool,
}

async fn session(
    socket: WebSocket,
    streams: Arc<dyn PodStreams>,
    container: crate::pod_streams::ContainerRef,
    command: Vec<String>,
    wants: Wants,
) {
    let (sink, incoming) = socket.split();
    let (messages, queue) = mpsc::channel(16);
    let mut outgoing = tokio::spawn(send_all(sink, queue));
    let (stdin_writer, stdin) = tokio::io::duplex(CHUNK);
    let (size, sizes) = watch::channel(FIRST_SIZE);
    let mut pumps = JoinSet::new();
    let mut output = |channel: u8, wanted: bool| {
        let (writer, reader) = tokio::io::duplex(CHUNK);
        wanted.then(|| {
            pumps.spawn(pump(channel, reader, messages.clone()));
            writer
        })
    };
    let request = ExecRequest {
        container,
        command,
        stdin: wants.stdin.then(|| Box::new(stdin) as _),
        stdout: output(STDOUT, wants.stdout).map(|writer| Box::new(writer) as _),
        stderr: output(STDERR, wants.stderr && !wants.terminal).map(|writer| Box::new(writer) as _),
        terminal: wants.terminal.then_some(sizes),
    };
    let outcome = tokio::select! {
        outcome = streams.exec(request) => Some(outcome),
        () = receive_all(incoming, stdin_writer, size) => None,
        _ = &mut outgoing => None,
    };
    let Some(outcome) = outcome else {
        tracing::debug!("an exec client left before its program ended");
        return;
    };
    let drained = tokio::time::timeout(DRAIN, async { while pumps.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::debug!("output of an ended program is still held open");
        pumps.abort_all();
    }
    let status = frame(STATUS, ended(outcome).to_string().as_bytes());
    let close = Message::Close(Some(CloseFrame { code: axum::extract::ws::close_code::NORMAL, reason: "".into() }));
    for message in [Message::Binary(status), close] {
        if messages.send(message).await.is_err() {
            return;
        }
    }
    drop(messages);
    // The sender ends with its queue; a panic in it has been logged by the runtime.
    let _ = tokio::time::timeout(DRAIN, outgoing).await;
}

fn frame(channel: u8, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(channel);
    frame.extend_from_slice(data);
    frame.freeze()
}

async fn send_all(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    let mut pings = tokio::time::interval(PING_EVERY);
    pings.tick().await;
    loop {
        let message = tokio::select! {
            message = queue.recv() => match message {
                Some(message) => message,
                None => return,
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

async fn pump(channel: u8, mut reader: DuplexStream, messages: mpsc::Sender<Message>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = reader.read(&mut buffer).await {
        if messages.send(Message::Binary(frame(channel, &buffer[..length]))).await.is_err() {
            return;
        }
    }
}

/// Until the client leaves.
async fn receive_all(mut incoming: SplitStream<WebSocket>, stdin: DuplexStream, size: watch::Sender<(u16, u16)>) {
    let mut stdin = Some(stdin);
    while let Some(Ok(message)) = incoming.next().await {
        let data = match message {
            Message::Binary(data) => data,
            Message::Close(_) => return,
            _ => continue,
        };
        match data.split_first() {
            Some((&STDIN, data)) => {
                let failed = match &mut stdin {
                    Some(stdin) => stdin.write_all(data).await.is_err(),
                    None => false,
                };
                if failed {
                    // The program closed its input; its output goes on.
                    stdin = None;
                }
            }
            Some((&CLOSE, [STDIN])) => stdin = None,
            Some((&RESIZE, data)) => {
                if let Some(new) = terminal_size(data) {
                    size.send_replace(new);
                }
            }
            _ => {}
        }
    }
}

fn terminal_size(data: &[u8]) -> Option<(u16, u16)> {
    let value: Value = serde_json::from_slice(data).ok()?;
    let number = |key: &str| u16::try_from(object::number(&value, &[key])?).ok();
    Some((number("Width")?, number("Height")?))
}

/// The Status that tells the client how the program ended.
fn ended(outcome: Result<i32, PodStreamError>) -> Value {
    match outcome {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(error) => super::logs::refused(error).status(),
    }
}

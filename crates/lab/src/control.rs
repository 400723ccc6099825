//! How other processes of root ask a running lab: one JSON line each way over a unix socket in the lab's directory. To
//! run a program in a pod the asker sends its own input, output and error output along.

mod ready;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};
use signpost_apiserver::pod_streams::PodStreamError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::ready::{Ready, until_ready, why_not};
use crate::error::LabError;
use crate::lab::Lab;
use crate::spec::Place;
use crate::state::{self, Record, socket};
use crate::sys;

/// The longest question.
const QUESTION_BYTES: usize = 256 * 1024;
/// A lab says at once that it has heard a question. One that does not so within this time hangs.
const HEARD: Duration = Duration::from_secs(10);
/// How long the lab's own work for an answer may take. A program that a person runs takes as long as it takes.
const ANSWER: Duration = Duration::from_secs(60);

/// What a lab is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// How it is.
    Status,
    /// To end; the answer comes when nothing of it is left.
    Down,
    /// To start a node's daemon, or to stop it and start it again.
    Restart {
        /// The node.
        node: String,
    },
    /// Where the network namespaces of places are.
    Namespaces(Vec<Place>),
    /// To run a program somewhere.
    Exec {
        /// Where.
        place: Place,
        /// In which container, if the place is a pod.
        container: Option<String>,
        /// Program and arguments.
        command: Vec<String>,
        /// The size (columns, rows) of the terminal that is made for it in the pod; `None`: it gets the asker's files.
        terminal: Option<(u16, u16)>,
    },
}

/// What a lab answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It has heard the question and is at work.
    Heard,
    /// What it waits for, for a person; the answer comes later.
    Waiting(String),
    /// The node's daemon runs, as this process.
    Restarted(u32),
    /// How it is.
    Status(Status),
    /// Of each place that was asked for a path to its network namespace; `None`: there is no such place.
    Namespaces(Vec<Option<PathBuf>>),
    /// It has ended.
    Down {
        /// What it could not remove.
        problem: Option<String>,
    },
    /// The program runs in a terminal whose other side comes with this answer; its exit is answered later.
    Terminal,
    /// The program has ended.
    Exit(i32),
    /// The place is no sandbox: the asker runs the program itself, there.
    Enter {
        /// The network namespace.
        netns: PathBuf,
        /// The control group to join.
        cgroup: PathBuf,
    },
    /// It could not be done.
    Refused(String),
}

/// How a lab is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Who it is.
    pub record: Record,
    /// The nodes' daemons, by node.
    pub daemons: BTreeMap<String, DaemonStatus>,
    /// How many pods are in which phase.
    pub pods: BTreeMap<String, usize>,
    /// What has not taken effect yet; `None`: everything has.
    pub unsettled: Option<String>,
}

/// How a node's daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonStatus {
    /// It runs, as this process.
    Running(u32),
    /// It was stopped or killed.
    Stopped,
    /// It ended by itself, and how.
    Failed(String),
}

/// Makes a lab's socket. Questions wait there until [`serve`] takes them.
///
/// # Errors
/// The system's.
pub fn listener(lab: &Lab) -> Result<UnixListener, LabError> {
    let path = lab.socket();
    UnixListener::bind(&path).map_err(LabError::state("listen on", path))
}

/// Answers until the lab is told to end, by a question or by `stop`; then ends it.
///
/// # Errors
/// What the lab left behind.
pub async fn serve(lab: Lab, listener: UnixListener, stop: impl Future<Output = ()>) -> Result<(), LabError> {
    let lab = Arc::new(lab);
    let asked_to_end = Arc::new(Notify::new());
    let mut waiting_for_end = Vec::new();
    let (to_end, mut ending) = tokio::sync::mpsc::unbounded_channel();
    let mut conversations = JoinSet::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    while conversations.try_join_next().is_some() {}
                    let (lab, to_end, asked) = (lab.clone(), to_end.clone(), asked_to_end.clone());
                    conversations.spawn(async move {
                        match converse(&lab, stream).await {
                            Ok(Some(stream)) => {
                                drop(lab);
                                // The receiver waits for it.
                                let _ = to_end.send(stream);
                                asked.notify_one();
                            }
                            Ok(None) => {}
                            Err(error) => tracing::debug!(%error, "a conversation broke off"),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a question");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await; // out of descriptors
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = asked_to_end.notified() => {}
        () = stop => {}
    }
    drop(listener);
    conversations.shutdown().await;
    while let Ok(stream) = ending.try_recv() {
        waiting_for_end.push(stream);
    }
    let ended = match Arc::try_unwrap(lab) {
        Ok(lab) => lab.stop().await,
        Err(_still_used) => Ok(()), // impossible: all conversations have ended; dropping ends the lab too
    };
    let problem = ended.as_ref().err().map(ToString::to_string);
    for mut stream in waiting_for_end {
        // The asker may have left.
        let _ = say(&mut stream, &Answer::Down { problem: problem.clone() }).await;
    }
    ended
}

/// Answers one question. Gives the stream back if the question is that the lab shall end.
async fn converse(lab: &Lab, mut stream: UnixStream) -> io::Result<Option<UnixStream>> {
    let (question, descriptors) = hear(&stream).await?;
    say(&mut stream, &Answer::Heard).await?;
    let answer = match question {
        Question::Down => return Ok(Some(stream)),
        Question::Status => Answer::Status(status(lab).await),
        Question::Restart { node } => restart(lab, &node).await,
        Question::Namespaces(places) => {
            let path = |place| lab.namespace_of(&place).ok().map(|netns| netns.path());
            Answer::Namespaces(places.into_iter().map(path).collect())
        }
        Question::Exec { place: Place::Pod(namespace, name), container, command, terminal } => {
            let pod = (namespace.as_str(), name.as_str(), container.as_deref());
            match (until_ready(lab, pod, &mut stream).await, terminal) {
                (Err(problem), _) => Answer::Refused(problem),
                (Ok(Ready::Light), _) => enter(lab, &Place::Pod(namespace, name)),
                (Ok(Ready::Sandbox), None) => {
                    let mut rest = [0];
                    tokio::select! {
                        answer = exec(lab, pod, command, descriptors) => answer,
                        // The asker left: the program ends with the future that waits for it.
                        _ = stream.read(&mut rest) => return Ok(None),
                    }
                }
                (Ok(Ready::Sandbox), Some(size)) => {
                    match exec_in_terminal(lab, pod, command, size, &mut stream).await? {
                        Some(answer) => answer,
                        None => return Ok(None),
                    }
                }
            }
        }
        Question::Exec { place, .. } => enter(lab, &place),
    };
    say(&mut stream, &answer).await?;
    Ok(None)
}

/// Starts a node's daemon, anew if it runs; it answers when this returns.
async fn restart(lab: &Lab, node: &str) -> Answer {
    let restarted = async {
        let daemon = lab.daemon(node)?;
        daemon.restart().await?;
        lab.answering(daemon).await
    };
    match restarted.await {
        Ok(pid) => Answer::Restarted(pid),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

async fn hear(stream: &UnixStream) -> io::Result<(Question, Vec<OwnedFd>)> {
    let mut text = Vec::new();
    let mut descriptors = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    while !text.ends_with(b"\n") {
        let received =
            stream.async_io(Interest::READABLE, || sys::receive(stream, &mut buffer, MsgFlags::MSG_DONTWAIT));
        let (length, came) = received.await?;
        if length == 0 || text.len() > QUESTION_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        text.extend_from_slice(&buffer[..length.min(buffer.len())]);
        descriptors.extend(came);
    }
    Ok((serde_json::from_slice(&text)?, descriptors))
}

async fn say(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

/// Namespace, name, container.
type PodPlace<'a> = (&'a str, &'a str, Option<&'a str>);

async fn exec(lab: &Lab, pod: PodPlace<'_>, command: Vec<String>, descriptors: Vec<OwnedFd>) -> Answer {
    let Ok(streams) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Answer::Refused("three file descriptors belong to the question".to_owned());
    };
    match lab.kubelet().run(pod, command, streams).await {
        Ok(status) => Answer::Exit(status),
        Err(error) => refused(lab, pod, error).await,
    }
}

async fn refused(lab: &Lab, pod: PodPlace<'_>, error: PodStreamError) -> Answer {
    let text = error.to_string();
    Answer::Refused(match error {
        PodStreamError::NotRunning { .. } => why_not(lab, pod, text).await,
        PodStreamError::Start { .. } => text,
    })
}

/// Sends the terminal, then waits for the program. `None`: the asker left, and the program was ended.
async fn exec_in_terminal(
    lab: &Lab,
    pod: PodPlace<'_>,
    command: Vec<String>,
    size: (u16, u16),
    stream: &mut UnixStream,
) -> io::Result<Option<Answer>> {
    let (program, terminal) = match lab.kubelet().run_in_terminal(pod, command, size).await {
        Ok(running) => running,
        Err(error) => return Ok(Some(refused(lab, pod, error).await)),
    };
    let mut text = serde_json::to_vec(&Answer::Terminal)?;
    text.push(b'\n');
    let numbers = [terminal.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&numbers)];
    let number = stream.as_raw_fd();
    let send = || Ok(sendmsg::<()>(number, &[IoSlice::new(&text)], &control, MsgFlags::MSG_NOSIGNAL, None)?);
    stream.async_io(Interest::WRITABLE, send).await?;
    drop(terminal);
    let mut rest = [0];
    tokio::select! {
        status = program.exit() => Ok(Some(Answer::Exit(status))),
        _ = stream.read(&mut rest) => Ok(None),
    }
}

/// How the asker itself gets to a place that is no sandbox.
fn enter(lab: &Lab, place: &Place) -> Answer {
    let entered = lab.namespace_of(place).and_then(|netns| {
        let group = match (lab.node_of(place), place) {
            (Some(node), _) => lab.group_on(&node),
            (None, Place::Router) => lab.cgroup().child("router"),
            (None, _) => lab.cgroup().child("outside"),
        };
        group.create().map_err(|source| LabError::Cgroup { source })?;
        Ok(Answer::Enter { netns: netns.path(), cgroup: group.path().to_owned() })
    });
    entered.unwrap_or_else(|error| Answer::Refused(error.to_string()))
}

async fn status(lab: &Lab) -> Status {
    let mut daemons = BTreeMap::new();
    for daemon in lab.daemons() {
        let status = match (daemon.programmed().await, daemon.pid().await) {
            (Err(LabError::Daemon { problem, log, .. }), _) => {
                DaemonStatus::Failed(format!("daemon {problem}; its log is {}", log.display()))
            }
            (Err(error), _) => DaemonStatus::Failed(error.to_string()),
            (Ok(_), Some(pid)) => DaemonStatus::Running(pid),
            (Ok(_), None) => DaemonStatus::Stopped,
        };
        daemons.insert(daemon.node().to_owned(), status);
    }
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::all(lab.client());
    let mut phases = BTreeMap::new();
    let listed = pods.list(&kube::api::ListParams::default()).await;
    let problem = listed.as_ref().err().map(|error| format!("the API does not list the pods: {error}"));
    for pod in listed.into_iter().flatten() {
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_else(|| "Pending".to_owned());
        *phases.entry(phase).or_default() += 1;
    }
    let unsettled = match problem {
        Some(problem) => Some(problem),
        None => lab.unsettled().await.unwrap_or_else(|error| Some(error.to_string())),
    };
    Status { record: lab.record().clone(), daemons, pods: phases, unsettled }
}

/// Asks the lab of a name; waits for its answer.
///
/// # Errors
/// There is no such lab, it hangs, or it ended meanwhile.
pub fn ask(name: &str, question: &Question) -> Result<Answer, LabError> {
    Ok(Conversation::begin(name, question, &[])?.answer()?.0)
}

/// A question to a lab, and what it answers.
pub struct Conversation {
    name: String,
    stream: StdUnixStream,
    /// What came after the last answer.
    rest: Vec<u8>,
    descriptor: Option<OwnedFd>,
    /// How long the lab may take for an answer.
    limit: Option<Duration>,
}

impl Conversation {
    /// Asks the lab of a name.
    ///
    /// # Errors
    /// There is no such lab, it hangs, or it ended meanwhile.
    pub fn begin(name: &str, question: &Question, descriptors: &[BorrowedFd<'_>]) -> Result<Conversation, LabError> {
        Conversation::begin_within(HEARD, name, question, descriptors)
    }

    fn begin_within(
        heard: Duration,
        name: &str,
        question: &Question,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Conversation, LabError> {
        let path = socket(name);
        let no_such_lab = || LabError::NoSuchLab { name: name.to_owned() };
        let mut stream = StdUnixStream::connect(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => no_such_lab(),
            _ => LabError::State { op: "connect to", path: path.clone(), source: error },
        })?;
        let mut asked = || -> io::Result<()> {
            stream.set_read_timeout(Some(heard))?;
            stream.set_write_timeout(Some(heard))?;
            let mut text = serde_json::to_vec(question)?;
            text.push(b'\n');
            let numbers: Vec<i32> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
            let control = [ControlMessage::ScmRights(&numbers)];
            let control: &[ControlMessage] = if numbers.is_empty() { &[] } else { &control };
            let sent =
                sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
            io::Write::write_all(&mut stream, &text[sent..])
        };
        asked().map_err(failed(name, "ask over"))?;
        let limit = (!matches!(question, Question::Exec { .. })).then_some(ANSWER);
        Ok(Conversation { name: name.to_owned(), stream, rest: Vec::new(), descriptor: None, limit })
    }

    /// Waits for the next answer; with [`Answer::Terminal`] comes the terminal. Never [`Answer::Heard`].
    ///
    /// # Errors
    /// The lab hangs, or ended meanwhile.
    pub fn answer(&mut self) -> Result<(Answer, Option<OwnedFd>), LabError> {
        loop {
            let answer = self.read().map_err(failed(&self.name, "hear over"))?;
            if answer != Answer::Heard {
                return Ok((answer, self.descriptor.take()));
            }
            self.stream.set_read_timeout(self.limit).map_err(failed(&self.name, "hear over"))?;
        }
    }

    fn read(&mut self) -> io::Result<Answer> {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line)?);
            }
            let (length, came) = sys::receive(&self.stream, &mut buffer, MsgFlags::empty())?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.rest.extend_from_slice(&buffer[..length.min(buffer.len())]);
            self.descriptor = self.descriptor.take().or(came.into_iter().next());
        }
    }
}

/// What a failed conversation with the lab of a name means.
fn failed(name: &str, op: &'static str) -> impl FnOnce(io::Error) -> LabError {
    move |error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            LabError::Hangs { name: name.to_owned(), pid: state::holder(name) }
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            LabError::Ended { name: name.to_owned() }
        }
        _ => LabError::State { op, path: socket(name), source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_that_hangs_is_told_within_the_time() {
        let name = format!("t-hangs-{}", std::process::id());
        let path = socket(&name);
        let folder = path.parent().unwrap();
        std::fs::create_dir_all(folder).unwrap();
        // Takes connections and never answers, as a process that was stopped.
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let begun = Conversation::begin_within(Duration::from_millis(50), &name, &Question::Status, &[]);
        let error = begun.and_then(|mut conversation| conversation.answer());
        drop(listener);
        std::fs::remove_dir_all(folder).unwrap();
        assert!(matches!(error, Err(LabError::Hangs { .. })), "{error:?}");
    }
}

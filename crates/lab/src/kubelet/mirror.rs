//! Mirror pods: they stand for a node's daemon, which the lab starts itself, as a static pod's mirror stands for what a
//! kubelet started by itself. Nothing of them runs; `kubectl logs` shows the daemon's log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use signpost_apiserver::pod_streams::LogOptions;

use super::MIRROR;
use super::pod::Worker;
use super::status::ContainerView;

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Whether a pod is one.
pub(super) fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().and_then(|all| all.get(MIRROR)).is_some_and(|value| value == "daemon")
}

/// Where the log is of which a mirror pod on this node tells.
pub(super) fn log(state: &Path, node: &str) -> PathBuf {
    state.join("nodes").join(node).join("daemon.log")
}

pub(super) async fn run(mut worker: Worker, pod: std::sync::Arc<Pod>) {
    let since = Timestamp::now();
    if let Some(attachment) = worker.attach().await {
        let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        let views = vec![ContainerView::running(since, true); containers];
        worker.show(&pod, &[], &views).await;
        worker.wait_for_deletion().await;
        worker.detach(attachment).await;
    } else {
        worker.wait_for_deletion().await;
    }
    worker.goodbye().await;
}

/// Reads a daemon's log as `kubectl logs` wants it. Each line has its time in front, as the daemon wrote it.
///
/// # Errors
/// There is no such log.
pub(super) fn read(path: &Path, options: LogOptions) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
    let mut lines = Lines { file: File::open(path)?, rest: Vec::new() };
    let mut first: VecDeque<Vec<u8>> = lines.fresh(&options)?.into();
    if let Some(tail) = options.tail_lines {
        let tail = usize::try_from(tail).unwrap_or(usize::MAX);
        first.drain(..first.len().saturating_sub(tail));
    }
    let limit = options.limit_bytes.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let start = (lines, Some(first.into_iter().flatten().collect::<Vec<u8>>()), limit, options);
    let stream = futures::stream::try_unfold(start, |(mut lines, first, mut left, options)| async move {
        let mut chunk = first.unwrap_or_default();
        while chunk.is_empty() {
            if !options.follow {
                return Ok(None);
            }
            chunk = lines.fresh(&options)?.into_iter().flatten().collect();
            if chunk.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        }
        if left == 0 {
            return Ok(None);
        }
        chunk.truncate(left);
        left -= chunk.len();
        Ok(Some((Bytes::from(chunk), (lines, None, left, options))))
    });
    Ok(Box::pin(stream))
}

struct Lines {
    file: File,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
}

impl Lines {
    /// The whole lines that were written since the last time.
    fn fresh(&mut self, options: &LogOptions) -> io::Result<Vec<Vec<u8>>> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let wanted = whole.split_inclusive(|byte| *byte == b'\n').filter_map(|line| wanted(line, options));
        Ok(wanted.collect())
    }
}

/// A line as it is to be shown; `None`: it is too old. One without a time goes with the others.
fn wanted(line: &[u8], options: &LogOptions) -> Option<Vec<u8>> {
    let first = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    let text = std::str::from_utf8(first).unwrap_or_default();
    let time: Option<Timestamp> = text.parse().ok();
    if let (Some(time), Some(seconds)) = (time, options.since_seconds) {
        let age = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        if Timestamp::now().duration_since(time) > age {
            return None;
        }
    }
    if options.timestamps && time.is_some() {
        return Some([first, b" ", line].concat());
    }
    Some(line.to_vec())
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    async fn shown(text: &str, options: LogOptions) -> String {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), text).unwrap();
        let chunks: Vec<Bytes> = read(log.path(), options).unwrap().try_collect().await.unwrap();
        String::from_utf8(chunks.concat()).unwrap()
    }

    fn options() -> LogOptions {
        LogOptions {
            follow: false,
            tail_lines: None,
            since_seconds: None,
            limit_bytes: None,
            previous: false,
            timestamps: false,
        }
    }

    #[tokio::test]
    async fn a_daemons_log_is_shown_as_it_was_asked_for() {
        let now = Timestamp::now();
        let text = format!("2001-01-01T00:00:00Z  INFO old\n{now}  INFO new\n{now} half");
        let both = format!("2001-01-01T00:00:00Z  INFO old\n{now}  INFO new\n");
        assert_eq!(shown(&text, options()).await, both);
        let tail = LogOptions { tail_lines: Some(1), ..options() };
        assert_eq!(shown(&text, tail).await, format!("{now}  INFO new\n"));
        let young = LogOptions { since_seconds: Some(600), timestamps: true, ..options() };
        assert_eq!(shown(&text, young).await, format!("{now} {now}  INFO new\n"));
        let few = LogOptions { limit_bytes: Some(4), ..options() };
        assert_eq!(shown(&text, few).await, "2001");
    }
}

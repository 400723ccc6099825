//! What containers write: a file per run in the lab's state, a line per line, each with its time and stream
//! (`2026-01-02T03:04:05.678901234Z stdout F text`, as container runtimes write it), and its way back to a reader.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use signpost_apiserver::pod_streams::LogOptions;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// A longer line is written in parts.
const LINE_BYTES: usize = 16 * 1024;
/// A longer file is put aside, and the one put aside before it removed: a chatty pod must not fill the disk.
const FILE_BYTES: u64 = 10 * 1024 * 1024;

/// The log of one run of a container.
pub struct RunLog {
    path: PathBuf,
    file: Mutex<Option<File>>,
    /// How often something was written; the end of the run closes it.
    written: watch::Sender<u64>,
}

/// The file of a run in its container's folder.
pub fn path(folder: &Path, run: u32) -> PathBuf {
    folder.join(format!("{run}.log"))
}

impl RunLog {
    /// Begins the log of run `run`; the one before the last is removed.
    ///
    /// # Errors
    /// The state directory is full or gone.
    pub fn begin(folder: &Path, run: u32) -> io::Result<Arc<RunLog>> {
        fs::create_dir_all(folder)?;
        if let Some(old) = run.checked_sub(2) {
            for path in [path(folder, old), aside(&path(folder, old))] {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        let path = path(folder, run);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Arc::new(RunLog { path, file: Mutex::new(Some(file)), written: watch::Sender::new(0) }))
    }

    /// The end of a pipe to give to a program; what comes through it is logged until the last holder closes it.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn pipe(self: &Arc<Self>, stream: &'static str) -> io::Result<OwnedFd> {
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let read = pipe::Receiver::from_owned_fd(read)?;
        tokio::spawn(self.clone().pump(read, stream));
        Ok(write)
    }

    /// Told each time that something was written.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    async fn pump(self: Arc<Self>, mut from: pipe::Receiver, stream: &'static str) {
        let mut buffer = Vec::with_capacity(LINE_BYTES);
        loop {
            let read = from.read_buf(&mut buffer).await;
            let ended = !matches!(read, Ok(1..));
            if let Err(error) = self.take_lines(&mut buffer, stream, ended) {
                tracing::warn!(path = %self.path.display(), %error, "container output is lost");
                buffer.clear();
            }
            if ended {
                return;
            }
        }
    }

    fn take_lines(&self, buffer: &mut Vec<u8>, stream: &str, ended: bool) -> io::Result<()> {
        let mut text = Vec::new();
        let mut rest = buffer.as_slice();
        let now = Timestamp::now();
        loop {
            let (line, tag, next) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(end) if end <= LINE_BYTES => (&rest[..end], 'F', &rest[end + 1..]),
                _ if rest.len() >= LINE_BYTES => (&rest[..LINE_BYTES], 'P', &rest[LINE_BYTES..]),
                _ if ended && !rest.is_empty() => (rest, 'F', &rest[rest.len()..]),
                _ => break,
            };
            write!(text, "{now:.9} {stream} {tag} ")?;
            text.extend_from_slice(line);
            text.push(b'\n');
            rest = next;
        }
        let taken = buffer.len() - rest.len();
        buffer.drain(..taken);
        if !text.is_empty() {
            self.write(&text)?;
            self.written.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = match slot.take() {
            Some(file) if file.metadata()?.len() < FILE_BYTES => file,
            _ => {
                fs::rename(&self.path, aside(&self.path))?;
                OpenOptions::new().create(true).append(true).open(&self.path)?
            }
        };
        let result = file.write_all(text);
        *slot = Some(file);
        result
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.old")
}

/// Reads a run's log as `kubectl logs` wants it. `running`: the run's announcements, if it still goes on.
///
/// # Errors
/// There is no such log.
pub fn read(
    path: PathBuf,
    options: LogOptions,
    running: Option<watch::Receiver<u64>>,
) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
    let file = File::open(&path)?;
    let mut text = fs::read(aside(&path)).unwrap_or_default(); // most logs were never put aside
    let mut reader = Reader { path, inode: file.metadata()?.ino(), file, rest: Vec::new() };
    text.extend(reader.fresh()?);
    let mut lines: VecDeque<Vec<u8>> = reader.lines(&text, &options).into();
    if let Some(tail) = options.tail_lines {
        let tail = usize::try_from(tail).unwrap_or(usize::MAX);
        lines.drain(..lines.len().saturating_sub(tail));
    }
    let first: Vec<u8> = lines.into_iter().flatten().collect();
    let limit = options.limit_bytes.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let state = (reader, running.filter(|_| options.follow), Some(first), limit, options);
    let stream = futures::stream::try_unfold(state, |(mut reader, mut running, first, mut left, options)| async move {
        let mut chunk = match first {
            Some(first) => first,
            None => match reader.next(&mut running, &options).await? {
                Some(chunk) => chunk,
                None => return Ok(None),
            },
        };
        if left == 0 {
            return Ok(None);
        }
        chunk.truncate(left);
        left -= chunk.len();
        Ok(Some((Bytes::from(chunk), (reader, running, None, left, options))))
    });
    Ok(Box::pin(stream))
}

struct Reader {
    path: PathBuf,
    inode: u64,
    file: File,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
}

impl Reader {
    /// What was written since the last time, over a change of the file.
    fn fresh(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.file.read_to_end(&mut text)?;
        if let Ok(meta) = fs::metadata(&self.path)
            && meta.ino() != self.inode
        {
            self.file.read_to_end(&mut text)?;
            self.file = File::open(&self.path)?;
            self.inode = meta.ino();
            self.file.read_to_end(&mut text)?;
        }
        Ok(text)
    }

    /// The whole lines in `text`, without what only the file needs.
    fn lines(&mut self, text: &[u8], options: &LogOptions) -> Vec<Vec<u8>> {
        self.rest.extend_from_slice(text);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let oldest = options.since_seconds.map(|seconds| {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN)
        });
        whole
            .split_inclusive(|byte| *byte == b'\n')
            .filter_map(|line| shown(line, oldest, options.timestamps))
            .collect()
    }

    /// The next lines of a log that is followed; `None` at its end.
    async fn next(
        &mut self,
        running: &mut Option<watch::Receiver<u64>>,
        options: &LogOptions,
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(announcements) = running else { return Ok(None) };
            if announcements.changed().await.is_err() {
                *running = None; // the run is over: once more for its last words
            }
            let text = self.fresh()?;
            let lines = self.lines(&text, options);
            if !lines.is_empty() {
                return Ok(Some(lines.concat()));
            }
        }
    }
}

/// A line of the file as the reader wants it; `None`: too old, or damaged.
fn shown(line: &[u8], oldest: Option<Timestamp>, timestamps: bool) -> Option<Vec<u8>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = parts.next()?;
    let (_stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?);
    if let Some(oldest) = oldest {
        let time: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
        if time < oldest {
            return None;
        }
    }
    let mut shown = Vec::with_capacity(line.len());
    if timestamps {
        shown.extend_from_slice(time);
        shown.push(b' ');
    }
    let text = if tag == b"P" { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
    shown.extend_from_slice(text);
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use std::time::Duration;

    async fn all(stream: BoxStream<'static, io::Result<Bytes>>) -> String {
        let chunks: Vec<Bytes> = tokio::time::timeout(Duration::from_secs(5), stream.map(Result::unwrap).collect())
            .await
            .expect("the log ends");
        String::from_utf8(chunks.concat()).unwrap()
    }

    async fn written(folder: &Path, text: &str) -> Arc<RunLog> {
        let log = RunLog::begin(folder, 0).unwrap();
        let mut count = log.subscribe();
        let pipe = log.pipe("stdout").unwrap();
        File::from(pipe).write_all(text.as_bytes()).unwrap();
        count.wait_for(|count| *count > 0).await.unwrap();
        log
    }

    #[tokio::test]
    async fn tail_limit_and_timestamps_choose_what_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let _log = written(folder.path(), "one\ntwo\nthree").await;
        let show = |options| read(path(folder.path(), 0), options, None).unwrap();
        // The last line has no end: it is written when the pipe closes, perhaps a moment later.
        while all(show(LogOptions::default())).await != "one\ntwo\nthree\n" {
            tokio::task::yield_now().await;
        }
        assert_eq!(all(show(LogOptions { tail_lines: Some(1), ..Default::default() })).await, "three\n");
        assert_eq!(all(show(LogOptions { limit_bytes: Some(5), ..Default::default() })).await, "one\nt");
        let stamped = all(show(LogOptions { timestamps: true, ..Default::default() })).await;
        let (time, text) = stamped.lines().next().unwrap().split_once(' ').unwrap();
        assert!(time.parse::<Timestamp>().is_ok() && text == "one", "{stamped}");
        assert!(read(path(folder.path(), 1), LogOptions::default(), None).is_err());
    }

    #[tokio::test]
    async fn a_followed_log_ends_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let log = written(folder.path(), "one\n").await;
        let follow = LogOptions { follow: true, ..LogOptions::default() };
        let stream = read(path(folder.path(), 0), follow, Some(log.subscribe())).unwrap();
        let reader = tokio::spawn(all(stream));
        let pipe = log.pipe("stderr").unwrap();
        File::from(pipe).write_all(b"two\n").unwrap();
        drop(log);
        assert_eq!(reader.await.unwrap(), "one\ntwo\n");
    }

    #[tokio::test]
    async fn long_lines_are_put_together_and_long_files_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(LINE_BYTES * 2 + 5);
        let log = RunLog::begin(folder.path(), 0).unwrap();
        let mut buffer = format!("{long}\n").into_bytes();
        log.take_lines(&mut buffer, "stdout", true).unwrap();
        assert_eq!(all(read(log.path.clone(), LogOptions::default(), None).unwrap()).await, format!("{long}\n"));
        let mut reader = {
            let file = File::open(&log.path).unwrap();
            Reader { inode: file.metadata().unwrap().ino(), path: log.path.clone(), file, rest: Vec::new() }
        };
        for _ in 0..(FILE_BYTES as usize / LINE_BYTES / 2 + 2) {
            log.take_lines(&mut format!("{long}\n").into_bytes(), "stdout", true).unwrap();
        }
        assert!(fs::metadata(&log.path).unwrap().len() < FILE_BYTES / 2);
        let text = reader.fresh().unwrap();
        assert!(text.len() as u64 > FILE_BYTES, "a follower misses nothing");
    }
}

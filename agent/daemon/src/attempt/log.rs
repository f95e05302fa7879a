//! Reading a log that somebody else is writing.
//!
//! The program writes to the file itself, so there is no event for new bytes that would come on every
//! file system; the file is looked at a few times a second instead.

use std::io::SeekFrom;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use nodus_protocol::event::LOG_PREFIX;
use nodus_protocol::line::{Line, LineBuffer};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::sync::CancellationToken;

/// Between two looks for new bytes.
const PAUSE: Duration = Duration::from_millis(100);
/// Most bytes that are handed over at once.
const CHUNK: usize = 64 * 1024;

/// The bytes of a log, from some offset on and as they are written.
#[derive(Debug)]
pub struct Follow {
    file: File,
    offset: u64,
    ended: CancellationToken,
    buffer: Vec<u8>,
}

impl Follow {
    /// Reads from `offset` on; goes on until `ended` is cancelled and all is read.
    ///
    /// With a token that is cancelled already, this just reads what is there.
    pub async fn open(path: &Path, offset: u64, ended: CancellationToken) -> std::io::Result<Self> {
        let mut file = File::open(path).await?;
        file.seek(SeekFrom::Start(offset)).await?;
        Ok(Self { file, offset, ended, buffer: vec![0; CHUNK] })
    }

    /// The next bytes; `None` when there will be no more. Loses nothing when it is given up.
    ///
    /// A log that was cut short by its user goes on from its new start.
    pub async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        loop {
            // Asked before reading: what was written before the end is then sure to be read.
            let last = self.ended.is_cancelled();
            self.file.seek(SeekFrom::Start(self.offset)).await?;
            let read = self.file.read(&mut self.buffer).await?;
            if read > 0 {
                self.offset += read as u64;
                return Ok(Some(Bytes::copy_from_slice(&self.buffer[..read])));
            }
            if self.file.metadata().await?.len() < self.offset {
                self.offset = 0;
            } else if last {
                return Ok(None);
            } else {
                tokio::select! {
                    () = self.ended.cancelled() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Where the next bytes will come from.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// The messages that a program which finds no socket prints into its log.
#[derive(Debug)]
pub struct Events {
    follow: Follow,
    lines: LineBuffer,
    /// Read and not looked at yet.
    pending: Bytes,
    /// Where in the log `pending` begins.
    position: u64,
    /// Just after the last line end that was passed.
    offset: u64,
}

impl Events {
    /// Starts at an [`offset`](Self::offset) that was had before, or at 0.
    pub async fn open(path: &Path, offset: u64, ended: CancellationToken) -> std::io::Result<Self> {
        let follow = Follow::open(path, offset, ended).await?;
        let (lines, pending) = (LineBuffer::new(), Bytes::new());
        Ok(Self { follow, lines, pending, position: offset, offset })
    }

    /// The next line that is a message, with its prefix; `None` when there will be no more.
    ///
    /// A last line without its end is no line: it may be half of one. Loses nothing when it is
    /// given up.
    pub async fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let piece = self.pending.split_to(end + 1);
                self.position += piece.len() as u64;
                self.offset = self.position;
                if let Some(line) = self.take_message(&piece) {
                    return Ok(Some(line));
                }
            }
            let rest = std::mem::take(&mut self.pending);
            self.position += rest.len() as u64;
            self.take_message(&rest);
            let Some(chunk) = self.follow.next().await? else { return Ok(None) };
            let start = self.follow.offset() - chunk.len() as u64;
            if start != self.position {
                // The log was cut short: what was read of its last line is void.
                (self.position, self.offset, self.lines) = (start, start, LineBuffer::new());
            }
            self.pending = chunk;
        }
    }

    /// Where to go on after a restart, so that no message comes twice and none is missed.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes bytes up to and with one line end, or some without any.
    fn take_message(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        self.lines.push(piece, &mut found);
        found.into_iter().find_map(|line| match line {
            Line::Whole(line) if line.starts_with(LOG_PREFIX.as_bytes()) => Some(line),
            Line::Whole(_) | Line::TooLong => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    async fn soon<T>(what: impl Future<Output = std::io::Result<T>>) -> T {
        tokio::time::timeout(Duration::from_secs(20), what).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn follow_gives_all_that_was_written_before_the_end() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        append(&path, "0123");
        let ended = CancellationToken::new();
        let mut follow = Follow::open(&path, 1, ended.clone()).await.unwrap();
        assert_eq!(soon(follow.next()).await.unwrap(), "123");
        let none = tokio::time::timeout(3 * PAUSE, follow.next()).await;
        assert!(none.is_err(), "waits while the attempt runs");
        append(&path, "45");
        ended.cancel();
        assert_eq!(soon(follow.next()).await.unwrap(), "45");
        assert_eq!(soon(follow.next()).await, None);
    }

    #[tokio::test]
    async fn follow_goes_on_at_the_start_of_a_log_that_was_cut_short() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        append(&path, "a long first line\n");
        let mut follow = Follow::open(&path, 0, CancellationToken::new()).await.unwrap();
        soon(follow.next()).await.unwrap();
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(soon(follow.next()).await.unwrap(), "new\n");
    }

    #[tokio::test]
    async fn messages_come_once_over_restarts() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        append(&path, "epoch 1\nnodus.event {\"a\":1}\r\n xnodus.event no\nnodus.event {\"a\"");
        let ended = CancellationToken::new();
        let mut events = Events::open(&path, 0, ended.clone()).await.unwrap();
        assert_eq!(soon(events.next()).await.unwrap(), b"nodus.event {\"a\":1}");
        let waiting = tokio::time::timeout(3 * PAUSE, events.next()).await;
        assert!(waiting.is_err(), "half a line is no message");

        let mut again = Events::open(&path, events.offset(), ended.clone()).await.unwrap();
        append(&path, ":2}\nnodus.event {\"a\":3}");
        assert_eq!(soon(again.next()).await.unwrap(), b"nodus.event {\"a\":2}");
        assert_eq!(soon(events.next()).await.unwrap(), b"nodus.event {\"a\":2}");
        ended.cancel();
        assert_eq!(soon(again.next()).await, None);
    }

    /// C64: a line without an end costs no memory, and the next one is read.
    #[tokio::test]
    async fn c64_an_endless_line_in_the_log() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        append(&path, &"nodus.event ".repeat(100_000));
        append(&path, "\nnodus.event {}\n");
        let ended = CancellationToken::new();
        ended.cancel();
        let mut events = Events::open(&path, 0, ended).await.unwrap();
        assert_eq!(soon(events.next()).await.unwrap(), b"nodus.event {}");
        assert_eq!(events.offset(), std::fs::metadata(&path).unwrap().len());
        assert_eq!(soon(events.next()).await, None);
    }
}

//! Server-sent events, as far as the control API uses them: `data` fields with one JSON object.

use std::collections::VecDeque;

use nodus_protocol::control::TimedEvent;

use super::Stream;
use crate::error::Result;

/// The longest line; an event is a few hundred bytes.
const MAX_LINE: usize = 1 << 20;

/// The most lines of one event; the control API sends one.
const MAX_LINES: usize = 16;

/// The events of one job, as they happen.
#[derive(Debug)]
pub struct Events {
    stream: Stream,
    parser: Parser,
    ready: VecDeque<TimedEvent>,
}

impl Events {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, parser: Parser::default(), ready: VecDeque::new() }
    }

    /// The next event; `None` when the agent ends the stream. Events of a kind that this version
    /// does not know are left out.
    ///
    /// # Errors
    /// Where the agent went away.
    pub async fn next(&mut self) -> Result<Option<TimedEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(bytes) = self.stream.next().await? else { return Ok(None) };
            let data = self.parser.feed(&bytes);
            self.ready.extend(data.iter().filter_map(|data| serde_json::from_str(data).ok()));
        }
    }
}

/// Bytes, split anywhere, to the data of whole events.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    overlong: bool,
    data: Vec<String>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                events.extend(self.end_of_line());
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            } else {
                self.overlong = true;
            }
        }
        events
    }

    /// An empty line ends an event.
    fn end_of_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.overlong) {
            return None;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return (!data.is_empty()).then(|| data.join("\n"));
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            if self.data.len() < MAX_LINES {
                self.data.push(String::from_utf8_lossy(data).into_owned());
            }
        }
        None // Comments, which keep the connection open, and fields of no interest.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8] = b": hello\n\ndata: {\"a\":1}\n\nid: 7\ndata:{\ndata: }\r\n\r\ndata: last\n";

    #[test]
    fn events_arrive_whole_however_the_bytes_are_split() {
        for size in 1..WIRE.len() {
            let mut parser = Parser::default();
            let events: Vec<_> = WIRE.chunks(size).flat_map(|piece| parser.feed(piece)).collect();
            assert_eq!(events, ["{\"a\":1}", "{\n}"], "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let mut parser = Parser::default();
        for _ in 0..3 {
            assert!(parser.feed(&vec![b'x'; MAX_LINE]).is_empty());
        }
        assert_eq!(parser.line.len(), MAX_LINE);
        assert_eq!(parser.feed(b"\n\ndata: 1\n\n"), ["1"]);
    }
}

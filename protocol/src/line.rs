//! Framing of the events protocol: one message a line, with a limit on the line.
//!
//! [`LineBuffer`] is fed whatever a read returns, in whatever pieces, and gives back whole lines.
//! It never holds more than one line's limit, so a client that sends no line end costs no memory.

/// The longest line in bytes, without its line end.
pub const MAX_LINE: usize = 64 * 1024;

/// What came out of the bytes that went in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end (`\n`, or `\r\n`); never empty, maybe not UTF-8.
    Whole(Vec<u8>),
    /// A line longer than [`MAX_LINE`], reported once, when the limit is passed.
    TooLong,
}

/// Puts lines together from pieces.
#[derive(Debug, Default)]
pub struct LineBuffer {
    partial: Vec<u8>,
    /// The rest of a line that was already reported as too long is thrown away.
    skipping: bool,
}

impl LineBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece of the stream and appends the lines that it completes to `lines`.
    ///
    /// Blank lines are dropped.
    pub fn push(&mut self, mut bytes: &[u8], lines: &mut Vec<Line>) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end], lines);
            self.finish(lines);
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes, lines);
    }

    /// Bytes after the last line end: a line that was never finished, which must not be executed.
    #[must_use]
    pub fn unfinished(&self) -> &[u8] {
        &self.partial
    }

    fn extend(&mut self, piece: &[u8], lines: &mut Vec<Line>) {
        if self.skipping {
            return;
        }
        // One more byte than the limit may be the `\r` of the line's end.
        if self.partial.len() + piece.len() > MAX_LINE + 1 {
            self.partial = Vec::new();
            self.skipping = true;
            lines.push(Line::TooLong);
        } else {
            self.partial.extend_from_slice(piece);
        }
    }

    fn finish(&mut self, lines: &mut Vec<Line>) {
        let skipped = std::mem::take(&mut self.skipping);
        let mut line = std::mem::take(&mut self.partial);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if line.len() > MAX_LINE {
            lines.push(Line::TooLong);
        } else if !skipped && !line.is_empty() {
            lines.push(Line::Whole(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Line>, Vec<u8>) {
        let mut buffer = LineBuffer::new();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push(piece, &mut lines);
        }
        (lines, buffer.unfinished().to_vec())
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    /// C63: the same results however the bytes are cut, with CRLF, blank lines and no last LF.
    #[test]
    fn c63_split_anywhere() {
        let text = "{\"a\":1}\r\n\n{\"note\":\"Ünïcödé\"}\nlast".as_bytes();
        let expected =
            (vec![whole("{\"a\":1}"), whole("{\"note\":\"Ünïcödé\"}")], b"last".to_vec());
        assert_eq!(feed([text]), expected);
        assert_eq!(feed(text.chunks(1)), expected);
    }

    /// C64: a limit on the line and not on the buffer, reported once, and what follows is read.
    #[test]
    fn c64_endless_line() {
        let mut buffer = LineBuffer::new();
        let mut lines = Vec::new();
        for _ in 0..1000 {
            buffer.push(&[b'a'; 4096], &mut lines);
        }
        assert_eq!(lines, [Line::TooLong]);
        assert!(buffer.unfinished().is_empty());
        buffer.push(b"\nnext\n", &mut lines);
        assert_eq!(lines, [Line::TooLong, whole("next")]);

        let long = "b".repeat(MAX_LINE * 9 / 10);
        let two = format!("{long}\n{long}\n");
        assert_eq!(feed([two.as_bytes()]).0, [whole(&long), whole(&long)]);
        let exact = format!("{}\r\n", "c".repeat(MAX_LINE));
        assert_eq!(feed([exact.as_bytes()]).0.len(), 1);
        let over = format!("{}\n", "c".repeat(MAX_LINE + 1));
        assert_eq!(feed([over.as_bytes()]).0, [Line::TooLong]);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(lines in prop::collection::vec("[a-z{}\":é]{0,40}", 0..8), cut in 1usize..16) {
            let text = lines.join("\n");
            prop_assert_eq!(feed([text.as_bytes()]), feed(text.as_bytes().chunks(cut)));
        }
    }
}

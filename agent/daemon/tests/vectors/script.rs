//! The files in `protocol/vectors`, as their README.md defines them.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One file.
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    vector: String,
    about: String,
}

/// One line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Step {
    Send(Send),
    Expect(Expect),
    Control(Control),
    Observe(Observe),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    #[allow(dead_code, reason = "tells this kind of step from the others")]
    from: Program,
    line: Option<String>,
    hex: Option<String>,
    end: Option<String>,
    pub(crate) pieces: Option<usize>,
    repeat: Option<Repeat>,
    pad: Option<usize>,
    times: Option<usize>,
    on: Option<String>,
    r#as: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Program {
    Program,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Repeat {
    text: String,
    count: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) expect: Value,
    on: Option<String>,
    r#as: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "control", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Control {
    Trigger {
        cause: nodus_protocol::checkpoint::Cause,
        #[serde(default)]
        urgent: bool,
        #[serde(default)]
        copy: Copied,
    },
    Close {
        on: Option<String>,
        r#as: Option<String>,
    },
}

/// How a copy is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Copied {
    #[default]
    Committed,
    Skipped,
    Failed,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "observe", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Observe {
    Subscribers { count: usize },
    Capture { acked: bool },
    NoCapture,
    End { outcome: String, reason: Option<String> },
    Progress { completed: u64, total: Option<u64> },
}

/// A connection, by its process and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) process: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(process: Option<&String>, name: Option<&String>) -> Self {
        let or = |given: Option<&String>, otherwise: &str| {
            given.map_or_else(|| otherwise.to_owned(), Clone::clone)
        };
        Self { process: or(process, "first"), name: or(name, "main") }
    }
}

impl Send {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.r#as.as_ref(), self.on.as_ref())
    }

    /// What goes over the wire, with the variables put in.
    pub(crate) fn bytes(&self, put_in: impl Fn(&str) -> String) -> Vec<u8> {
        if let Some(hex) = &self.hex {
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            return (0..hex.len()).step_by(2).map(byte).collect();
        }
        let mut line = put_in(self.line.as_ref().expect("line or hex"));
        if let Some(repeat) = &self.repeat {
            line.push_str(&repeat.text.repeat(repeat.count));
        }
        line.extend(std::iter::repeat_n(' ', self.pad.unwrap_or(0).saturating_sub(line.len())));
        line.push_str(self.end.as_deref().unwrap_or("\n"));
        line.repeat(self.times.unwrap_or(1)).into_bytes()
    }
}

impl Expect {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.r#as.as_ref(), self.on.as_ref())
    }
}

impl Script {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let head: Head = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(Some(head.vector.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
        assert!(!head.about.is_empty());
        let step = |line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {line}: {error}", path.display()))
        };
        Self { name: head.vector, steps: lines.map(step).collect() }
    }
}

//! Where a command reads its surroundings and where it writes.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::args::OutputFormat;
use crate::error::{Error, Result};
use crate::render::Style;

/// What a command takes from the process it runs in; read once.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Where it was typed.
    pub here: PathBuf,
    /// The environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub stderr_is_terminal: bool,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            // Only for what is relative; a directory that is gone is then named in an error.
            here: env::current_dir().unwrap_or_default(),
            environment: env::vars_os().collect(),
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// A variable that is there and not empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&OsString> {
        self.environment.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    /// The environment as a job gets it, and the names of the variables that are not text, which a
    /// job cannot get.
    #[must_use]
    pub fn text_environment(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let mut text = BTreeMap::new();
        let mut left_out = Vec::new();
        for (name, value) in &self.environment {
            match (name.to_str(), value.to_str()) {
                (Some(name), Some(value)) => {
                    text.insert(name.to_owned(), value.to_owned());
                }
                _ => left_out.push(name.to_string_lossy().into_owned()),
            }
        }
        (text, left_out)
    }
}

/// Where a command writes: results to standard output, all else to standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    format: OutputFormat,
    /// Colours of results.
    pub(crate) style: Style,
    /// Whether progress is drawn.
    pub(crate) progress: bool,
    /// Whether standard output is a terminal.
    pub(crate) stdout_is_terminal: bool,
}

impl Console {
    /// Colour needs a terminal and no `NO_COLOR`; progress needs a terminal.
    #[must_use]
    pub(crate) fn new(format: OutputFormat, around: &Surroundings) -> Self {
        let color = around.stdout_is_terminal && around.variable("NO_COLOR").is_none();
        let dumb = around.variable("TERM").is_some_and(|term| term == "dumb");
        Self {
            format,
            style: Style { color: color && !dumb },
            progress: around.stderr_is_terminal && !dumb,
            stdout_is_terminal: around.stdout_is_terminal,
        }
    }

    /// Whether programs read the results.
    #[must_use]
    pub(crate) fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints a result: the value for programs, or its text for people.
    ///
    /// # Errors
    /// Where standard output takes no more.
    pub(crate) fn result<T: Serialize + ?Sized>(
        &self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.is_json() {
            let json = serde_json::to_string_pretty(value);
            let json = json.expect("the types of the control API are JSON");
            return self.bytes(format!("{json}\n").as_bytes());
        }
        let mut text = text();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        self.bytes(text.as_bytes())
    }

    /// Prints bytes as they are.
    ///
    /// # Errors
    /// Where standard output takes no more.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|source| Error::io("write to", "standard output", source))
    }
}

/// Says something beside the results. A standard error that is closed is nobody's failure.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "nodus: {text}");
}

/// Writes a line beside the results, as it is.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Says why a command failed.
pub(crate) fn complain(error: &Error) {
    let _ = writeln!(io::stderr().lock(), "nodusctl: {}", error.sentence());
}

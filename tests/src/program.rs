//! Being a training program: the events socket, and a run in standalone mode.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::{kill_all, processes_of};
use crate::running::Running;
use crate::{Ctl, Done, wait};

/// One connection to an events socket, spoken line by line.
#[derive(Debug)]
pub struct Events {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Events {
    /// Connects as this very process: to the agent, a stranger to every job.
    ///
    /// # Errors
    /// Where nobody listens.
    pub fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::over)
    }

    /// Takes over a connection that another process made.
    #[must_use]
    pub fn over(stream: UnixStream) -> Self {
        stream.set_write_timeout(Some(wait::LONG)).expect("a limit above zero");
        Self { stream, unread: Vec::new() }
    }

    /// Sends bytes as they are. Panics where the agent neither reads nor closes.
    ///
    /// # Errors
    /// Where the agent closed the connection.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.stream.write_all(bytes);
        assert!(!sent.as_ref().is_err_and(is_pause), "the agent neither reads nor closes");
        sent
    }

    /// Sends one message.
    pub fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes()).expect("the agent takes messages");
    }

    /// Sends `checkpoint.subscribe` as the guide has it.
    pub fn subscribe(&mut self) {
        self.send(&json!({ "type": "checkpoint.subscribe" }));
    }

    /// Sends `checkpoint.subscribe`, and asks to be told the outcomes too.
    pub fn subscribe_notify(&mut self) {
        self.send(&json!({ "type": "checkpoint.subscribe", "notify": true }));
    }

    /// Sends `checkpoint.ack`.
    pub fn ack(&mut self, seq: u64) {
        self.send(&json!({ "type": "checkpoint.ack", "seq": seq }));
    }

    /// The next message within `limit`; `None` where none comes.
    ///
    /// # Errors
    /// `UnexpectedEof` where the agent closed the connection.
    pub fn next_within(&mut self, limit: Duration) -> io::Result<Option<Value>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return Ok(Some(serde_json::from_slice(&line).expect("the agent sends JSON")));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0_u8; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next message of this type; those before it are passed over.
    pub fn expect(&mut self, message_type: &str) -> Value {
        self.expect_any(&[message_type])
    }

    /// The next message of one of these types; those before it are passed over.
    pub fn expect_any(&mut self, types: &[&str]) -> Value {
        let end = Instant::now() + wait::LONG;
        let mut passed = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next_within(left) {
                Ok(Some(message)) if types.iter().any(|name| message["type"] == *name) => {
                    return message;
                }
                Ok(Some(message)) => passed.push(message),
                other => panic!("no {types:?} came ({other:?}); only {passed:?}"),
            }
        }
    }

    /// The seq of the next `checkpoint.request`.
    pub fn expect_request(&mut self) -> u64 {
        self.expect("checkpoint.request")["seq"].as_u64().expect("a request has a seq")
    }

    /// Panics if a message of this type comes within `period`.
    pub fn expect_no(&mut self, message_type: &str, period: Duration) {
        let end = Instant::now() + period;
        while let Ok(Some(message)) =
            self.next_within(end.saturating_duration_since(Instant::now()))
        {
            assert_ne!(message["type"], message_type, "it was not to come: {message}");
        }
    }

    /// Waits until the agent has closed the connection; what it says before is returned.
    pub fn expect_closed(&mut self) -> Vec<Value> {
        let end = Instant::now() + wait::LONG;
        let mut said = Vec::new();
        loop {
            match self.next_within(end.saturating_duration_since(Instant::now())) {
                Ok(Some(message)) => said.push(message),
                Ok(None) => panic!("the agent did not close the connection"),
                Err(_) => return said,
            }
        }
    }

    /// Answers each request until the agent closes the connection, as a diligent program does.
    pub fn answer_all(mut self) {
        std::thread::spawn(move || {
            loop {
                match self.next_within(wait::LONG) {
                    Ok(Some(message)) if message["type"] == "checkpoint.request" => {
                        let seq = message["seq"].as_u64().expect("a request has a seq");
                        self.ack(seq);
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        });
    }

    /// Closes one direction, or both.
    pub fn shut(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how);
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A directory in which one job is run in standalone mode, as often as a test likes.
#[derive(Debug)]
pub struct Standalone {
    home: TempDir,
    name: String,
    options: Vec<String>,
}

impl Standalone {
    /// For the job `name`, with nothing there yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let home = TempDir::with_prefix("nodus-test-").expect("a temporary directory");
        Self { home, name: name.to_owned(), options: Vec::new() }
    }

    /// With another option of `nodusctl run` in each run.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// With another variable in the program's environment.
    #[must_use]
    pub fn env(self, name: &str, value: &str) -> Self {
        self.option("--env").option(&format!("{name}={value}"))
    }

    /// Where the checkpoints go.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    /// Where the job's own directories go.
    #[must_use]
    pub fn state_root(&self) -> PathBuf {
        self.home.path().join("jobs")
    }

    /// The state directory of the job.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.state_root().join(&self.name).join("state")
    }

    /// A directory of the test's own beside them.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The processes that a run of it is made of, with their command lines.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of(self.home.path())
    }

    /// Starts the run: the same command each time.
    pub fn run(&self, program: &[&str]) -> Running {
        let mut command = Ctl::standalone(self.home.path()).command();
        command.args(["run", "--standalone", "--name", &self.name]);
        command.arg("--store").arg(self.store()).arg("--state-root").arg(self.state_root());
        command.args(&self.options).arg("--").args(program);
        Running::start(&mut command)
    }

    /// Runs `nodusctl` on the store, with no agent.
    pub fn ctl(&self, args: &[&str]) -> Done {
        let store = self.store();
        let store = store.to_str().expect("a temporary directory has a plain name");
        Ctl::standalone(self.home.path()).run(&[args, &["--store", store]].concat())
    }

    /// `checkpoint list` as JSON.
    pub fn checkpoints(&self) -> Vec<Value> {
        let list = self.ctl(&["checkpoint", "list", &self.name, "-o", "json"]).ok().json();
        crate::ctl::checkpoints_of(&list)
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        kill_all(self.home.path());
    }
}

impl Running {
    /// Presses Ctrl-C: for a run in standalone mode.
    pub fn ctrl_c(&self) {
        self.signal(Signal::INT);
    }
}

//! Plays one file: acts as the programs and compares what the agent sends and does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nodus_protocol::checkpoint::Outcome;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use crate::agent::{Agent, trigger};
use crate::script::{Control, Expect, Key, Observe, Script, Send, Step};
use crate::{RELAY_SOCKET, RELAY_TEST};

const SOON: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_millis(200);

struct Connection {
    reader: BufReader<Box<dyn AsyncRead + std::marker::Send + Unpin>>,
    writer: Box<dyn AsyncWrite + std::marker::Send + Unpin>,
    /// The process at this end, where it is another one. Ends when the connection is dropped.
    _process: Option<Child>,
}

pub(crate) struct Player {
    socket: PathBuf,
    agent: Agent,
    connections: HashMap<Key, Connection>,
    variables: HashMap<String, u64>,
}

impl Player {
    pub(crate) fn new(socket: &Path, agent: Agent) -> Self {
        let (connections, variables) = (HashMap::new(), HashMap::new());
        Self { socket: socket.to_owned(), agent, connections, variables }
    }

    pub(crate) async fn play(mut self, script: &Script) -> Result<(), String> {
        for (index, step) in script.steps.iter().enumerate() {
            let done = match step {
                Step::Send(send) => self.send(send).await,
                Step::Expect(expect) => self.expect(expect).await,
                Step::Control(control) => self.control(control),
                Step::Observe(observe) => self.observe(observe).await,
            };
            // The head is line 1.
            done.map_err(|error| format!("{}:{}: {error}", script.name, index + 2))?;
        }
        Ok(())
    }

    async fn connection(&mut self, key: Key) -> &mut Connection {
        if !self.connections.contains_key(&key) {
            let connection = if key.process == "first" {
                Connection::own(&self.socket).await
            } else {
                Connection::of_another_process(&self.socket)
            };
            self.connections.insert(key.clone(), connection);
        }
        self.connections.get_mut(&key).expect("was just put in")
    }

    async fn send(&mut self, send: &Send) -> Result<(), String> {
        let variables = self.variables.clone();
        let bytes = send.bytes(|line| put_in(line, &variables));
        let connection = self.connection(send.key()).await;
        for piece in bytes.chunks(send.pieces.unwrap_or(bytes.len()).max(1)) {
            // A connection that the agent has closed is for the expectations to see.
            let written = connection.writer.write_all(piece).await;
            if written.is_err() || connection.writer.flush().await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn expect(&mut self, step: &Expect) -> Result<(), String> {
        let connection = self.connection(step.key()).await;
        match &step.expect {
            Value::String(word) if word == "nothing" => {
                match timeout(QUIET, connection.line()).await {
                    Err(_) => Ok(()),
                    Ok(line) => Err(format!("expected nothing, got {line:?}")),
                }
            }
            Value::String(word) if word == "closed" => match connection.soon().await? {
                None => Ok(()),
                Some(line) => Err(format!("expected the end, got {line:?}")),
            },
            Value::Object(expected) => {
                let line = connection.soon().await?.ok_or("the connection was closed")?;
                let found = serde_json::from_str(&line).map_err(|error| error.to_string())?;
                let matched = self.matches(expected, &found);
                matched.map_err(|error| format!("{error}, in {}", line.trim_end()))
            }
            other => Err(format!("cannot expect {other}")),
        }
    }

    fn matches(
        &mut self,
        expected: &Map<String, Value>,
        found: &Map<String, Value>,
    ) -> Result<(), String> {
        for (key, expected) in expected {
            let found = found.get(key).ok_or_else(|| format!("{key} is missing"))?;
            let equal = match expected.as_str().and_then(|text| text.strip_prefix('$')) {
                None => expected == found,
                Some(variable) => match variable.strip_suffix(".text") {
                    None => found.as_u64().is_some_and(|number| self.is(variable, number)),
                    Some(variable) => found
                        .as_str()
                        .and_then(|text| text.parse().ok().filter(|n: &u64| n.to_string() == text))
                        .is_some_and(|number| self.is(variable, number)),
                },
            };
            if !equal {
                return Err(format!("{key} should be {expected}"));
            }
        }
        Ok(())
    }

    /// Whether the variable has this value; it gets it where it has none.
    fn is(&mut self, variable: &str, number: u64) -> bool {
        *self.variables.entry(variable.to_owned()).or_insert(number) == number
    }

    fn control(&mut self, control: &Control) -> Result<(), String> {
        match control {
            Control::Trigger { cause, urgent, copy } => {
                let trigger = (trigger(*cause, *urgent), *copy);
                self.agent.triggers.send(trigger).map_err(|_| "the agent is gone".to_owned())
            }
            Control::Close { on, r#as } => {
                let key = Key::new(r#as.as_ref(), on.as_ref());
                let closed = self.connections.remove(&key);
                closed.map(drop).ok_or_else(|| "closes what was never opened".to_owned())
            }
        }
    }

    async fn observe(&mut self, observe: &Observe) -> Result<(), String> {
        match observe {
            Observe::Subscribers { count } => {
                let reached = self.agent.subscribers.wait_for(|now| now == count);
                let reached = timeout(SOON, reached).await.is_ok_and(|found| found.is_ok());
                let now = *self.agent.subscribers.borrow();
                if reached { Ok(()) } else { Err(format!("{now} subscribers instead of {count}")) }
            }
            Observe::Capture { acked } => same(acked, &next(&mut self.agent.captures).await?),
            Observe::NoCapture => match timeout(QUIET, self.agent.captures.recv()).await {
                Err(_) => Ok(()),
                Ok(_) => Err("the copy has begun".to_owned()),
            },
            Observe::Progress { completed, total } => {
                let progress = next(&mut self.agent.progress).await?;
                same(&(*completed, *total), &(progress.completed, progress.total))
            }
            Observe::End { outcome, reason } => {
                let (found, why) = names(&next(&mut self.agent.ends).await?);
                same(outcome, &found)?;
                if reason.is_some() { same(reason, &why) } else { Ok(()) }
            }
        }
    }
}

impl Connection {
    async fn own(socket: &Path) -> Self {
        let (reader, writer) = UnixStream::connect(socket).await.unwrap().into_split();
        let reader = BufReader::new(Box::new(reader) as Box<_>);
        Self { reader, writer: Box::new(writer), _process: None }
    }

    /// This test program again, which connects and passes everything on.
    fn of_another_process(socket: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([RELAY_TEST, "--exact", "--ignored", "--nocapture"])
            .env(RELAY_SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let reader = BufReader::new(Box::new(process.stderr.take().unwrap()) as Box<_>);
        let writer = Box::new(process.stdin.take().unwrap());
        Self { reader, writer, _process: Some(process) }
    }

    /// The next line; `None` at the end of the connection.
    async fn line(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).await {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line)),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn soon(&mut self) -> Result<Option<String>, String> {
        timeout(SOON, self.line()).await.map_err(|_| "nothing came".to_owned())?
    }
}

fn put_in(line: &str, variables: &HashMap<String, u64>) -> String {
    let put = |line: String, (name, value): (&String, &u64)| {
        line.replace(&format!("${name}"), &value.to_string())
    };
    let line = variables.iter().fold(line.to_owned(), put);
    assert!(!line.contains('$'), "an unknown variable in {line}");
    line
}

async fn next<T>(queue: &mut UnboundedReceiver<T>) -> Result<T, String> {
    let next = timeout(SOON, queue.recv()).await.map_err(|_| "it did not happen".to_owned())?;
    next.ok_or_else(|| "the agent is gone".to_owned())
}

fn same<T: PartialEq + std::fmt::Debug>(expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("expected {expected:?}, got {found:?}")) }
}

/// An outcome and its reason as they are on every surface.
fn names(outcome: &Outcome) -> (String, Option<String>) {
    match outcome {
        Outcome::Committed(_) => ("Committed".to_owned(), None),
        Outcome::Skipped { reason } => ("Skipped".to_owned(), Some(reason.to_string())),
        Outcome::Failed { reason, .. } => ("Failed".to_owned(), Some(reason.to_string())),
    }
}

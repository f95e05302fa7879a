//! The messages on the events socket, one JSON object a line (docs/protocol.md).
//!
//! A program that knows only `checkpoint.subscribe`, `checkpoint.request` and `checkpoint.ack`
//! works in full; everything else is optional, and unknown types and fields are ignored both ways.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Consistency, FailureReason, Skipped};

/// What a line that holds an event begins with where a program found no socket and printed it.
pub const LOG_PREFIX: &str = "nodus.event ";

/// The longest `message` of an ack or `client` of a subscription that is kept, in characters.
const MAX_TEXT: usize = 1024;

/// A message from the program, with the `id` that makes a repeated one count once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromProgram {
    /// Unique to the message, where the client sends one.
    pub id: Option<String>,
    /// What it says.
    pub message: ProgramMessage,
}

/// What a program can say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramMessage {
    /// `checkpoint.subscribe`: ask me before each checkpoint.
    Subscribe(Subscription),
    /// `checkpoint.ack`, or `checkpoint.ready` of the published client: my files are complete.
    Ack(Ack),
    /// `checkpoint.now`: please take one.
    Now,
    /// `progress`: the cursor of a Restartable job, the expected run time of any.
    Progress(Progress),
    /// A type that this version does not know; to be ignored.
    Unknown(String),
}

/// The options of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// Also send `captured`, `committed`, `failed` and `skipped`.
    pub notify: bool,
    /// Which rank of a gang this is.
    pub rank: Option<u32>,
    /// What the client calls itself.
    pub client: Option<String>,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The request it answers.
    pub seq: u64,
    /// What the save came to.
    pub status: AckStatus,
    /// The program's own words, shown to people.
    pub message: Option<String>,
    /// The program's own step.
    pub step: Option<u64>,
}

/// What a save came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckStatus {
    /// The files are complete.
    #[default]
    Saved,
    /// The files are complete, and as they were at the last request.
    Unchanged,
    /// The files may be half written: do not copy them.
    Failed,
}

/// How far the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Units of work done.
    pub completed: u64,
    /// Units of work in all, if the program knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// Why a line was not understood. Its text goes back to the client in an `error` message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// Not a JSON object in UTF-8.
    #[error("not a JSON object: {0}")]
    NotJson(String),
    /// A field that the type needs is missing or has the wrong type.
    #[error("{message_type}: field {field:?} is missing or is not {expected}")]
    Field {
        /// The message's `type`.
        message_type: String,
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The line is longer than [`crate::line::MAX_LINE`].
    #[error("the line is longer than 65536 bytes")]
    TooLong,
}

impl FromProgram {
    /// Reads one line, without its line end.
    ///
    /// # Errors
    /// Where the line is not a message; the connection goes on.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidMessage> {
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| InvalidMessage::NotJson(error.to_string()))?;
        let Value::Object(fields) = &value else {
            return Err(InvalidMessage::NotJson("it is another kind of value".to_owned()));
        };
        let Some(Value::String(message_type)) = fields.get("type") else {
            return Err(InvalidMessage::Field {
                message_type: "message".to_owned(),
                field: "type",
                expected: "a string",
            });
        };
        let fields = Fields { message_type, fields };
        let message = match message_type.as_str() {
            "checkpoint.subscribe" => ProgramMessage::Subscribe(fields.subscription()?),
            "checkpoint.ack" | "checkpoint.ready" => ProgramMessage::Ack(fields.ack()?),
            "checkpoint.now" => ProgramMessage::Now,
            "progress" => ProgramMessage::Progress(fields.progress()?),
            other => ProgramMessage::Unknown(other.to_owned()),
        };
        Ok(Self { id: fields.text("id"), message })
    }

    /// Reads an event that a program without a socket printed to its log, or `None` where the line
    /// is ordinary output.
    #[must_use]
    pub fn parse_log_line(line: &[u8]) -> Option<Result<Self, InvalidMessage>> {
        line.strip_prefix(LOG_PREFIX.as_bytes()).map(Self::parse)
    }
}

struct Fields<'a> {
    message_type: &'a str,
    fields: &'a serde_json::Map<String, Value>,
}

impl Fields<'_> {
    fn subscription(&self) -> Result<Subscription, InvalidMessage> {
        let rank = self.number("rank")?.map(|rank| {
            u32::try_from(rank).map_err(|_| self.wrong("rank", "a number below 4294967296"))
        });
        Ok(Subscription {
            notify: self.fields.get("notify").and_then(Value::as_bool).unwrap_or(false),
            rank: rank.transpose()?,
            client: self.text("client"),
        })
    }

    fn ack(&self) -> Result<Ack, InvalidMessage> {
        let by_id = || match self.fields.get("requestId") {
            Some(Value::String(id)) => id.parse().ok(),
            Some(Value::Number(id)) => id.as_u64(),
            _ => None,
        };
        let seq = self.number("seq")?.or_else(by_id);
        Ok(Ack {
            seq: seq.ok_or_else(|| self.wrong("seq", "a number"))?,
            status: self.ack_status()?,
            message: self.text("message"),
            step: self.fields.get("step").and_then(Value::as_u64),
        })
    }

    fn ack_status(&self) -> Result<AckStatus, InvalidMessage> {
        match self.fields.get("status") {
            None | Some(Value::Null) => Ok(AckStatus::Saved),
            Some(status) => AckStatus::deserialize(status)
                .map_err(|_| self.wrong("status", "\"saved\", \"unchanged\" or \"failed\"")),
        }
    }

    fn progress(&self) -> Result<Progress, InvalidMessage> {
        let completed = self.amount("completed")?;
        Ok(Progress {
            completed: completed.ok_or_else(|| self.wrong("completed", "a number"))?,
            total: self.amount("total")?,
        })
    }

    /// How much of something: the published client lets programs report fractions, of which only
    /// what is whole counts, so that a cursor never goes past what is done.
    fn amount(&self, field: &'static str) -> Result<Option<u64>, InvalidMessage> {
        match self.fields.get(field).and_then(Value::as_f64).map(f64::floor).and_then(whole) {
            Some(below) if self.number(field).is_err() => Ok(Some(below)),
            _ => self.number(field),
        }
    }

    /// A whole number, written either way (`7`, `7.0`); absent and null are the same.
    fn number(&self, field: &'static str) -> Result<Option<u64>, InvalidMessage> {
        let exact = |value: &Value| value.as_u64().or_else(|| whole(value.as_f64()?));
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match exact(value) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(field, "a whole number")),
            },
        }
    }

    fn text(&self, field: &str) -> Option<String> {
        let text = self.fields.get(field)?.as_str()?;
        Some(text.chars().take(MAX_TEXT).collect())
    }

    fn wrong(&self, field: &'static str, expected: &'static str) -> InvalidMessage {
        InvalidMessage::Field { message_type: self.message_type.to_owned(), field, expected }
    }
}

/// The number, where it is whole and exactly representable.
fn whole(number: f64) -> Option<u64> {
    let exact = number >= 0.0 && number.fract() == 0.0 && number <= 9_007_199_254_740_992.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked above
    exact.then_some(number as u64)
}

/// What the agent says to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentMessage {
    /// Make your files complete, then ack.
    #[serde(rename = "checkpoint.request")]
    Request {
        /// The number of the checkpoint.
        seq: u64,
        /// `seq` as text: the name by which the published client answers.
        request_id: String,
        /// Whether the capacity is about to go away.
        urgent: bool,
        /// Urgent only: how long until the agent goes on without the ack.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// The copy no longer depends on your files: write in place again.
    #[serde(rename = "checkpoint.captured")]
    Captured {
        /// The number of the checkpoint.
        seq: u64,
    },
    /// The checkpoint exists.
    #[serde(rename = "checkpoint.committed")]
    Committed {
        /// The number of the checkpoint.
        seq: u64,
        /// How far it can be trusted.
        consistency: Consistency,
        /// Logical bytes of its files.
        bytes: u64,
        /// Bytes that it added to the store.
        stored_bytes: u64,
    },
    /// The checkpoint does not exist.
    #[serde(rename = "checkpoint.failed")]
    Failed {
        /// The number of the checkpoint.
        seq: u64,
        /// For programs.
        reason: FailureReason,
        /// For people.
        message: String,
    },
    /// There was nothing to store.
    #[serde(rename = "checkpoint.skipped")]
    Skipped {
        /// The number of the checkpoint.
        seq: u64,
        /// Why.
        reason: Skipped,
    },
    /// Your line was not understood; the connection stays.
    #[serde(rename = "error")]
    Error {
        /// What was wrong with it.
        message: String,
    },
}

impl AgentMessage {
    /// A request, under both of its names.
    #[must_use]
    pub fn request(seq: u64, urgent: bool, deadline: Option<Duration>) -> Self {
        let deadline_ms = deadline
            .filter(|_| urgent)
            .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        Self::Request { seq, request_id: seq.to_string(), urgent, deadline_ms }
    }

    /// The message as a line, with its line end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line =
            serde_json::to_string(self).expect("strings, numbers and unit variants only");
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(text: &str) -> ProgramMessage {
        FromProgram::parse(text.as_bytes()).unwrap().message
    }

    fn refused(text: &str) -> String {
        FromProgram::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_three_messages() {
        assert_eq!(
            message(r#"{"type":"checkpoint.subscribe"}"#),
            ProgramMessage::Subscribe(Subscription::default())
        );
        let ack = Ack { seq: 7, status: AckStatus::Saved, message: None, step: None };
        assert_eq!(message(r#"{"type": "checkpoint.ack", "seq": 7}"#), ProgramMessage::Ack(ack));
        assert_eq!(
            AgentMessage::request(7, false, Some(Duration::from_secs(1))).to_line(),
            "{\"type\":\"checkpoint.request\",\"seq\":7,\"requestId\":\"7\",\"urgent\":false}\n"
        );
        assert_eq!(
            AgentMessage::request(7, true, Some(Duration::from_secs(1))).to_line(),
            "{\"type\":\"checkpoint.request\",\"seq\":7,\"requestId\":\"7\",\"urgent\":true,\"deadlineMs\":1000}\n"
        );
    }

    #[test]
    fn the_published_client() {
        let ready = r#"{"id":"evt-12-3","type":"checkpoint.ready","requestId":"7"}"#;
        let parsed = FromProgram::parse(ready.as_bytes()).unwrap();
        assert_eq!(parsed.id.as_deref(), Some("evt-12-3"));
        assert!(matches!(parsed.message, ProgramMessage::Ack(Ack { seq: 7, .. })));
        assert_eq!(
            message(r#"{"id":"evt-1-1","type":"progress","completed":3}"#),
            ProgramMessage::Progress(Progress { completed: 3, total: None })
        );
        assert_eq!(
            message(r#"{"id":"evt-1-2","type":"progress","completed":3.9,"total":9.5}"#),
            ProgramMessage::Progress(Progress { completed: 3, total: Some(9) })
        );
        let printed = b"nodus.event {\"type\":\"progress\",\"completed\":3,\"total\":9}";
        let parsed = FromProgram::parse_log_line(printed).unwrap().unwrap();
        assert!(matches!(parsed.message, ProgramMessage::Progress(Progress { completed: 3, .. })));
        assert!(FromProgram::parse_log_line(b"step 3/9").is_none());
    }

    #[test]
    fn what_is_not_understood() {
        assert!(refused("nonsense").contains("not a JSON object"));
        assert!(refused("[1]").contains("not a JSON object"));
        assert!(refused("{}").contains("\"type\""));
        assert!(refused(r#"{"type":"checkpoint.ack"}"#).contains("\"seq\""));
        assert!(refused(r#"{"type":"checkpoint.ack","seq":-1}"#).contains("\"seq\""));
        assert!(
            refused(r#"{"type":"checkpoint.ack","seq":1,"status":"ok"}"#).contains("unchanged")
        );
        assert!(refused(r#"{"type":"progress"}"#).contains("\"completed\""));
        assert_eq!(
            message(r#"{"type":"future.thing","x":1}"#),
            ProgramMessage::Unknown("future.thing".to_owned())
        );
    }

    /// C64: a line nested deeper than any real message is refused without using up the stack.
    #[test]
    fn c64_deep_nesting() {
        let deep = format!("{{\"type\":\"x\",\"a\":{}", "[".repeat(30_000));
        assert!(refused(&deep).contains("not a JSON object"));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = FromProgram::parse(&line);
        }

        #[test]
        fn unknown_fields_change_nothing(key in "[a-z]{6,9}", value in 0u64..9) {
            prop_assume!(!["status", "message"].contains(&key.as_str()));
            let plain = message(r#"{"type":"checkpoint.ack","seq":4}"#);
            let more = format!(r#"{{"{key}x":{value},"type":"checkpoint.ack","seq":4}}"#);
            prop_assert_eq!(message(&more), plain);
        }
    }
}

//! From the capture to the end of the copy.

use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::Outcome;
use nodus_protocol::event::AgentMessage;

use super::event::Cost;
use super::request::Wish;

/// A checkpoint that is past its request.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) seq: u64,
    pub(super) wish: Wish,
    pub(super) captured: Option<Instant>,
    begun: Instant,
    /// Since when a running program is held up; `None` where it had ended.
    held_up_since: Option<Instant>,
}

impl Copying {
    /// Of a program that has ended.
    pub(super) fn after_end(seq: u64, wish: Wish, now: Instant) -> Self {
        Self { seq, wish, captured: None, begun: now, held_up_since: None }
    }

    /// Of a running program, which is held up since `since`.
    pub(super) fn of_running(seq: u64, wish: Wish, now: Instant, since: Instant) -> Self {
        Self { held_up_since: Some(since), ..Self::after_end(seq, wish, now) }
    }

    /// How long the program has been held up.
    pub(super) fn held_up(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.held_up_since.unwrap_or(self.begun))
    }

    /// What it cost, where that says something about the next one.
    pub(super) fn cost(&self, now: Instant, outcome: &Outcome) -> Option<Cost> {
        let since = self.held_up_since?;
        let committed = match outcome {
            Outcome::Committed(_) => true,
            Outcome::Failed { .. } => false,
            Outcome::Skipped { .. } => return None,
        };
        let held_up = self.captured.unwrap_or(now).saturating_duration_since(since);
        let until_committed = now.saturating_duration_since(since);
        Some(Cost { held_up, until_committed, committed })
    }
}

/// How subscribers that want to know are told of the end.
pub(super) fn end_message(seq: u64, outcome: &Outcome) -> AgentMessage {
    match outcome {
        Outcome::Committed(committed) => AgentMessage::Committed {
            seq,
            consistency: committed.consistency,
            bytes: committed.bytes,
            stored_bytes: committed.stored_bytes,
        },
        Outcome::Skipped { reason } => AgentMessage::Skipped { seq, reason: *reason },
        Outcome::Failed { reason, message } => {
            AgentMessage::Failed { seq, reason: *reason, message: message.clone() }
        }
    }
}

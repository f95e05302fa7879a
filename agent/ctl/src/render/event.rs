//! One line an event: what a standalone run says on standard error, and `events`.

use jiff::Timestamp;
use nodus_protocol::checkpoint::{Committed, Outcome};
use nodus_protocol::control::{JobEvent, TimedEvent};
use nodus_protocol::event::Progress;
use nodus_protocol::job::Phase;
use nodus_protocol::units::{ByteSize, format_duration};
use std::time::Duration;

use super::text::{between, count, safe};

/// Whether an event is only of interest to somebody who asked for every one: what it announces is
/// told by another event, or is routine.
#[must_use]
pub fn is_trivial(event: &JobEvent) -> bool {
    match event {
        JobEvent::Phase { phase, message, .. } => {
            // A message is not told elsewhere.
            message.is_none()
                && matches!(
                    phase,
                    Phase::Pending | Phase::Running | Phase::Suspending | Phase::Recovering
                )
        }
        JobEvent::CheckpointRequested { urgent, .. } => !urgent,
        JobEvent::CheckpointCaptured { .. } | JobEvent::Progress(_) => true,
        _ => false,
    }
}

/// The event as one line without an end, reasons by their names; `None` for a kind of event that
/// this version does not know.
#[must_use]
pub fn event_line(event: &TimedEvent) -> Option<String> {
    let text = match &event.event {
        JobEvent::Phase { phase, reason, message } => {
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("{phase}{reason}{}", sentence(message.as_ref()))
        }
        JobEvent::Restoring { seq, bytes } => {
            format!("restoring checkpoint {seq}, {}", ByteSize(*bytes).approx())
        }
        JobEvent::AttemptStarted { attempt, restored_from, restore_reason } => {
            let from = match restored_from {
                Some(seq) => format!(" from checkpoint {seq}"),
                None => String::new(),
            };
            format!("attempt {attempt} started{from}{}", sentence(restore_reason.as_ref()))
        }
        JobEvent::AttemptEnded { attempt, end } => format!("attempt {attempt} ended: {end}"),
        JobEvent::CheckpointRequested { seq, cause, urgent, subscribers } => {
            let urgent = if *urgent { "urgent " } else { "" };
            let asked = count(u64::from(*subscribers), "subscriber");
            format!("{urgent}checkpoint {seq} requested: {cause}, {asked} asked")
        }
        JobEvent::CheckpointCaptured { seq, held_up_ms } => {
            format!("checkpoint {seq} captured, program held up for {}", milliseconds(*held_up_ms))
        }
        JobEvent::CheckpointEnded { seq, cause, outcome, took_ms } => {
            format!("checkpoint {seq} {}, {cause}, took {}", ended(outcome), milliseconds(*took_ms))
        }
        JobEvent::Notice { source, deadline } => notice(source, *deadline, event.at),
        JobEvent::Progress(Progress { completed, total: Some(total) }) => {
            format!("progress {completed}/{total}")
        }
        JobEvent::Progress(Progress { completed, total: None }) => format!("progress {completed}"),
        JobEvent::Warning { message } => format!("warning: {}", safe(message)),
        _ => return None,
    };
    Some(text)
}

fn notice(source: &str, deadline: Option<Timestamp>, now: Timestamp) -> String {
    let source = safe(source);
    match deadline {
        Some(deadline) => {
            let left = format_duration(between(now, deadline));
            format!("notice from {source}: the capacity goes away in {left}")
        }
        None => format!("notice from {source}: the capacity is about to go away"),
    }
}

fn milliseconds(number: u64) -> String {
    format_duration(Duration::from_millis(number))
}

fn sentence(text: Option<&String>) -> String {
    text.map(|text| format!(": {}", safe(text))).unwrap_or_default()
}

/// How a checkpoint ended: `committed (Acked, 12 files, 1.46Gi, 4.00Ki stored)`.
pub(super) fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Committed(Committed { consistency, files, bytes, stored_bytes }) => format!(
            "committed ({consistency}, {}, {}, {} stored)",
            count(*files, "file"),
            ByteSize(*bytes).approx(),
            ByteSize(*stored_bytes).approx()
        ),
        Outcome::Skipped { reason } => format!("skipped ({reason})"),
        Outcome::Failed { reason, message } => format!("failed ({reason}: {})", safe(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::at;
    use nodus_protocol::checkpoint::{Cause, Consistency, FailureReason, Skipped};
    use nodus_protocol::job::{AttemptEnd, Interruption, StopReason};

    fn check(event: JobEvent, expected: &str) {
        let event = TimedEvent { at: at("12:00:00"), event };
        assert_eq!(event_line(&event).as_deref(), Some(expected));
    }

    fn ended_with(outcome: Outcome) -> JobEvent {
        JobEvent::CheckpointEnded { seq: 3, cause: Cause::Suspend, outcome, took_ms: 2500 }
    }

    #[test]
    fn each_event_is_one_line_with_its_reason_by_name() {
        check(
            JobEvent::Phase {
                phase: Phase::Failed,
                reason: Some(StopReason::NoProgress),
                message: Some("5 attempts committed nothing new".to_owned()),
            },
            "Failed (NoProgress): 5 attempts committed nothing new",
        );
        check(
            JobEvent::Phase { phase: Phase::Suspended, reason: None, message: None },
            "Suspended",
        );
        check(JobEvent::Restoring { seq: 7, bytes: 1_572_864 }, "restoring checkpoint 7, 1.50Mi");
        check(
            JobEvent::AttemptStarted {
                attempt: 2,
                restored_from: Some(4),
                restore_reason: Some("5 is damaged".to_owned()),
            },
            "attempt 2 started from checkpoint 4: 5 is damaged",
        );
        let end = AttemptEnd::Interrupted { by: Interruption::Reclaim };
        check(JobEvent::AttemptEnded { attempt: 1, end }, "attempt 1 ended: Reclaim");
        check(
            JobEvent::CheckpointRequested {
                seq: 3,
                cause: Cause::Suspend,
                urgent: true,
                subscribers: 1,
            },
            "urgent checkpoint 3 requested: Suspend, 1 subscriber asked",
        );
        let deadline = Some(at("12:02:00"));
        check(
            JobEvent::Notice { source: "SIGTERM".to_owned(), deadline },
            "notice from SIGTERM: the capacity goes away in 2m",
        );
        check(
            JobEvent::Notice { source: "SIGUSR1".to_owned(), deadline: None },
            "notice from SIGUSR1: the capacity is about to go away",
        );
        check(JobEvent::Warning { message: "a\nb".to_owned() }, "warning: a\\nb");
    }

    #[test]
    fn a_checkpoint_says_how_it_ended() {
        check(
            ended_with(Outcome::Committed(Committed {
                consistency: Consistency::Torn,
                files: 1,
                bytes: 17,
                stored_bytes: 1024,
            })),
            "checkpoint 3 committed (Torn, 1 file, 17B, 1.00Ki stored), Suspend, took 2s 500ms",
        );
        check(
            ended_with(Outcome::Skipped { reason: Skipped::Empty }),
            "checkpoint 3 skipped (Empty), Suspend, took 2s 500ms",
        );
        check(
            ended_with(Outcome::Failed {
                reason: FailureReason::CheckpointTooLarge,
                message: "2.00Gi found, 1.00Gi allowed".to_owned(),
            }),
            "checkpoint 3 failed (CheckpointTooLarge: 2.00Gi found, 1.00Gi allowed), Suspend, \
             took 2s 500ms",
        );
    }

    #[test]
    fn no_outcome_is_trivial() {
        for reason in [Skipped::Empty, Skipped::Unchanged] {
            assert!(!is_trivial(&ended_with(Outcome::Skipped { reason })));
        }
        assert!(is_trivial(&JobEvent::CheckpointCaptured { seq: 1, held_up_ms: 1 }));
        assert!(!is_trivial(&JobEvent::Notice { source: "x".to_owned(), deadline: None }));
    }
}

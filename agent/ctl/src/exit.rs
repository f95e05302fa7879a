//! The exit statuses of `nodusctl`. They are a contract: scripts and batch systems act on them.

use std::process::ExitCode;

use nodus_protocol::checkpoint::Outcome;
use nodus_protocol::control::{JobDetail, LastOutcome};
use nodus_protocol::job::{AttemptEnd, Phase, StopReason};

/// A status of this process; `docs/cli.md` lists what each means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    /// It was done.
    pub const DONE: Self = Self(0);
    /// It was attempted and failed.
    pub const FAILED: Self = Self(1);
    /// The command line or the job description is wrong; nothing was done.
    pub const USAGE: Self = Self(2);
    /// No agent answers.
    pub const NO_AGENT: Self = Self(3);
    /// No job or checkpoint of that name.
    pub const NOT_FOUND: Self = Self(4);
    /// Not possible now, or not allowed.
    pub const REFUSED: Self = Self(5);
    /// `checkpoint now` had nothing to store.
    pub const SKIPPED: Self = Self(6);
    /// `run`: the job was suspended or interrupted; the same command again goes on. The value is
    /// that of `EX_TEMPFAIL`, which batch systems take as "try again".
    pub const RESUMABLE: Self = Self(75);
    /// `run`: the job is over without its program having decided so.
    pub const ENDED: Self = Self(76);
    /// Ctrl-C.
    pub const INTERRUPTED: Self = Self(130);

    /// The status of a process that this signal ended, as shells give it.
    #[must_use]
    pub fn signal(signal: i32) -> Self {
        Self(u8::try_from(signal).unwrap_or(0).saturating_add(128))
    }

    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

/// The text of `--help` about the statuses.
pub const HELP: &str = "\
Exit status:
  0   done
  1   the operation failed, such as a checkpoint that could not be stored
  2   wrong usage, or an invalid job description; nothing was done
  3   no agent answers
  4   no such job or checkpoint
  5   not possible now, or not allowed
  6   `checkpoint now` stored nothing: Empty or Unchanged
`run` without -d ends with the status of the program (128 and the signal where one ended it), or
  75  suspended or interrupted: run the same command again to go on (with an agent: resume)
  76  the job ended without its program: NoProgress, Stopped, Fenced, RestoreFailed
      or NotSaved";

/// How `run` ends when its job has come to rest.
///
/// The program's own status is passed on wherever the program decided. A used up `maxWallTime` is
/// a success, since a chain of jobs that ended as planned must not be reported as broken.
#[must_use]
pub fn of_job(job: &JobDetail) -> Exit {
    match (job.info.phase, job.info.reason) {
        (Phase::Succeeded, _) | (Phase::Failed, Some(StopReason::WallTimeExceeded)) => Exit::DONE,
        (Phase::Failed, None | Some(StopReason::RetriesExceeded)) => {
            last_end(job).map_or(Exit::FAILED, of_program)
        }
        (Phase::Failed, Some(_)) => Exit::ENDED,
        (Phase::Suspended, _) => of_suspended(job),
        (Phase::Pending | Phase::Running | Phase::Suspending | Phase::Recovering, _) => {
            Exit::RESUMABLE
        }
    }
}

/// A person who suspends learns here that the last checkpoint failed. A batch system has to start
/// an interrupted job again whenever that goes on from something.
fn of_suspended(job: &JobDetail) -> Exit {
    let failed =
        matches!(job.last_outcome, Some(LastOutcome { result: Outcome::Failed { .. }, .. }));
    let interrupted = matches!(last_end(job), Some(AttemptEnd::Interrupted { .. }));
    if !failed || (interrupted && job.info.latest_checkpoint.is_some()) {
        Exit::RESUMABLE
    } else {
        Exit::FAILED
    }
}

fn last_end(job: &JobDetail) -> Option<AttemptEnd> {
    job.attempts.last().and_then(|attempt| attempt.end)
}

fn of_program(end: AttemptEnd) -> Exit {
    match end {
        AttemptEnd::Exited { code } => u8::try_from(code).map_or(Exit::FAILED, Exit),
        AttemptEnd::Signaled { signal, .. } => Exit::signal(signal),
        AttemptEnd::NotStarted => Exit(127),
        AttemptEnd::Suspended | AttemptEnd::Interrupted { .. } => Exit::RESUMABLE,
        AttemptEnd::Stopped => Exit::ENDED,
    }
}

/// How `checkpoint now` ends.
#[must_use]
pub fn of_checkpoint(outcome: Option<&Outcome>) -> Exit {
    match outcome {
        Some(Outcome::Committed(_)) => Exit::DONE,
        Some(Outcome::Skipped { .. }) => Exit::SKIPPED,
        Some(Outcome::Failed { .. }) => Exit::FAILED,
        None => Exit::REFUSED,
    }
}

/// How `suspend` and `stop` end: skipping is fine there, the state was already stored.
#[must_use]
pub fn of_last_checkpoint(outcome: Option<&Outcome>) -> Exit {
    match outcome {
        Some(Outcome::Failed { .. }) => Exit::FAILED,
        Some(Outcome::Committed(_) | Outcome::Skipped { .. }) | None => Exit::DONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use nodus_protocol::job::Interruption;

    fn check(phase: Phase, reason: Option<StopReason>, end: AttemptEnd, expected: u8) {
        let mut detail = samples::detail();
        detail.info.phase = phase;
        detail.info.reason = reason;
        detail.attempts.last_mut().unwrap().end = Some(end);
        detail.last_outcome = None;
        let exit = of_job(&detail);
        assert_eq!(exit.code(), expected, "{phase} {reason:?} {end}");
    }

    #[test]
    fn run_passes_the_status_of_the_program_on() {
        let exceeded = Some(StopReason::RetriesExceeded);
        check(Phase::Succeeded, None, AttemptEnd::Exited { code: 0 }, 0);
        check(Phase::Failed, exceeded, AttemptEnd::Exited { code: 42 }, 42);
        check(Phase::Failed, exceeded, AttemptEnd::Signaled { signal: 9, oom: true }, 137);
        check(Phase::Failed, exceeded, AttemptEnd::NotStarted, 127);
    }

    #[test]
    fn run_says_whether_to_run_it_again() {
        let by = Interruption::Reclaim;
        check(Phase::Suspended, None, AttemptEnd::Suspended, 75);
        check(Phase::Recovering, None, AttemptEnd::Interrupted { by }, 75);
        for reason in [StopReason::NoProgress, StopReason::Stopped, StopReason::Fenced] {
            check(Phase::Failed, Some(reason), AttemptEnd::Exited { code: 1 }, 76);
        }
        let used_up = Some(StopReason::WallTimeExceeded);
        check(Phase::Failed, used_up, AttemptEnd::Interrupted { by: Interruption::TimeLimit }, 0);
    }

    #[test]
    fn a_failed_last_checkpoint_is_not_passed_over() {
        let mut detail = samples::detail(); // whose last outcome is a failure
        detail.info.phase = Phase::Suspended;
        let mut check = |end, latest: bool, expected: u8| {
            detail.attempts.last_mut().unwrap().end = Some(end);
            detail.info.latest_checkpoint = latest.then(|| samples::stored(7));
            assert_eq!(of_job(&detail).code(), expected, "{end}, earlier: {latest}");
        };
        check(AttemptEnd::Suspended, true, 1);
        check(AttemptEnd::Suspended, false, 1);
        let interrupted = AttemptEnd::Interrupted { by: Interruption::Reclaim };
        check(interrupted, true, 75);
        check(interrupted, false, 1);
    }
}

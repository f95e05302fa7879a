//! What comes after an attempt: the table that jobs on a node and chains of Slurm jobs share.
//!
//! | the attempt ended by | next |
//! | --- | --- |
//! | exit 0 | `Succeeded` |
//! | suspend | `Suspended` until somebody resumes it |
//! | stop, delete, cancel | `Stopped` |
//! | interruption | the next attempt at once, not counted; `Stopped` once `maxWallTime` is used up |
//! | anything else | one retry, after a pause that doubles; `Failed` past `maxRetries` |
//!
//! Both ways to a next attempt end in `Failed`, `NoProgress` after `maxAttemptsWithoutProgress`
//! attempts in a row that committed nothing new. This module depends on nothing of the daemon.

use std::time::Duration;

use nodus_protocol::job::{AttemptEnd, StopReason};
use nodus_protocol::spec::Recovery;
use serde::{Deserialize, Serialize};

/// Long enough for a crashed neighbour to come back, short enough not to be noticed.
pub const DEFAULT_FIRST_PAUSE: Duration = Duration::from_secs(10);
/// A job that fails this often waits for something that is repaired in minutes, not in seconds.
pub const DEFAULT_LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long to wait before a failed program is tried again: `first`, then twice that, up to `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first retry.
    pub first: Duration,
    /// Never longer than this.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: DEFAULT_FIRST_PAUSE, cap: DEFAULT_LONGEST_PAUSE }
    }
}

impl Backoff {
    /// The pause before retry number `retry`, which counts from 1. `jitter`, from 0 to 1, takes off
    /// up to a half, so that jobs that failed together do not come back together.
    #[must_use]
    pub fn pause(&self, retry: u32, jitter: f64) -> Duration {
        let doublings = retry.saturating_sub(1).min(31);
        let pause = self.first.saturating_mul(1 << doublings).min(self.cap);
        let jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.0 };
        pause.mul_f64(1.0 - jitter / 2.0)
    }
}

/// The limits of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Failures of the program that are tried again.
    pub max_retries: u32,
    /// Time over all attempts.
    pub max_wall_time: Option<Duration>,
    /// Attempts in a row that committed nothing new.
    pub max_attempts_without_progress: Option<u32>,
    /// The pauses before retries.
    pub backoff: Backoff,
}

impl Policy {
    /// The limits that the job's description states.
    #[must_use]
    pub fn new(recovery: &Recovery, backoff: Backoff) -> Self {
        Self {
            max_retries: recovery.max_retries,
            max_wall_time: recovery.max_wall_time,
            max_attempts_without_progress: recovery.max_attempts_without_progress,
            backoff,
        }
    }
}

/// What is remembered from attempt to attempt, and has to outlive the process that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counters {
    /// Retries used so far.
    pub retries: u32,
    /// Attempts in a row, up to the newest, that committed nothing new.
    pub without_progress: u32,
    /// Time over all attempts.
    pub wall_time: Duration,
}

/// The attempt that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// How it ended.
    pub end: AttemptEnd,
    /// How long it ran.
    pub ran: Duration,
    /// Whether the job is further than it was when the attempt began: a checkpoint was committed
    /// or, where there are none, the cursor moved.
    pub progressed: bool,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The program ended with 0.
    Succeeded,
    /// Nothing, until somebody resumes the job.
    Suspended,
    /// No next attempt, and nothing went wrong: a chain that stops so exits with 0.
    Stopped(StopReason),
    /// Another attempt.
    StartAgain {
        /// After this long.
        after: Duration,
        /// Whether it is a retry of a failure, and not the sequel of an interruption.
        counts_retry: bool,
    },
    /// No next attempt: somebody has to look.
    Failed(StopReason),
}

/// Decides what comes after `attempt`, and what to remember.
#[must_use]
pub fn next(
    attempt: Attempt,
    counters: Counters,
    policy: &Policy,
    jitter: f64,
) -> (Next, Counters) {
    let mut counters = counted(attempt, counters);
    let next = match attempt.end {
        AttemptEnd::Exited { code: 0 } => Next::Succeeded,
        AttemptEnd::Suspended => Next::Suspended,
        AttemptEnd::Stopped => Next::Stopped(StopReason::Stopped),
        AttemptEnd::Interrupted { .. } => after_interruption(&counters, policy),
        AttemptEnd::Exited { .. } | AttemptEnd::Signaled { .. } | AttemptEnd::NotStarted => {
            after_failure(&counters, policy, jitter)
        }
    };
    if let Next::StartAgain { counts_retry: true, .. } = next {
        counters.retries += 1;
    }
    (next, counters)
}

fn counted(attempt: Attempt, counters: Counters) -> Counters {
    let without_progress = match attempt.end {
        _ if attempt.progressed => 0,
        // Suspending a job early and often says nothing about whether it gets anywhere.
        AttemptEnd::Suspended => counters.without_progress,
        _ => counters.without_progress.saturating_add(1),
    };
    let wall_time = counters.wall_time.saturating_add(attempt.ran);
    Counters { without_progress, wall_time, ..counters }
}

fn after_interruption(counters: &Counters, policy: &Policy) -> Next {
    if wall_time_used_up(counters, policy) {
        return Next::Stopped(StopReason::WallTimeExceeded);
    }
    if gets_nowhere(counters, policy) {
        return Next::Failed(StopReason::NoProgress);
    }
    Next::StartAgain { after: Duration::ZERO, counts_retry: false }
}

fn after_failure(counters: &Counters, policy: &Policy, jitter: f64) -> Next {
    if counters.retries >= policy.max_retries {
        return Next::Failed(StopReason::RetriesExceeded);
    }
    if wall_time_used_up(counters, policy) {
        return Next::Failed(StopReason::WallTimeExceeded);
    }
    if gets_nowhere(counters, policy) {
        return Next::Failed(StopReason::NoProgress);
    }
    let after = policy.backoff.pause(counters.retries + 1, jitter);
    Next::StartAgain { after, counts_retry: true }
}

fn wall_time_used_up(counters: &Counters, policy: &Policy) -> bool {
    policy.max_wall_time.is_some_and(|max| counters.wall_time >= max)
}

fn gets_nowhere(counters: &Counters, policy: &Policy) -> bool {
    policy.max_attempts_without_progress.is_some_and(|max| counters.without_progress >= max)
}

#[cfg(test)]
mod tests {
    use nodus_protocol::job::Interruption;
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const AT_ONCE: Next = Next::StartAgain { after: Duration::ZERO, counts_retry: false };

    fn policy() -> Policy {
        Policy {
            max_retries: 3,
            max_wall_time: Some(48 * HOUR),
            max_attempts_without_progress: Some(5),
            backoff: Backoff { first: Duration::from_secs(10), cap: Duration::from_secs(60) },
        }
    }

    fn attempt(end: AttemptEnd) -> Attempt {
        Attempt { end, ran: HOUR, progressed: true }
    }

    fn retry(seconds: u64) -> Next {
        Next::StartAgain { after: Duration::from_secs(seconds), counts_retry: true }
    }

    fn check(end: AttemptEnd, counters: Counters, expected: Next) {
        let (next, _) = next(attempt(end), counters, &policy(), 0.0);
        assert_eq!(next, expected, "{end:?} with {counters:?}");
    }

    const FAILURES: [AttemptEnd; 5] = [
        AttemptEnd::Exited { code: 1 },
        AttemptEnd::Exited { code: 255 },
        AttemptEnd::Signaled { signal: 11, oom: false },
        AttemptEnd::Signaled { signal: 9, oom: true },
        AttemptEnd::NotStarted,
    ];

    const INTERRUPTIONS: [Interruption; 5] = [
        Interruption::Reclaim,
        Interruption::TimeLimit,
        Interruption::Preemption,
        Interruption::NodeFailure,
        Interruption::Reboot,
    ];

    #[test]
    fn the_table() {
        let fresh = Counters::default();
        let retried = Counters { retries: 3, ..fresh };
        let spent = Counters { wall_time: 47 * HOUR, ..fresh };
        for counters in [fresh, retried, spent] {
            check(AttemptEnd::Exited { code: 0 }, counters, Next::Succeeded);
            check(AttemptEnd::Suspended, counters, Next::Suspended);
            check(AttemptEnd::Stopped, counters, Next::Stopped(StopReason::Stopped));
        }
        for by in INTERRUPTIONS {
            let end = AttemptEnd::Interrupted { by };
            check(end, fresh, AT_ONCE);
            check(end, retried, AT_ONCE);
            check(end, spent, Next::Stopped(StopReason::WallTimeExceeded));
        }
        for end in FAILURES {
            check(end, fresh, retry(10));
            check(end, Counters { retries: 1, ..fresh }, retry(20));
            check(end, Counters { retries: 2, ..fresh }, retry(40));
            check(end, retried, Next::Failed(StopReason::RetriesExceeded));
            check(end, spent, Next::Failed(StopReason::WallTimeExceeded));
        }
    }

    #[test]
    fn no_retries_means_none() {
        let policy = Policy { max_retries: 0, ..policy() };
        let failed = attempt(AttemptEnd::Exited { code: 1 });
        let (next, counters) = next(failed, Counters::default(), &policy, 0.0);
        assert_eq!(next, Next::Failed(StopReason::RetriesExceeded));
        assert_eq!(counters.retries, 0);
    }

    #[test]
    fn attempts_that_commit_nothing_are_limited_however_they_end() {
        let ends = [
            AttemptEnd::Interrupted { by: Interruption::Reclaim },
            AttemptEnd::Exited { code: 1 },
            AttemptEnd::Suspended,
            AttemptEnd::Interrupted { by: Interruption::Reboot },
            AttemptEnd::Exited { code: 1 },
        ];
        let mut counters = Counters::default();
        for end in ends {
            let (next, after) =
                next(Attempt { progressed: false, ..attempt(end) }, counters, &policy(), 0.0);
            assert!(!matches!(next, Next::Failed(_)), "{end:?} ended the job as {next:?}");
            counters = after;
        }
        assert_eq!(counters.without_progress, 4, "a suspend does not count");
        let last = Attempt { progressed: false, ..attempt(ends[0]) };
        let (decided, _) = next(last, counters, &policy(), 0.0);
        assert_eq!(decided, Next::Failed(StopReason::NoProgress));

        let (decided, counters) =
            next(Attempt { progressed: true, ..last }, counters, &policy(), 0.0);
        assert_eq!(decided, AT_ONCE);
        assert_eq!(counters.without_progress, 0, "progress begins the count anew");
    }

    #[test]
    fn pauses_double_up_to_the_cap_and_jitter_only_shortens() {
        let backoff = policy().backoff;
        let pauses: Vec<u64> = (1..6).map(|retry| backoff.pause(retry, 0.0).as_secs()).collect();
        assert_eq!(pauses, [10, 20, 40, 60, 60]);
        assert_eq!(backoff.pause(u32::MAX, 0.0).as_secs(), 60);
        assert_eq!(backoff.pause(1, 1.0).as_secs(), 5);
        assert_eq!(backoff.pause(1, f64::NAN).as_secs(), 10);
    }

    fn any_end() -> impl Strategy<Value = AttemptEnd> {
        prop_oneof![
            prop::sample::select(&FAILURES[..]),
            prop::sample::select(&INTERRUPTIONS[..]).prop_map(|by| AttemptEnd::Interrupted { by }),
            Just(AttemptEnd::Suspended),
        ]
    }

    proptest! {
        #[test]
        fn retries_never_pass_the_limit_and_interruptions_never_change_them(
            max_retries in 0u32..6,
            attempts in prop::collection::vec((any_end(), any::<bool>(), 0u64..20, 0.0..1.0), 0..60),
        ) {
            let policy = Policy { max_retries, ..policy() };
            let mut counters = Counters::default();
            let mut started_again = 0;
            for (end, progressed, hours, jitter) in attempts {
                let ended = Attempt { end, ran: hours as u32 * HOUR, progressed };
                let (decided, after) = next(ended, counters, &policy, jitter);
                prop_assert!(after.retries <= max_retries);
                if matches!(end, AttemptEnd::Interrupted { .. } | AttemptEnd::Suspended) {
                    prop_assert_eq!(after.retries, counters.retries);
                }
                if let Next::StartAgain { after: pause, counts_retry } = decided {
                    prop_assert!(after.wall_time < 48 * HOUR, "time was left");
                    prop_assert!(pause <= policy.backoff.cap);
                    started_again += u32::from(counts_retry);
                }
                counters = after;
                if matches!(decided, Next::Failed(_) | Next::Stopped(_)) {
                    break;
                }
            }
            prop_assert_eq!(started_again, counters.retries);
        }
    }
}

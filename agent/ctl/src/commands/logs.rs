//! What a program wrote, over its attempts and over restarts of the agent.

use std::time::Duration;

use nodus_protocol::JobName;
use nodus_protocol::control::JobDetail;
use nodus_protocol::job::Phase;
use tokio::time::{Instant, sleep};

use super::Session;
use crate::args::Logs;
use crate::console::note;
use crate::error::Result;
use crate::exit::Exit;
use crate::render;

/// How often a job is looked at while there is nothing to read.
const LOOK: Duration = Duration::from_millis(300);

/// How long a restarting agent is waited for; longer than its start takes after a crash.
const AGENT_RETURNS: Duration = Duration::from_secs(60);

impl Session {
    pub(super) async fn logs(&self, logs: &Logs) -> Result<Exit> {
        let job = &logs.job.0;
        if logs.follow {
            let first = match logs.attempt {
                Some(attempt) => attempt,
                None => newest_or_next(&self.client.job(job).await?),
            };
            let detail = self.follow(job, first).await?;
            note(&render::state(&detail.info));
        } else {
            let mut stream = self.client.logs(job, logs.attempt, false).await?;
            while let Some(bytes) = stream.next().await? {
                self.console.bytes(&bytes)?;
            }
        }
        Ok(Exit::DONE)
    }

    /// Prints what the program writes from attempt `first` on, until the job comes to rest.
    pub(super) async fn follow(&self, job: &JobName, first: u32) -> Result<JobDetail> {
        let mut reading = Reading { attempt: first, printed: 0, whole: false };
        loop {
            let detail = self.job_again(job).await?;
            match next(&detail, &reading) {
                Next::Read => {
                    let ended = has_ended(&detail, reading.attempt);
                    self.read(job, &mut reading, ended).await?;
                }
                Next::Attempt => {
                    reading = Reading { attempt: reading.attempt + 1, printed: 0, whole: false };
                }
                Next::Wait => sleep(LOOK).await,
                Next::End => return Ok(detail),
            }
        }
    }

    /// Prints one attempt to its end, or as far as the agent lives; `ended` says whether the
    /// attempt was over before.
    async fn read(&self, job: &JobName, reading: &mut Reading, ended: bool) -> Result<()> {
        let mut skip = reading.printed;
        let mut stream = match self.client.logs(job, Some(reading.attempt), true).await {
            Ok(stream) => stream,
            Err(error) if error.is_agent_away() => return Ok(()),
            Err(error) => return Err(error),
        };
        loop {
            let bytes = match stream.next().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(error) if error.is_agent_away() => return Ok(()),
                Err(error) => return Err(error),
            };
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
            skip -= known as u64;
            self.console.bytes(&bytes[known..])?;
            reading.printed += (bytes.len() - known) as u64;
        }
        // An agent that stops ends its streams too, and the program goes on writing without it:
        // only a stream that was opened after the end of the attempt is known to be whole.
        reading.whole = ended;
        if !ended {
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// The job, from an agent that may be restarting.
    async fn job_again(&self, job: &JobName) -> Result<JobDetail> {
        let until = Instant::now() + AGENT_RETURNS;
        loop {
            match self.client.job(job).await {
                Err(error) if error.is_agent_away() && Instant::now() < until => sleep(LOOK).await,
                answer => return answer,
            }
        }
    }
}

/// How far the log was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    attempt: u32,
    printed: u64,
    whole: bool,
}

/// What a follower does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Read the log of this attempt.
    Read,
    /// Go to the attempt after it.
    Attempt,
    /// Wait for an attempt to start.
    Wait,
    /// Nothing more will come by itself.
    End,
}

fn next(detail: &JobDetail, reading: &Reading) -> Next {
    let newest = detail.info.attempt;
    let resting = detail.info.phase.is_finished() || detail.info.phase == Phase::Suspended;
    if reading.attempt <= newest && !reading.whole {
        Next::Read
    } else if reading.attempt < newest {
        Next::Attempt
    } else if resting {
        Next::End
    } else {
        Next::Wait
    }
}

/// Between two attempts it is the next one that somebody wants to follow, as after `resume`.
fn newest_or_next(detail: &JobDetail) -> u32 {
    match detail.info.phase {
        Phase::Recovering => detail.info.attempt + 1,
        _ => detail.info.attempt.max(1),
    }
}

fn has_ended(detail: &JobDetail, attempt: u32) -> bool {
    detail.info.attempt > attempt
        || detail.info.phase.is_finished()
        || detail.attempts.iter().any(|info| info.number == attempt && info.ended.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    fn check(phase: Phase, newest: u32, attempt: u32, whole: bool, expected: Next) {
        let mut detail = samples::detail();
        detail.info.phase = phase;
        detail.info.attempt = newest;
        let found = next(&detail, &Reading { attempt, printed: 0, whole });
        assert_eq!(found, expected, "{phase}, attempt {attempt} of {newest}, whole: {whole}");
    }

    #[test]
    fn a_follower_reads_every_attempt_to_its_end() {
        check(Phase::Pending, 0, 1, false, Next::Wait);
        check(Phase::Failed, 0, 1, false, Next::End);
        check(Phase::Running, 1, 1, false, Next::Read);
        check(Phase::Succeeded, 1, 1, false, Next::Read);
        check(Phase::Recovering, 1, 1, true, Next::Wait);
        check(Phase::Running, 3, 1, true, Next::Attempt);
        check(Phase::Suspended, 2, 2, true, Next::End);
        check(Phase::Succeeded, 2, 2, true, Next::End);
        check(Phase::Succeeded, 2, 1, true, Next::Attempt);
    }

    #[test]
    fn after_a_resume_the_next_attempt_is_followed() {
        let mut detail = samples::detail();
        for (phase, newest, expected) in [
            (Phase::Pending, 0, 1),
            (Phase::Running, 2, 2),
            (Phase::Recovering, 1, 2),
            (Phase::Suspended, 1, 1),
        ] {
            (detail.info.phase, detail.info.attempt) = (phase, newest);
            assert_eq!(newest_or_next(&detail), expected, "{phase}");
        }
        check(Phase::Recovering, 1, 2, false, Next::Wait);
        check(Phase::Failed, 1, 2, false, Next::End);
    }

    #[test]
    fn an_attempt_has_ended_when_it_says_so_or_a_later_one_exists() {
        let detail = samples::detail();
        assert!(has_ended(&detail, 1));
        assert!(!has_ended(&detail, 2));
    }
}

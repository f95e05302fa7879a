//! The listing of jobs.

use jiff::Timestamp;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::JobInfo;
use nodus_protocol::event::Progress;

use super::table::{Cell, Table};
use super::text::{Style, age, between, of_phase, safe};

/// `list`.
#[must_use]
pub fn job_list(jobs: &[JobInfo], now: Timestamp, style: Style) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let columns = ["NAME", "PHASE", ">ATTEMPT", ">RETRIES", "CHECKPOINT", "PROGRESS", ">AGE"];
    let mut table = Table::new(&columns);
    for job in jobs {
        table.row([
            job.name.to_string().into(),
            Cell::new(phase(job), of_phase(job.phase)),
            job.attempt.to_string().into(),
            job.retries.to_string().into(),
            latest(job.latest_checkpoint.as_ref(), now).into(),
            progress(job.progress).into(),
            age(between(job.created, now)).into(),
        ]);
    }
    table.print(style)
}

/// Where a job is, in a line: `job/train is Failed (NoProgress): ...`.
#[must_use]
pub fn state(job: &JobInfo) -> String {
    let message = job.message.as_deref().map(|message| format!(": {}", safe(message)));
    format!("job/{} is {}{}", job.name, phase(job), message.unwrap_or_default())
}

pub(super) fn phase(job: &JobInfo) -> String {
    match job.reason {
        Some(reason) => format!("{} ({reason})", job.phase),
        None => job.phase.to_string(),
    }
}

pub(super) fn progress(progress: Option<Progress>) -> String {
    match progress {
        Some(Progress { completed, total: Some(total) }) => format!("{completed}/{total}"),
        Some(Progress { completed, total: None }) => completed.to_string(),
        None => String::new(),
    }
}

fn latest(checkpoint: Option<&CheckpointInfo>, now: Timestamp) -> String {
    let text = |checkpoint: &CheckpointInfo| {
        let at = checkpoint.committed.unwrap_or(checkpoint.started);
        format!("{}, {} ago", checkpoint.seq, age(between(at, now)))
    };
    checkpoint.map(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use nodus_protocol::job::{Phase, StopReason};

    #[test]
    fn a_listing_fits_one_line_a_job() {
        let mut failed = samples::info();
        failed.name = "exp-b".parse().unwrap();
        failed.phase = Phase::Failed;
        failed.reason = Some(StopReason::NoProgress);
        failed.latest_checkpoint = None;
        failed.progress = None;
        let expected = "\
NAME   PHASE                ATTEMPT  RETRIES  CHECKPOINT  PROGRESS  AGE
train  Running                    2        1  7, 95s ago  42/120     3h
exp-b  Failed (NoProgress)        2        1  -           -          3h
";
        let jobs = [samples::info(), failed];
        assert_eq!(job_list(&jobs, samples::now(), Style::default()), expected);
        assert_eq!(job_list(&[], samples::now(), Style::default()), "no jobs\n");
    }

    #[test]
    fn a_state_is_a_sentence() {
        let mut job = samples::info();
        job.phase = Phase::Failed;
        job.reason = Some(StopReason::RetriesExceeded);
        job.message = Some("4 failures,\n3 allowed".to_owned());
        assert_eq!(state(&job), "job/train is Failed (RetriesExceeded): 4 failures,\\n3 allowed");
    }
}

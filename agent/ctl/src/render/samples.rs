//! Values that tests print.

use std::time::Duration;

use jiff::Timestamp;
use nodus_protocol::checkpoint::{
    Cause, CheckpointInfo, CheckpointState, Consistency, FailureReason, Outcome,
};
use nodus_protocol::control::{
    AttemptInfo, CadenceInfo, CheckpointProgress, CheckpointStage, Condition, JobDetail, JobInfo,
    LastOutcome,
};
use nodus_protocol::event::Progress;
use nodus_protocol::job::{AttemptEnd, Phase};
use nodus_protocol::spec::JobSpec;

pub(crate) fn at(time: &str) -> Timestamp {
    format!("2026-11-30T{time}Z").parse().unwrap()
}

pub(crate) fn now() -> Timestamp {
    at("15:00:00")
}

pub(crate) fn info() -> JobInfo {
    JobInfo {
        name: "train".parse().unwrap(),
        uid: 1000,
        phase: Phase::Running,
        reason: None,
        message: None,
        attempt: 2,
        retries: 1,
        created: at("12:00:00"),
        finished: None,
        latest_checkpoint: Some(stored(7)),
        progress: Some(Progress { completed: 42, total: Some(120) }),
    }
}

pub(crate) fn stored(seq: u64) -> CheckpointInfo {
    CheckpointInfo {
        seq,
        attempt: 2,
        epoch: 2,
        cause: Cause::Interval,
        state: CheckpointState::Committed,
        consistency: Some(Consistency::Acked),
        started: at("14:58:20"),
        captured: Some(at("14:58:21.5")),
        committed: Some(at("14:58:25")),
        files: 12,
        bytes: 1_572_864_000,
        stored_bytes: 4096,
        bases: vec![5, 6],
        reason: None,
        message: None,
        torn: Vec::new(),
        notes: Vec::new(),
    }
}

pub(crate) fn failed(seq: u64) -> CheckpointInfo {
    CheckpointInfo {
        state: CheckpointState::Failed,
        consistency: None,
        captured: None,
        committed: None,
        files: 0,
        bytes: 0,
        stored_bytes: 0,
        bases: Vec::new(),
        reason: Some("NoSpace".to_owned()),
        message: Some("no space left on the file system of /var/lib/nodus".to_owned()),
        ..stored(seq)
    }
}

pub(crate) fn detail() -> JobDetail {
    let spec = "
name: train
command: [python, train.py, --note, two words]
workdir: /home/me/run
env: {STEPS: '120'}
recovery: {maxWallTime: 48h, checkpoint: {paths: [/nodus/state, /data/cache]}}
";
    JobDetail {
        info: info(),
        spec: JobSpec::from_yaml(spec).unwrap(),
        attempts: attempts(),
        wall_time: Duration::from_secs(10_000),
        cadence: Some(CadenceInfo {
            interval: Duration::from_secs(540),
            rule: "AtMostATenth".to_owned(),
            next: Some(at("15:07:20")),
            held_up: Some(Duration::from_millis(1500)),
            until_committed: Some(Duration::from_secs(54)),
            between_interruptions: Some(Duration::from_secs(4 * 3600)),
            expected_run_time: None,
        }),
        subscribers: 1,
        last_outcome: Some(LastOutcome {
            seq: 8,
            at: at("14:59:10"),
            result: Outcome::Failed {
                reason: FailureReason::NoSpace,
                message: "no space left on the file system of /var/lib/nodus".to_owned(),
            },
        }),
        in_progress: Some(CheckpointProgress {
            seq: 9,
            stage: CheckpointStage::Archiving,
            copied: 500 << 20,
            total: Some(1 << 30),
        }),
        conditions: vec![Condition {
            name: "CadenceConstrained".to_owned(),
            message: "four checkpoints cost more than a tenth of the run".to_owned(),
        }],
        state_dir: "/var/lib/nodus/jobs/train/state".to_owned(),
    }
}

fn attempts() -> Vec<AttemptInfo> {
    vec![
        AttemptInfo {
            number: 1,
            started: at("12:00:01"),
            ended: Some(at("13:00:01")),
            end: Some(AttemptEnd::Exited { code: 1 }),
            restored_from: None,
            restore_reason: None,
        },
        AttemptInfo {
            number: 2,
            started: at("13:00:11"),
            ended: None,
            end: None,
            restored_from: Some(4),
            restore_reason: Some("5 is damaged: frame 3 does not match its hash".to_owned()),
        },
    ]
}

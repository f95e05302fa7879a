//! One job in full.

use jiff::Timestamp;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::{AttemptInfo, CadenceInfo, CheckpointProgress, JobDetail};
use nodus_protocol::spec::JobSpec;
use nodus_protocol::units::{ByteSize, format_duration};

use super::event::ended;
use super::job::{phase, progress};
use super::table::Table;
use super::text::{Paint, Style, age, between, command, count, moment, of_phase, of_state, safe};

/// Where the values begin.
const INDENT: usize = 16;

/// Lines of `Name:  value`, and lists under a name.
pub(super) struct Fields {
    text: String,
    style: Style,
}

impl Fields {
    pub(super) fn new(style: Style) -> Self {
        Self { text: String::new(), style }
    }

    pub(super) fn add(&mut self, name: &str, value: impl ToString) {
        self.painted(name, value, Paint::Plain);
    }

    #[expect(clippy::needless_pass_by_value, reason = "whatever can be shown may be given")]
    pub(super) fn painted(&mut self, name: &str, value: impl ToString, paint: Paint) {
        let value = self.style.paint(paint, &value.to_string());
        self.text.push_str(&format!("{:INDENT$}{value}\n", format!("{name}:")));
    }

    pub(super) fn some(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    pub(super) fn list(&mut self, name: &str, values: impl Iterator<Item = String>) {
        let lines: String = values.map(|value| format!("  {value}\n")).collect();
        if !lines.is_empty() {
            self.text.push_str(&format!("{name}:\n{lines}"));
        }
    }

    fn block(&mut self, name: &str, block: &str) {
        self.list(name, block.lines().map(str::to_owned));
    }

    pub(super) fn print(self) -> String {
        self.text
    }
}

/// `describe`.
#[must_use]
pub fn describe(job: &JobDetail, now: Timestamp, style: Style) -> String {
    let mut fields = Fields::new(style);
    state(&mut fields, job, now);
    spec(&mut fields, &job.spec);
    fields.add("State kept in", safe(&job.state_dir));
    if let Some(cadence) = &job.cadence {
        fields.list("Cadence", cadence_lines(cadence, now).into_iter());
    }
    fields.add("Subscribers", job.subscribers);
    checkpoints(&mut fields, job, now);
    fields.block("Attempts", &attempts(&job.attempts, now, style));
    let condition = |(name, message): (&str, &str)| format!("{name}: {}", safe(message));
    let conditions = job.conditions.iter().map(|c| (c.name.as_str(), c.message.as_str()));
    fields.list("Conditions", conditions.map(condition));
    fields.print()
}

fn state(fields: &mut Fields, job: &JobDetail, now: Timestamp) {
    let info = &job.info;
    fields.add("Name", &info.name);
    fields.painted("Phase", phase(info), of_phase(info.phase));
    fields.some("Message", info.message.as_deref().map(safe));
    fields.add("User", info.uid);
    fields.add("Created", moment(info.created, now));
    fields.some("Finished", info.finished.map(|at| moment(at, now)));
    fields.some("Progress", info.progress.map(|value| progress(Some(value))));
    let limit = job.spec.recovery.max_wall_time;
    let limit = limit.map(|limit| format!(" of {}", format_duration(limit)));
    fields.add("Wall time", format_duration(job.wall_time) + &limit.unwrap_or_default());
    let max_retries = job.spec.recovery.max_retries;
    fields.add("Retries", format!("{} of {max_retries}", info.retries));
}

fn spec(fields: &mut Fields, spec: &JobSpec) {
    fields.add("Command", command(&spec.command));
    let workdir = spec.workdir.as_ref().map(|path| safe(&path.to_string_lossy()));
    fields.some("Directory", workdir);
    fields.some("Processors", spec.cpu);
    fields.some("Ranks", spec.ranks);
    let env = spec.env.iter().map(|(key, value)| safe(&format!("{key}={value}")));
    fields.list("Environment", env);
    let recovery = &spec.recovery;
    let policy = &recovery.checkpoint;
    let mut lines = vec![
        format!("continuity {}, integration {}", recovery.continuity, policy.integration),
        format!("interval {}, at most {}", policy.interval, policy.max_size),
        format!(
            "keep {}, after the end for {}",
            policy.keep_last,
            format_duration(policy.retain_after_finish)
        ),
        format!(
            "ack timeout {}, quiesce {}, format {}",
            format_duration(policy.ack_timeout),
            policy.quiesce,
            policy.format
        ),
    ];
    if let Some(limit) = recovery.max_attempts_without_progress {
        lines.push(format!("at most {limit} attempts in a row without progress"));
    }
    fields.list("Recovery", lines.into_iter());
    fields.list("Paths", policy.paths.iter().map(|path| safe(&path.to_string_lossy())));
}

fn cadence_lines(cadence: &CadenceInfo, now: Timestamp) -> Vec<String> {
    let interval = format_duration(cadence.interval);
    let mut lines = vec![format!("every {interval}, decided by {}", safe(&cadence.rule))];
    lines.extend(cadence.next.map(|next| format!("next at {}", moment(next, now))));
    let inputs = [
        ("a checkpoint holds the program up for", cadence.held_up),
        ("it is committed after", cadence.until_committed),
        ("mean time between interruptions", cadence.between_interruptions),
        ("expected run time", cadence.expected_run_time),
    ];
    let known = inputs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    lines.extend(known.map(|(name, value)| format!("{name} {}", format_duration(value))));
    lines
}

fn checkpoints(fields: &mut Fields, job: &JobDetail, now: Timestamp) {
    match &job.info.latest_checkpoint {
        Some(info) => fields.painted("Checkpoint", latest(info, now), of_state(info.state)),
        None => fields.add("Checkpoint", "none that can be restored"),
    }
    let last = job.last_outcome.as_ref();
    fields.some(
        "Last outcome",
        last.map(|last| format!("{} {}, {}", last.seq, ended(&last.result), moment(last.at, now))),
    );
    fields.some("In progress", job.in_progress.as_ref().map(under_way));
}

fn latest(info: &CheckpointInfo, now: Timestamp) -> String {
    let consistency = info.consistency.map(|value| format!("{value}, ")).unwrap_or_default();
    format!(
        "{} {}, {consistency}{}, {}, {} ago",
        info.seq,
        info.state,
        count(info.files, "file"),
        ByteSize(info.bytes).approx(),
        age(between(info.committed.unwrap_or(info.started), now))
    )
}

fn under_way(progress: &CheckpointProgress) -> String {
    let total = progress.total.map(|total| format!(" of {}", ByteSize(total).approx()));
    format!(
        "{} {:?}, {}{}",
        progress.seq,
        progress.stage,
        ByteSize(progress.copied).approx(),
        total.unwrap_or_default()
    )
}

fn attempts(attempts: &[AttemptInfo], now: Timestamp, style: Style) -> String {
    if attempts.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[">N", "STARTED", ">RAN", "ENDED", ">FROM", "WHY FROM THERE"]);
    for attempt in attempts {
        let end = match (attempt.end, attempt.ended) {
            (Some(end), _) => end.to_string(),
            (None, Some(_)) => "unknown".to_owned(),
            (None, None) => "running".to_owned(),
        };
        let from = attempt.restored_from.map(|seq| seq.to_string());
        table.row([
            attempt.number.to_string().into(),
            moment(attempt.started, now).into(),
            age(between(attempt.started, attempt.ended.unwrap_or(now))).into(),
            end.into(),
            from.unwrap_or_default().into(),
            attempt.restore_reason.as_deref().map(safe).unwrap_or_default().into(),
        ]);
    }
    table.print(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn a_job_in_full() {
        let expected = "\
Name:           train
Phase:          Running
User:           1000
Created:        2026-11-30T12:00:00Z (3h ago)
Progress:       42/120
Wall time:      2h 46m 40s of 2days
Retries:        1 of 3
Command:        python train.py --note 'two words'
Directory:      /home/me/run
Environment:
  STEPS=120
Recovery:
  continuity Checkpointed, integration Auto
  interval auto, at most 1Ti
  keep 3, after the end for 7days
  ack timeout 10m, quiesce None, format Files
Paths:
  /nodus/state
  /data/cache
State kept in:  /var/lib/nodus/jobs/train/state
Cadence:
  every 9m, decided by AtMostATenth
  next at 2026-11-30T15:07:20Z (in 7m)
  a checkpoint holds the program up for 1s 500ms
  it is committed after 54s
  mean time between interruptions 4h
Subscribers:    1
Checkpoint:     7 Committed, Acked, 12 files, 1.46Gi, 95s ago
Last outcome:   8 failed (NoSpace: no space left on the file system of /var/lib/nodus), 2026-11-30T14:59:10Z (50s ago)
In progress:    9 Archiving, 500Mi of 1.00Gi
Attempts:
  N  STARTED                           RAN  ENDED    FROM  WHY FROM THERE
  1  2026-11-30T12:00:01Z (2h ago)     60m  exit 1      -  -
  2  2026-11-30T13:00:11Z (119m ago)  119m  running     4  5 is damaged: frame 3 does not match its hash
Conditions:
  CadenceConstrained: four checkpoints cost more than a tenth of the run
";
        let text = describe(&samples::detail(), samples::now(), Style::default());
        assert_eq!(text, expected);
    }
}

//! Checkpoints: the listing, one in full, and what operations on them came to.

use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{Cause, CheckpointInfo};
use nodus_protocol::control::{CheckpointDone, RestoreDone, VerifyDone};
use nodus_protocol::units::{ByteSize, format_duration};

use super::describe::Fields;
use super::event::ended;
use super::table::{Cell, Table};
use super::text::{Style, age, between, count, moment, of_consistency, of_state, safe};

/// `checkpoint list`.
#[must_use]
pub fn checkpoint_list(checkpoints: &[CheckpointInfo], now: Timestamp, style: Style) -> String {
    if checkpoints.is_empty() {
        return "no checkpoints\n".to_owned();
    }
    let mut table = Table::new(&[
        ">SEQ",
        "STATE",
        "CONSISTENCY",
        "CAUSE",
        ">ATTEMPT",
        ">AGE",
        ">FILES",
        ">SIZE",
        ">STORED",
        "REASON",
    ]);
    for checkpoint in checkpoints {
        let consistency = checkpoint.consistency.map(|value| value.to_string());
        let stored = checkpoint.committed.is_some();
        let of_stored = |text: String| if stored { text } else { String::new() };
        let readable = checkpoint.cause != Cause::Unknown;
        let of_readable = |text: String| if readable { text } else { String::new() };
        let at = checkpoint.committed.unwrap_or(checkpoint.started);
        table.row([
            checkpoint.seq.to_string().into(),
            Cell::new(checkpoint.state, of_state(checkpoint.state)),
            Cell::new(consistency.unwrap_or_default(), of_consistency(checkpoint.consistency)),
            checkpoint.cause.to_string().into(),
            of_readable(checkpoint.attempt.to_string()).into(),
            of_readable(age(between(at, now))).into(),
            of_stored(checkpoint.files.to_string()).into(),
            of_stored(ByteSize(checkpoint.bytes).approx()).into(),
            of_stored(ByteSize(checkpoint.stored_bytes).approx()).into(),
            reason(checkpoint).into(),
        ]);
    }
    table.print(style)
}

fn reason(checkpoint: &CheckpointInfo) -> String {
    match (&checkpoint.reason, &checkpoint.message) {
        (Some(reason), Some(message)) => format!("{reason}: {}", safe(message)),
        (Some(text), None) | (None, Some(text)) => safe(text),
        (None, None) => String::new(),
    }
}

/// `checkpoint show`.
#[must_use]
pub fn checkpoint(info: &CheckpointInfo, now: Timestamp, style: Style) -> String {
    let mut fields = Fields::new(style);
    fields.add("Checkpoint", info.seq);
    fields.painted("State", info.state, of_state(info.state));
    fields.some("Reason", Some(reason(info)).filter(|text| !text.is_empty()));
    if let Some(consistency) = info.consistency {
        fields.painted("Consistency", consistency, of_consistency(info.consistency));
    }
    fields.add("Cause", info.cause);
    if info.cause == Cause::Unknown {
        return fields.print();
    }
    fields.add("Attempt", info.attempt);
    fields.add("Epoch", info.epoch);
    fields.add("Started", moment(info.started, now));
    let after =
        |at: Timestamp| format!("{} after its start", format_duration(between(info.started, at)));
    fields.some("Captured", info.captured.map(after));
    fields.some("Committed", info.committed.map(after));
    if info.committed.is_some() {
        fields.add("Files", info.files);
        fields.add("Size", size(info.bytes));
        fields.add("Stored", size(info.stored_bytes));
    }
    let bases: Vec<_> = info.bases.iter().map(ToString::to_string).collect();
    fields.some("Needs data of", (!bases.is_empty()).then(|| bases.join(", ")));
    fields.list("Torn paths", info.torn.iter().map(|path| safe(path)));
    fields.list("Notes", info.notes.iter().map(|note| safe(note)));
    fields.print()
}

fn size(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", ByteSize(bytes).approx())
}

/// What `checkpoint now`, `suspend` and `stop` came to.
#[must_use]
pub fn taken(job: &JobName, done: &CheckpointDone) -> String {
    let checkpoint = match (done.seq, &done.outcome) {
        (Some(seq), Some(outcome)) => format!("checkpoint {seq} {}", ended(outcome)),
        (None, Some(outcome)) => format!("checkpoint {}", ended(outcome)),
        (_, None) => "no checkpoint was taken".to_owned(),
    };
    format!("job/{job} is {}; {checkpoint}", done.phase)
}

/// What `checkpoint verify` found in one checkpoint, a line each.
#[must_use]
pub fn verified(done: &VerifyDone) -> String {
    let size = ByteSize(done.bytes).approx();
    if done.problems.is_empty() {
        return format!("checkpoint {} is sound, {size} compared\n", done.seq);
    }
    let line =
        |problem: &String| format!("checkpoint {} is damaged: {}\n", done.seq, safe(problem));
    done.problems.iter().map(line).collect()
}

/// What `restore` did, a line each.
#[must_use]
pub fn restored(done: &RestoreDone) -> String {
    let reason = done.reason.as_ref().map(|reason| format!("; {}", safe(reason)));
    let mut text = format!(
        "checkpoint {} restored to {}: {}, {}{}\n",
        done.seq,
        safe(&done.to),
        count(done.files, "file"),
        ByteSize(done.bytes).approx(),
        reason.unwrap_or_default(),
    );
    for note in &done.notes {
        text.push_str(&format!("  {}\n", safe(note)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use nodus_protocol::checkpoint::{CheckpointState, Consistency, Outcome, Skipped};
    use nodus_protocol::job::Phase;

    #[test]
    fn a_listing_shows_also_what_was_not_stored_and_why() {
        let mut torn = samples::stored(10);
        torn.consistency = Some(Consistency::Torn);
        torn.state = CheckpointState::Damaged;
        torn.message = Some("frame 3 does not match its hash".to_owned());
        let list = [samples::stored(7), samples::failed(8), torn];
        let expected = "\
SEQ  STATE      CONSISTENCY  CAUSE     ATTEMPT   AGE  FILES    SIZE  STORED  REASON
  7  Committed  Acked        Interval        2   95s     12  1.46Gi  4.00Ki  -
  8  Failed     -            Interval        2  100s      -       -       -  NoSpace: no space left on the file system of /var/lib/nodus
 10  Damaged    Torn         Interval        2   95s     12  1.46Gi  4.00Ki  frame 3 does not match its hash
";
        assert_eq!(checkpoint_list(&list, samples::now(), Style::default()), expected);
    }

    #[test]
    fn of_an_unreadable_record_only_the_damage_is_shown() {
        let mut unreadable = samples::failed(5);
        unreadable.state = CheckpointState::Damaged;
        unreadable.cause = Cause::Unknown;
        unreadable.started = Timestamp::UNIX_EPOCH;
        (unreadable.reason, unreadable.message) = (None, Some("not JSON".to_owned()));
        let expected = "\
SEQ  STATE    CONSISTENCY  CAUSE    ATTEMPT  AGE  FILES  SIZE  STORED  REASON
  5  Damaged  -            Unknown        -    -      -     -       -  not JSON
";
        let list = [unreadable];
        assert_eq!(checkpoint_list(&list, samples::now(), Style::default()), expected);
        let text = checkpoint(&list[0], samples::now(), Style::default());
        assert!(text.ends_with("Cause:          Unknown\n"), "{text}");
    }

    #[test]
    fn one_checkpoint_in_full() {
        let mut info = samples::stored(7);
        info.consistency = Some(Consistency::Torn);
        info.torn = vec!["/nodus/state/a%FF".to_owned()];
        info.notes = vec!["1 socket was left out".to_owned()];
        let expected = "\
Checkpoint:     7
State:          Committed
Consistency:    Torn
Cause:          Interval
Attempt:        2
Epoch:          2
Started:        2026-11-30T14:58:20Z (100s ago)
Captured:       1s 500ms after its start
Committed:      5s after its start
Files:          12
Size:           1.46Gi (1572864000 bytes)
Stored:         4.00Ki (4096 bytes)
Needs data of:  5, 6
Torn paths:
  /nodus/state/a%FF
Notes:
  1 socket was left out
";
        assert_eq!(checkpoint(&info, samples::now(), Style::default()), expected);
    }

    #[test]
    fn outcomes_are_sentences() {
        let job: JobName = "train".parse().unwrap();
        let outcome = Some(Outcome::Skipped { reason: Skipped::Unchanged });
        let done = CheckpointDone { seq: Some(9), outcome, phase: Phase::Suspended };
        assert_eq!(taken(&job, &done), "job/train is Suspended; checkpoint 9 skipped (Unchanged)");
        let none = CheckpointDone { seq: None, outcome: None, phase: Phase::Suspended };
        assert_eq!(taken(&job, &none), "job/train is Suspended; no checkpoint was taken");

        let sound = VerifyDone { seq: 7, bytes: 2048, problems: Vec::new() };
        assert_eq!(verified(&sound), "checkpoint 7 is sound, 2.00Ki compared\n");
        let damaged = VerifyDone { problems: vec!["a".to_owned(), "b".to_owned()], ..sound };
        let expected = "checkpoint 7 is damaged: a\ncheckpoint 7 is damaged: b\n";
        assert_eq!(verified(&damaged), expected);
    }

    #[test]
    fn a_restore_says_why_it_passed_a_newer_one_over() {
        let done = RestoreDone {
            seq: 4,
            reason: Some("5 is damaged".to_owned()),
            to: "/tmp/x".to_owned(),
            files: 1,
            bytes: 17,
            notes: vec!["a -> b points nowhere".to_owned()],
        };
        let expected = "\
checkpoint 4 restored to /tmp/x: 1 file, 17B; 5 is damaged
  a -> b points nowhere
";
        assert_eq!(restored(&done), expected);
    }
}

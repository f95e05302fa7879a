//! What became of the attempts that started from a checkpoint, and when that makes it suspect.

use crate::error::{Error, Result};
use crate::format::{AttemptOutcome, FORMAT, FrameRef, MAX_LISTED, Outcomes};
use crate::store::{Epoch, JobStore, OUTCOMES};
use crate::stored::{Standing, Stored};

/// Failed attempts in a row after which a checkpoint is suspect.
const SUSPECT_AFTER: usize = 2;

/// How an attempt ended, as far as it says something about the checkpoint it started from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It committed a newer checkpoint, or the job succeeded.
    Progressed,
    /// It failed before it committed a newer checkpoint.
    Failed,
    /// It was suspended, interrupted or cancelled before it committed one. That says nothing about
    /// the checkpoint: it neither counts as a failure nor ends a row of failures.
    Interrupted,
}

/// The outcomes with this attempt's added.
///
/// Saying the same attempt again replaces what was said, so an agent that was restarted may. An
/// attempt that progressed clears the mark: somebody chose the checkpoint, and it works.
#[must_use]
pub fn with_attempt(outcomes: &Outcomes, attempt: u32, ended: Ended) -> Outcomes {
    let mut next = Outcomes { format: FORMAT, ..outcomes.clone() };
    if ended == Ended::Interrupted {
        return next;
    }
    next.attempts.retain(|known| known.attempt != attempt);
    next.attempts.push(AttemptOutcome { attempt, progressed: ended == Ended::Progressed });
    next.attempts.sort_by_key(|known| known.attempt);
    let surplus = next.attempts.len().saturating_sub(MAX_LISTED);
    next.attempts.drain(..surplus);
    next.suspect = match ended {
        Ended::Progressed => false,
        _ => next.suspect || failed_in_a_row(&next.attempts) >= SUSPECT_AFTER,
    };
    next
}

/// The outcomes with what was found to be wrong with the checkpoint's data; each is listed once.
#[must_use]
pub fn with_damage(outcomes: &Outcomes, found: &[String]) -> Outcomes {
    let mut next = Outcomes { format: FORMAT, ..outcomes.clone() };
    for what in found {
        if next.damaged.len() < MAX_LISTED && !next.damaged.contains(what) {
            next.damaged.push(what.clone());
        }
    }
    next
}

/// Records what became of an attempt on the checkpoint that it started from; says whether that
/// one is suspect now.
///
/// # Errors
/// [`Error::Fenced`] where the epoch is over, or why it cannot be recorded.
pub fn record_attempt(
    store: &JobStore,
    epoch: &Epoch,
    seq: u64,
    attempt: u32,
    ended: Ended,
) -> Result<bool> {
    let next = with_attempt(&read(store, seq)?, attempt, ended);
    store.replace_record(epoch, seq, OUTCOMES, &next)?;
    Ok(next.suspect)
}

/// Records that attempts cannot go on from a checkpoint, whatever is known of its own attempts: it
/// was left by attempts that failed from a suspect one.
///
/// # Errors
/// [`Error::Fenced`] where the epoch is over, or why it cannot be recorded.
pub fn mark_suspect(store: &JobStore, epoch: &Epoch, seq: u64) -> Result<()> {
    let known = read(store, seq)?;
    if known.suspect {
        return Ok(());
    }
    store.replace_record(epoch, seq, OUTCOMES, &Outcomes { format: FORMAT, suspect: true, ..known })
}

/// Records what was found to be wrong with a checkpoint's data.
///
/// # Errors
/// [`Error::Fenced`] where the epoch is over, or why it cannot be recorded.
pub fn mark_damaged(store: &JobStore, epoch: &Epoch, seq: u64, found: &[String]) -> Result<()> {
    let known = read(store, seq)?;
    let next = with_damage(&known, found);
    if next.damaged == known.damaged {
        return Ok(());
    }
    store.replace_record(epoch, seq, OUTCOMES, &next)
}

/// Records that a checkpoint was read from end to end and is as it was written.
///
/// # Errors
/// [`Error::Fenced`] where the epoch is over, or why it cannot be recorded.
pub fn mark_intact(store: &JobStore, epoch: &Epoch, seq: u64) -> Result<()> {
    let known = read(store, seq)?;
    if known.damaged.is_empty() {
        return Ok(());
    }
    let next = Outcomes { damaged: Vec::new(), ..known };
    store.replace_record(epoch, seq, OUTCOMES, &next)
}

fn read(store: &JobStore, seq: u64) -> Result<Outcomes> {
    match store.get(seq)? {
        Some(Stored::Good { outcomes, .. }) => Ok(outcomes),
        Some(Stored::Damaged { why, .. }) => Err(Error::Damaged { seq, what: why }),
        None => Err(Error::NotFound { job: store.job().to_string(), seq: Some(seq) }),
    }
}

/// Notes damage in a listing, and in the store where there is an epoch to write under: on the
/// checkpoint that has it, and on all others that use one of the bad frames.
pub(crate) fn note_damage(
    store: &JobStore,
    mark: Option<&Epoch>,
    listing: &mut [Stored],
    seq: u64,
    found: &[String],
    bad: &[(FrameRef, String)],
) {
    for stored in listing {
        let found = if stored.seq() == seq {
            found.to_vec()
        } else {
            shared_damage(store, stored, bad).into_iter().collect()
        };
        let Stored::Good { record, outcomes } = stored else { continue };
        if found.is_empty() {
            continue;
        }
        *outcomes = with_damage(outcomes, &found);
        let marked = mark.map(|epoch| mark_damaged(store, epoch, record.seq, &found));
        if let Some(Err(error)) = marked {
            let (job, seq, error) = (store.job(), record.seq, error.chain());
            tracing::warn!(%job, seq, error, "cannot mark a damaged checkpoint");
        }
    }
}

/// What is wrong with a checkpoint whose manifest points to one of these frames.
fn shared_damage(store: &JobStore, stored: &Stored, bad: &[(FrameRef, String)]) -> Option<String> {
    let Stored::Good { record, .. } = stored else { return None };
    let needs = |seq: u64| seq == record.seq || record.bases.contains(&seq);
    let known = matches!(stored.standing(), Standing::Damaged(_));
    if known || !bad.iter().any(|(frame, _)| needs(frame.seq)) {
        return None;
    }
    let entries = store.manifest(record.seq, record);
    let entries = entries.inspect_err(|error| {
        tracing::warn!(seq = record.seq, error = error.chain(), "cannot read a manifest");
    });
    entries.ok()?.map_while(Result::ok).find_map(|entry| {
        let uses = |frame: &FrameRef| {
            entry
                .chunks()
                .iter()
                .any(|chunk| (chunk.frame.seq, chunk.frame.at) == (frame.seq, frame.at))
        };
        bad.iter().find(|(frame, _)| uses(frame)).map(|(_, what)| what.clone())
    })
}

fn failed_in_a_row(attempts: &[AttemptOutcome]) -> usize {
    attempts.iter().rev().take_while(|attempt| !attempt.progressed).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ended::{Failed, Interrupted, Progressed};

    fn after(ends: &[(u32, Ended)]) -> Outcomes {
        ends.iter().fold(Outcomes::default(), |outcomes, &(attempt, ended)| {
            with_attempt(&outcomes, attempt, ended)
        })
    }

    fn check(ends: &[(u32, Ended)], suspect: bool) {
        assert_eq!(after(ends).suspect, suspect, "{ends:?}");
    }

    #[test]
    fn c12_two_failures_in_a_row_make_it_suspect() {
        check(&[(1, Failed)], false);
        check(&[(1, Failed), (2, Failed)], true);
        check(&[(1, Failed), (2, Progressed), (3, Failed)], false);
        check(&[(1, Failed), (2, Progressed), (3, Failed), (4, Failed)], true);
    }

    #[test]
    fn interruptions_neither_count_nor_end_a_row() {
        check(&[(1, Interrupted), (2, Interrupted), (3, Interrupted)], false);
        check(&[(1, Failed), (2, Interrupted)], false);
        check(&[(1, Failed), (2, Interrupted), (3, Failed)], true);
    }

    #[test]
    fn the_same_attempt_counts_once() {
        check(&[(1, Failed), (1, Failed), (1, Failed)], false);
        assert_eq!(after(&[(1, Failed), (1, Failed)]).attempts.len(), 1);
    }

    #[test]
    fn the_mark_stays_until_an_attempt_progresses() {
        check(&[(1, Failed), (2, Failed), (3, Failed)], true);
        check(&[(1, Failed), (2, Failed), (3, Interrupted)], true);
        check(&[(1, Failed), (2, Failed), (3, Progressed)], false);
    }

    #[test]
    fn lists_are_bounded() {
        let many: Vec<_> = (1..=200).map(|attempt| (attempt, Failed)).collect();
        let attempts = after(&many).attempts;
        assert_eq!(attempts.len(), MAX_LISTED);
        assert_eq!(attempts.last().unwrap().attempt, 200);
        let found: Vec<_> = (0..200).map(|n| format!("frame at {}", n % 100)).collect();
        assert_eq!(with_damage(&Outcomes::default(), &found).damaged.len(), MAX_LISTED);
    }
}

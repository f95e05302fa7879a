//! What became of the attempts that started from a checkpoint, and when that makes it suspect.

use crate::format::{AttemptOutcome, FORMAT, MAX_LISTED, Outcomes};

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

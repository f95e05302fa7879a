//! Which checkpoint the next attempt starts from; a pure decision over a listing.
//!
//! The order of preference, and within each kind the highest number (never the newest date: clocks
//! of nodes differ):
//!
//! 1. neither torn, suspect nor damaged;
//! 2. torn: its files may be half-written, but nothing has failed because of it yet;
//! 3. suspect: two attempts have failed from it. It is still better than none, because a start
//!    from nothing would lose the progress without a word, while the retry limit of the job bounds
//!    what a third failure costs;
//! 4. never a damaged one.

use std::cmp::Reverse;

use crate::error::{Error, Result};
use crate::stored::{Standing, Stored};

/// What to restore, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The checkpoint.
    pub seq: u64,
    /// Why that one, in a sentence for people.
    pub reason: String,
    /// The newer ones that were not taken, newest first.
    pub passed_over: Vec<PassedOver>,
}

/// A newer checkpoint that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Which.
    pub seq: u64,
    /// Why not, in a few words for people.
    pub why: String,
}

/// The checkpoint that the next attempt starts from; `None` where no checkpoint can be restored.
#[must_use]
pub fn newest(listing: &[Stored]) -> Option<Choice> {
    let restorable = |stored: &&Stored| !matches!(stored.standing(), Standing::Damaged(_));
    let better = |a: &&Stored, b: &&Stored| {
        a.standing().cmp(&b.standing()).then_with(|| b.seq().cmp(&a.seq()))
    };
    let best = listing.iter().filter(restorable).min_by(better)?;
    let passed_over = newer_than(listing, best.seq());
    let seq = best.seq();
    let reason = match (best.standing(), passed_over.is_empty()) {
        (Standing::Trusted, true) => format!("checkpoint {seq} is the newest"),
        (Standing::Trusted, false) => format!("checkpoint {seq} is the newest that can be trusted"),
        (Standing::Torn, _) => {
            format!("checkpoint {seq} is torn, but there is none that is whole and not suspect")
        }
        (Standing::Suspect | Standing::Damaged(_), _) => {
            format!("checkpoint {seq} is suspect, but there is no other that can be restored")
        }
    };
    Some(Choice { seq, reason, passed_over })
}

/// The checkpoint of this number, or the one that the next attempt starts from.
///
/// # Errors
/// As [`requested`] and [`none`].
pub fn wanted(job: &str, listing: &[Stored], seq: Option<u64>) -> Result<Choice> {
    match seq {
        Some(seq) => requested(job, listing, seq),
        None => newest(listing).ok_or_else(|| none(job, listing)),
    }
}

/// Why there is none for the next attempt, where [`newest`] finds none.
#[must_use]
pub fn none(job: &str, listing: &[Stored]) -> Error {
    let damaged = |stored: &Stored| match stored.standing() {
        Standing::Damaged(why) => Some((stored.seq(), why.to_owned())),
        _ => None,
    };
    match listing.iter().filter_map(damaged).max() {
        None => Error::NotFound { job: job.to_owned(), seq: None },
        Some((seq, why)) => {
            Error::Damaged { seq, what: format!("{why}; no other can be restored either") }
        }
    }
}

/// Why one was chosen, and what was passed over, in one line for people.
#[must_use]
pub fn explanation(reason: &str, passed_over: &[PassedOver]) -> String {
    let over = passed_over.iter().map(|over| format!("; {} is {}", over.seq, over.why));
    std::iter::once(reason.to_owned()).chain(over).collect()
}

/// The checkpoint that somebody asked for by number: a torn or suspect one is theirs to choose.
///
/// # Errors
/// `NotFound` where there is none of this number, `Damaged` where its data is known to be bad.
pub fn requested(job: &str, listing: &[Stored], seq: u64) -> Result<Choice> {
    let stored = listing
        .iter()
        .find(|stored| stored.seq() == seq)
        .ok_or_else(|| Error::NotFound { job: job.to_owned(), seq: Some(seq) })?;
    let reason = match stored.standing() {
        Standing::Damaged(why) => return Err(Error::Damaged { seq, what: why.to_owned() }),
        Standing::Trusted => format!("checkpoint {seq} was asked for"),
        Standing::Torn => format!("checkpoint {seq} was asked for, although it is torn"),
        Standing::Suspect => format!("checkpoint {seq} was asked for, although it is suspect"),
    };
    Ok(Choice { seq, reason, passed_over: Vec::new() })
}

fn newer_than(listing: &[Stored], seq: u64) -> Vec<PassedOver> {
    let mut newer: Vec<_> = listing.iter().filter(|stored| stored.seq() > seq).collect();
    newer.sort_by_key(|stored| Reverse(stored.seq()));
    newer.into_iter().map(|stored| PassedOver { seq: stored.seq(), why: why_not(stored) }).collect()
}

fn why_not(stored: &Stored) -> String {
    match stored.standing() {
        Standing::Damaged(why) => format!("damaged: {why}"),
        Standing::Suspect => "suspect: two attempts in a row failed from it".to_owned(),
        Standing::Torn => "torn: files were being written during its capture".to_owned(),
        Standing::Trusted => "not the newest".to_owned(), // Never: it would have been chosen.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::samples::{acked, damaged, marked_damaged, suspect, torn, unreadable};

    fn check(listing: &[Stored], expected: Option<u64>) {
        let mut backwards = listing.to_vec();
        backwards.reverse();
        assert_eq!(newest(listing).map(|choice| choice.seq), expected);
        assert_eq!(newest(&backwards), newest(listing), "the listing's order must not matter");
    }

    #[test]
    fn c11_numbers_are_ordered_as_numbers() {
        check(&[9, 10, 99, 100, 99_999, 100_000].map(acked), Some(100_000));
    }

    #[test]
    fn c103_dates_do_not_matter() {
        let mut ahead = acked(4);
        if let Stored::Good { record, .. } = &mut ahead {
            record.committed = "2037-01-01T00:00:00Z".parse().unwrap();
        }
        check(&[ahead, acked(5), acked(8)], Some(8));
    }

    #[test]
    fn whole_before_torn_before_suspect_and_never_damaged() {
        check(&[], None);
        check(&[acked(1), torn(2)], Some(1));
        check(&[torn(1), torn(2), unreadable(3)], Some(2));
        check(&[torn(1), suspect(2)], Some(1));
        check(&[suspect(1), suspect(2), marked_damaged(3)], Some(2));
        check(&[unreadable(1), marked_damaged(2)], None);
    }

    #[test]
    fn c12_the_one_before_a_suspect_one() {
        check(&[acked(11), suspect(12)], Some(11));
    }

    #[test]
    fn says_what_was_passed_over_and_why() {
        let choice = newest(&[acked(4), torn(5), suspect(6), damaged(7, "frame at 0 of seq 7")]);
        let choice = choice.unwrap();
        assert_eq!(choice.reason, "checkpoint 4 is the newest that can be trusted");
        let passed: Vec<_> =
            choice.passed_over.iter().map(|over| (over.seq, over.why.as_str())).collect();
        assert_eq!(
            passed,
            [
                (7, "damaged: frame at 0 of seq 7"),
                (6, "suspect: two attempts in a row failed from it"),
                (5, "torn: files were being written during its capture"),
            ]
        );
        assert_eq!(newest(&[acked(4)]).unwrap().reason, "checkpoint 4 is the newest");
    }

    #[test]
    fn an_operator_may_have_a_torn_or_suspect_one_but_not_a_damaged_one() {
        let listing = [acked(1), torn(2), suspect(3), marked_damaged(4)];
        for seq in 1..=3 {
            assert_eq!(requested("train", &listing, seq).unwrap().seq, seq);
        }
        assert!(matches!(requested("train", &listing, 4), Err(Error::Damaged { seq: 4, .. })));
        let missing = requested("train", &listing, 5).unwrap_err();
        assert_eq!(missing.to_string(), "job train has no checkpoint 5");
    }
}

//! Which checkpoints a store keeps; a pure plan over a listing.
//!
//! Everything goes by the order of the numbers, never by the clock: a node whose clock was years
//! ahead must not make a checkpoint immortal, or push a good one out. A checkpoint counts only where
//! it is trusted (neither torn, suspect nor damaged), so that bad ones never push good ones out.
//!
//! While the job runs, these stay:
//! - the newest `keep_last` trusted ones, and at least two, so that the newest has a predecessor
//!   to fall back to;
//! - the newest acknowledged one;
//! - of those that are newer than every trusted one, the newest few of each kind: they are what a
//!   restore would have to do with, or what somebody has to look at;
//! - whatever the next restore would choose.
//!
//! After the finish everything stays until `retain_after_finish` has passed, then only what a
//! restore would choose. A job without anything that can be restored keeps all it has.
//!
//! [`plan`] decides, [`execute`] does one step. Neither may run while a checkpoint of the job is
//! being written: what that one is going to point to must not go away meanwhile.

mod apply;
mod execute;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::choose;
use crate::error::{Error, Result};
use crate::stored::{Standing, Stored};

pub use apply::{apply, delete};
pub use execute::execute;

/// The newest checkpoint may prove bad, so it always has a trusted predecessor.
const MIN_KEPT: usize = 2;

/// What the job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Trusted checkpoints to keep while the job runs.
    pub keep_last: u32,
    /// How long all of them stay after the finish.
    pub retain_after_finish: Duration,
}

/// Where the job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// It has attempts ahead of it: running, suspended, recovering.
    Running,
    /// It succeeded or failed for good.
    Finished {
        /// When.
        at: Timestamp,
        /// What the time is.
        now: Timestamp,
    },
}

/// What is in the store of a job.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The checkpoints.
    pub listing: Vec<Stored>,
    /// Directories that are no checkpoints: retired ones, and those that a fence hides.
    pub retired: Vec<u64>,
}

/// One deletion. Each is safe to be cut short and done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The checkpoint ends; its archive stays for those that need it.
    Retire(u64),
    /// The checkpoint ends; its empty directory stays, because its number is the highest.
    Empty(u64),
    /// Nothing of it stays.
    Remove(u64),
}

/// What to delete, oldest first.
#[must_use]
pub fn plan(contents: &Contents, policy: &Policy, situation: Situation) -> Vec<Step> {
    let Some(next) = choose::newest(&contents.listing) else {
        return Vec::new();
    };
    let kept = match situation {
        Situation::Running => kept_while_running(&contents.listing, policy, next.seq),
        Situation::Finished { at, now } if has_passed(at, now, policy.retain_after_finish) => {
            BTreeSet::from([next.seq])
        }
        Situation::Finished { .. } => contents.listing.iter().map(Stored::seq).collect(),
    };
    steps(contents, &kept)
}

/// What deletes one checkpoint because somebody asked for it.
///
/// # Errors
/// `NotFound` where there is none of this number.
pub fn plan_delete(job: &str, contents: &Contents, seq: u64) -> Result<Vec<Step>> {
    let mut kept: BTreeSet<u64> = contents.listing.iter().map(Stored::seq).collect();
    if !kept.remove(&seq) {
        return Err(Error::NotFound { job: job.to_owned(), seq: Some(seq) });
    }
    Ok(steps(contents, &kept))
}

fn kept_while_running(listing: &[Stored], policy: &Policy, next: u64) -> BTreeSet<u64> {
    let mut newest_first: Vec<&Stored> = listing.iter().collect();
    newest_first.sort_by_key(|stored| Reverse(stored.seq()));
    let limit = usize::try_from(policy.keep_last).unwrap_or(usize::MAX).max(MIN_KEPT);
    let trusted = |stored: &&&Stored| stored.standing() == Standing::Trusted;

    let mut kept = BTreeSet::from([next]);
    kept.extend(newest_first.iter().filter(trusted).take(limit).map(|stored| stored.seq()));
    kept.extend(newest_acked(&newest_first));
    let newer = newest_first.iter().take_while(|stored| !trusted(stored));
    let (damaged, doubtful): (Vec<&Stored>, Vec<&Stored>) =
        newer.copied().partition(|stored| matches!(stored.standing(), Standing::Damaged(_)));
    kept.extend(doubtful.iter().take(limit).map(|stored| stored.seq()));
    kept.extend(damaged.iter().take(limit).map(|stored| stored.seq()));
    kept
}

/// The newest acknowledged one that is trusted; where there is none, the newest suspect one.
fn newest_acked(newest_first: &[&Stored]) -> Option<u64> {
    [Standing::Trusted, Standing::Suspect].into_iter().find_map(|standing| {
        let wanted = |stored: &&&Stored| stored.is_acked() && stored.standing() == standing;
        newest_first.iter().find(wanted).map(|stored| stored.seq())
    })
}

/// Whether it is that long ago; a finish that lies in the future is not.
fn has_passed(at: Timestamp, now: Timestamp, wait: Duration) -> bool {
    Duration::try_from(now.duration_since(at)).is_ok_and(|past| past >= wait)
}

fn steps(contents: &Contents, kept: &BTreeSet<u64>) -> Vec<Step> {
    let stays = |seq: u64| contents.listing.iter().find(|stored| stored.seq() == seq);
    let needed: BTreeSet<u64> =
        kept.iter().filter_map(|&seq| stays(seq)).flat_map(Stored::bases).copied().collect();
    let checkpoints = contents.listing.iter().map(Stored::seq);
    let all: BTreeSet<u64> = checkpoints.chain(contents.retired.iter().copied()).collect();
    // A number is never used twice, and the highest one is known by its directory only.
    let highest = all.last().copied();
    let step = |&seq: &u64| {
        let exists = !contents.retired.contains(&seq);
        match (needed.contains(&seq), Some(seq) == highest) {
            _ if kept.contains(&seq) => None,
            (true, _) => exists.then_some(Step::Retire(seq)),
            (false, true) => exists.then_some(Step::Empty(seq)),
            (false, false) => Some(Step::Remove(seq)),
        }
    };
    all.iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use nodus_protocol::checkpoint::Consistency::{Acked, Quiet};
    use proptest::prelude::*;

    use super::Step::{Empty, Remove, Retire};
    use super::*;
    use crate::stored::samples::{acked, damaged, quiet, stored, suspect, torn, unreadable};

    const WEEK: Duration = Duration::from_secs(168 * 3600);

    fn policy(keep_last: u32) -> Policy {
        Policy { keep_last, retain_after_finish: WEEK }
    }

    fn finished(at: &str, now: &str) -> Situation {
        Situation::Finished { at: at.parse().unwrap(), now: now.parse().unwrap() }
    }

    fn check(listing: &[Stored], keep_last: u32, situation: Situation, expected: &[Step]) {
        let contents = Contents { listing: listing.to_vec(), retired: Vec::new() };
        assert_eq!(plan(&contents, &policy(keep_last), situation), expected);
    }

    fn running(listing: &[Stored], keep_last: u32, expected: &[Step]) {
        check(listing, keep_last, Situation::Running, expected);
    }

    #[test]
    fn the_newest_few_stay() {
        running(&[], 3, &[]);
        running(&[1, 2, 3].map(acked), 3, &[]);
        running(&[1, 2, 3, 4, 5].map(acked), 3, &[Remove(1), Remove(2)]);
    }

    #[test]
    fn the_newest_acked_one_stays_beside_them() {
        running(
            &[acked(1), acked(2), quiet(3), quiet(4), quiet(5), quiet(6)],
            2,
            &[Remove(1), Remove(3), Remove(4)],
        );
    }

    #[test]
    fn c15_the_newest_has_a_predecessor_whatever_the_policy() {
        running(&[8000, 9000, 9500].map(acked), 1, &[Remove(8000)]);
        running(&[acked(1), acked(2), torn(3), acked(4)], 1, &[Remove(1), Remove(3)]);
    }

    #[test]
    fn c45_an_archive_that_a_kept_one_needs_stays() {
        let listing = [
            acked(1),
            stored(2, Acked, &[1]),
            stored(3, Acked, &[1, 2]),
            stored(4, Acked, &[1]),
            stored(5, Acked, &[1]),
        ];
        running(&listing, 2, &[Retire(1), Remove(2), Remove(3)]);
        let next = [stored(4, Acked, &[1]), stored(5, Acked, &[1])];
        let contents = Contents { listing: next.to_vec(), retired: vec![1] };
        assert_eq!(plan(&contents, &policy(2), Situation::Running), []);
        let later = [stored(4, Acked, &[]), stored(5, Acked, &[])];
        let contents = Contents { listing: later.to_vec(), retired: vec![1] };
        assert_eq!(plan(&contents, &policy(2), Situation::Running), [Remove(1)]);
    }

    #[test]
    fn c47_bad_ones_do_not_push_good_ones_out() {
        running(&[acked(1), acked(2), torn(4)], 2, &[]);
        running(&[acked(1), acked(2), torn(4), acked(6)], 2, &[Remove(1), Remove(4)]);
        running(&[acked(1), acked(2), suspect(3), unreadable(4)], 2, &[]);
    }

    #[test]
    fn bad_ones_are_bounded_too() {
        let mut listing = vec![acked(1), acked(2)];
        listing.extend((3..=7).map(torn));
        listing.extend((8..=11).map(unreadable));
        let gone = [3, 4, 5, 8, 9].map(Remove);
        running(&listing, 2, &gone);
        let only_torn: Vec<_> = (1..=5).map(torn).collect();
        running(&only_torn, 2, &[1, 2, 3].map(Remove));
    }

    #[test]
    fn without_anything_to_restore_nothing_goes() {
        running(&[unreadable(1), damaged(2, "frame"), unreadable(3), unreadable(4)], 1, &[]);
    }

    #[test]
    fn c103_the_clock_decides_nothing_while_running() {
        let mut ahead = acked(4);
        if let Stored::Good { record, .. } = &mut ahead {
            record.committed = "2037-01-01T00:00:00Z".parse().unwrap();
        }
        running(
            &[ahead, acked(5), acked(6), acked(7), acked(8)],
            2,
            &[Remove(4), Remove(5), Remove(6)],
        );
    }

    #[test]
    fn after_the_finish_only_the_final_one_once_the_time_has_passed() {
        let listing = [acked(1), stored(2, Quiet, &[1]), acked(3), stored(4, Acked, &[2]), torn(5)];
        let at = "2026-11-30T12:00:00Z";
        check(&listing, 1, finished(at, "2026-12-07T11:59:59Z"), &[]);
        let after = finished(at, "2026-12-07T12:00:00Z");
        check(&listing, 1, after, &[Remove(1), Retire(2), Remove(3), Empty(5)]);
        check(&listing, 1, finished("2037-01-01T00:00:00Z", at), &[]);
    }

    #[test]
    fn one_that_somebody_deletes_leaves_what_others_need() {
        let listing = [acked(1), stored(2, Acked, &[1]), acked(3)];
        let contents = Contents { listing: listing.to_vec(), retired: Vec::new() };
        let delete = |seq| plan_delete("train", &contents, seq);
        assert_eq!(delete(1).unwrap(), [Retire(1)]);
        assert_eq!(delete(2).unwrap(), [Remove(2)]);
        assert_eq!(delete(3).unwrap(), [Empty(3)], "its number must not be used again");
        assert!(matches!(delete(4), Err(Error::NotFound { seq: Some(4), .. })));
    }

    fn any_listing() -> impl Strategy<Value = Vec<Stored>> {
        let kind = (0..5_u8, proptest::collection::vec(1..40_u64, 0..4));
        proptest::collection::vec(kind, 0..40).prop_map(|kinds| {
            let make = |(seq, (kind, bases)): (u64, (u8, Vec<u64>))| match kind {
                0 => unreadable(seq),
                1 => torn(seq),
                2 => suspect(seq),
                _ => {
                    let bases: Vec<u64> = bases.into_iter().filter(|&base| base < seq).collect();
                    stored(seq, if kind == 3 { Quiet } else { Acked }, &bases)
                }
            };
            (1..).zip(kinds).map(make).collect()
        })
    }

    proptest! {
        #[test]
        fn whatever_happens(listing in any_listing(), keep_last in 1..5_u32) {
            let contents = Contents { listing: listing.clone(), retired: Vec::new() };
            let steps = plan(&contents, &policy(keep_last), Situation::Running);
            let gone: BTreeSet<u64> =
                steps.iter().map(|&(Retire(seq) | Empty(seq) | Remove(seq))| seq).collect();
            let kept: Vec<Stored> =
                listing.iter().filter(|stored| !gone.contains(&stored.seq())).cloned().collect();
            // The next restore is the same as before.
            let seq = |choice: Option<choose::Choice>| choice.map(|choice| choice.seq);
            prop_assert_eq!(seq(choose::newest(&kept)), seq(choose::newest(&listing)));
            // No kept one lost an archive.
            for base in kept.iter().flat_map(Stored::bases) {
                prop_assert!(!steps.contains(&Remove(*base)) && !steps.contains(&Empty(*base)));
            }
            // As many trusted ones stay as the policy says, or all there are.
            let trusted = |list: &[Stored]| {
                list.iter().filter(|stored| stored.standing() == Standing::Trusted).count()
            };
            let limit = (keep_last as usize).max(MIN_KEPT);
            prop_assert!(trusted(&kept) >= trusted(&listing).min(limit));
            // And the whole is bounded: trusted, acked, torn or suspect, damaged, the next.
            if choose::newest(&listing).is_some() {
                prop_assert!(kept.len() <= 3 * limit + 2);
            }
        }
    }
}

//! What the interval is computed from: what checkpoints cost, and how long the job will run.

use std::time::Duration;

use nodus_protocol::event::Progress;
use serde::{Deserialize, Serialize};

use crate::coordinator::Cost;

/// The part of a new measurement in the smoothed one: a change shows after about three checkpoints.
const WEIGHT: f64 = 0.3;

/// What checkpoints cost, smoothed over the last ones. Kept with the job, so that neither a new
/// attempt nor a new agent begins without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Costs {
    /// B: how long a checkpoint holds the program up.
    pub held_up: Duration,
    /// D: how long it takes until it is committed.
    pub until_committed: Duration,
}

impl Costs {
    pub(super) fn observe(known: Option<Self>, cost: &Cost) -> Self {
        let new = Self { held_up: cost.held_up, until_committed: cost.until_committed };
        let Some(known) = known else { return new };
        let smoothed = Self {
            held_up: smooth(known.held_up, new.held_up),
            until_committed: smooth(known.until_committed, new.until_committed),
        };
        if cost.committed {
            return smoothed;
        }
        // One that failed would have taken longer, so it can only raise what is expected.
        Self {
            held_up: smoothed.held_up.max(known.held_up),
            until_committed: smoothed.until_committed.max(known.until_committed),
        }
    }
}

fn smooth(known: Duration, new: Duration) -> Duration {
    super::seconds(known.as_secs_f64() * (1.0 - WEIGHT) + new.as_secs_f64() * WEIGHT)
}

/// How long the job will run in all: as stated, then as its progress says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunTime {
    expected: Option<Duration>,
    first: Option<Reported>,
    furthest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    elapsed: Duration,
    completed: u64,
}

impl RunTime {
    pub(super) fn stated(expected: Option<Duration>) -> Self {
        Self { expected, ..Self::default() }
    }

    pub(super) fn expected(&self) -> Option<Duration> {
        self.expected
    }

    /// Takes a report in. The rate is measured from the first report on, since a program may begin
    /// in the middle; reports that do not go beyond the furthest one say nothing about the rate,
    /// as after a restore.
    pub(super) fn refine(&mut self, elapsed: Duration, progress: Progress) {
        let Progress { completed, total } = progress;
        let Some(first) = self.first else {
            self.first = Some(Reported { elapsed, completed });
            self.furthest = completed;
            return;
        };
        let Some(total) = total.filter(|total| completed <= *total) else { return };
        if completed <= self.furthest || elapsed <= first.elapsed {
            return;
        }
        self.furthest = completed;
        let took = (elapsed - first.elapsed).as_secs_f64();
        // Exact up to 2^53 units; beyond, a rounding error is not seen in an estimate.
        #[allow(clippy::cast_precision_loss)]
        let (left, done) = ((total - completed) as f64, (completed - first.completed) as f64);
        let left = super::seconds(took * left / done);
        self.expected = Some(elapsed.saturating_add(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn cost(held_up: u64, until_committed: u64, committed: bool) -> Cost {
        Cost { held_up: secs(held_up), until_committed: secs(until_committed), committed }
    }

    #[test]
    fn costs_follow_the_last_checkpoints() {
        let first = Costs::observe(None, &cost(10, 100, true));
        assert_eq!(first, Costs { held_up: secs(10), until_committed: secs(100) });
        let second = Costs::observe(Some(first), &cost(20, 200, true));
        assert_eq!(second, Costs { held_up: secs(13), until_committed: secs(130) });
        let mut costs = second;
        for _ in 0..20 {
            costs = Costs::observe(Some(costs), &cost(1, 2, true));
        }
        assert!(costs.until_committed < secs(3), "{costs:?}");
    }

    #[test]
    fn a_failed_checkpoint_can_only_raise_the_costs() {
        let known = Costs { held_up: secs(10), until_committed: secs(100) };
        assert_eq!(Costs::observe(Some(known), &cost(0, 1, false)), known);
        let raised = Costs::observe(Some(known), &cost(0, 200, false));
        assert_eq!(raised, Costs { until_committed: secs(130), ..known });
    }

    /// (elapsed, completed, total, expected afterwards), in seconds.
    fn check(stated: Option<u64>, reports: &[(u64, u64, Option<u64>, Option<u64>)]) {
        let mut run = RunTime::stated(stated.map(secs));
        for &(elapsed, completed, total, expected) in reports {
            run.refine(secs(elapsed), Progress { completed, total });
            assert_eq!(run.expected(), expected.map(secs), "after {elapsed} s: {completed}");
        }
    }

    #[test]
    fn progress_refines_the_expected_run_time() {
        check(None, &[(0, 0, Some(100), None), (50, 10, Some(100), Some(500))]);
        check(Some(900), &[(0, 0, Some(100), Some(900)), (50, 10, Some(100), Some(500))]);
        // It slows down, and says a new total.
        check(
            None,
            &[(0, 0, Some(10), None), (100, 5, Some(10), Some(200)), (300, 6, Some(12), Some(600))],
        );
    }

    #[test]
    fn a_program_that_begins_in_the_middle_is_measured_from_there() {
        check(None, &[(10, 500, Some(1000), None), (110, 600, Some(1000), Some(510))]);
    }

    #[test]
    fn reports_that_say_nothing_about_the_rate_change_nothing() {
        let known = Some(500);
        check(
            None,
            &[
                (0, 0, Some(100), None),
                (50, 10, Some(100), known),
                (60, 10, Some(100), known),
                (70, 4, Some(100), known),
                (80, 300, Some(100), known),
                (90, 12, None, known),
                (0, 50, Some(100), known),
                (100, 20, Some(100), known),
            ],
        );
    }
}

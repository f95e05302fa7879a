//! When the next checkpoint is due.
//!
//! `interval: auto` weighs what a checkpoint costs against what an interruption destroys. Three
//! numbers go in: B, how long a checkpoint holds the program up; D, how long it takes until it is
//! committed; M, the mean time between interruptions. The interval is J. Daly's higher-order
//! optimum over B and M (Future Generation Computer Systems 22, 2006, equation 37), then, each rule
//! over the one before it:
//!
//! 1. at least ten times D, so that checkpointing takes no more than a tenth of the time;
//! 2. at most a fifth of the expected run time, so that four are taken before it ends;
//! 3. from one minute to six hours.
//!
//! The first checkpoint comes after a minute, so that B and D exist and a broken save path shows
//! early. Where the end is known, the last one is placed before it with room for its D; that holds
//! for a fixed interval too.
//!
//! Nothing here reads a clock. [`Cadence::next`] is asked again whenever something has changed.

mod history;
mod inputs;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use nodus_protocol::control::{CadenceInfo, Condition};
use nodus_protocol::event::Progress;
use nodus_protocol::spec::{Interval, MAX_INTERVAL, MIN_INTERVAL};

use crate::coordinator::Cost;
pub use history::{InterruptionHistory, Prior};
pub use inputs::Costs;
use inputs::RunTime;

/// When the first checkpoint of a job is taken, and the next one as long as none has come so far
/// that its cost is known.
pub const FIRST: Duration = Duration::from_secs(60);

/// Checkpointing takes at most one part in this many of the time.
const COST_PARTS: u32 = 10;

/// One interval in this many is left over, so that one fewer checkpoints are taken.
const RUN_PARTS: u32 = 5;

/// Beside its expected D, and half of that, for the last checkpoint before a known end.
const END_MARGIN: Duration = Duration::from_secs(5);

/// The rule that decided when the next checkpoint is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The job's description states the interval.
    Fixed,
    /// No checkpoint has been taken yet whose cost is known.
    First,
    /// Daly's optimum.
    Daly,
    /// Ten times D.
    CostBound,
    /// A fifth of the expected run time.
    FourCheckpoints,
    /// The shortest interval that is allowed.
    MinClamp,
    /// The longest interval that is allowed.
    MaxClamp,
    /// The last one before a known end.
    BeforeEnd,
}

/// The name as it is on every surface.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// What a decision was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// B and D, once they are known.
    pub costs: Option<Costs>,
    /// M.
    pub between_interruptions: Duration,
    /// As stated, or as progress says.
    pub expected_run_time: Option<Duration>,
}

/// When the next checkpoint is due, and why then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time from the newest checkpoint, or the beginning of the attempt, to the next.
    pub interval: Duration,
    /// What decided.
    pub rule: Rule,
    /// When it is due; may be over already.
    pub next_at: Instant,
    /// Checkpointing takes more than a tenth of the time, because another bound asks for it.
    pub constrained: bool,
    /// What it was computed from.
    pub inputs: Inputs,
}

/// Where the attempt is when the next checkpoint is to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When the attempt's program was started.
    pub started: Instant,
    /// When the newest checkpoint of this attempt was captured, or ended without coming so far.
    pub last: Option<Instant>,
    /// When the attempt will be ended from outside, where that is known.
    pub ends_at: Option<Instant>,
    /// M: [`InterruptionHistory::mean_between`].
    pub between_interruptions: Duration,
}

/// Decides when the next checkpoint of one job is due.
#[derive(Clone, Debug)]
pub struct Cadence {
    interval: Interval,
    run_time: RunTime,
    costs: Option<Costs>,
}

impl Cadence {
    /// The cadence of a job; `costs` are those of its earlier checkpoints, if there were any.
    #[must_use]
    pub fn new(
        interval: Interval,
        expected_run_time: Option<Duration>,
        costs: Option<Costs>,
    ) -> Self {
        Self { interval, run_time: RunTime::stated(expected_run_time), costs }
    }

    /// Takes in what a checkpoint cost.
    pub fn observe(&mut self, cost: &Cost) {
        self.costs = Some(Costs::observe(self.costs, cost));
    }

    /// Takes in how far the program is after it has run for `elapsed`, over all attempts.
    pub fn progress(&mut self, elapsed: Duration, progress: Progress) {
        self.run_time.refine(elapsed, progress);
    }

    /// What is known about the cost of a checkpoint, to be kept with the job.
    #[must_use]
    pub fn costs(&self) -> Option<Costs> {
        self.costs
    }

    /// When the next checkpoint is due.
    #[must_use]
    pub fn next(&self, moment: &Moment) -> Decision {
        let inputs = Inputs {
            costs: self.costs,
            between_interruptions: moment.between_interruptions,
            expected_run_time: self.run_time.expected(),
        };
        let (interval, rule) = match (self.interval, self.costs) {
            (Interval::Fixed(interval), _) => (interval, Rule::Fixed),
            (Interval::Auto, None) => (FIRST, Rule::First),
            (Interval::Auto, Some(costs)) => best(costs, &inputs),
        };
        let bound = inputs.costs.map_or(Duration::ZERO, cost_bound);
        let constrained = self.interval == Interval::Auto && interval < bound;
        let from = moment.last.unwrap_or(moment.started);
        let decision =
            Decision { interval, rule, next_at: later(from, interval), constrained, inputs };
        match moment.ends_at.and_then(|end| decision.last_before(from, end)) {
            None => decision,
            Some(at) => {
                Decision { interval: at - from, rule: Rule::BeforeEnd, next_at: at, ..decision }
            }
        }
    }
}

/// The optimum within its bounds.
fn best(costs: Costs, inputs: &Inputs) -> (Duration, Rule) {
    let daly = daly(costs.held_up.as_secs_f64(), inputs.between_interruptions.as_secs_f64());
    let mut best = (seconds(daly), Rule::Daly);
    if best.0 < cost_bound(costs) {
        best = (cost_bound(costs), Rule::CostBound);
    }
    if let Some(run) = inputs.expected_run_time
        && best.0 > run / RUN_PARTS
    {
        best = (run / RUN_PARTS, Rule::FourCheckpoints);
    }
    if best.0 < MIN_INTERVAL {
        best = (MIN_INTERVAL, Rule::MinClamp);
    } else if best.0 > MAX_INTERVAL {
        best = (MAX_INTERVAL, Rule::MaxClamp);
    }
    best
}

fn cost_bound(costs: Costs) -> Duration {
    costs.until_committed.saturating_mul(COST_PARTS)
}

/// Daly's higher-order estimate of the optimum time between two checkpoints that cost `b` each,
/// with `m` between interruptions.
fn daly(b: f64, m: f64) -> f64 {
    if b >= 2.0 * m {
        return m;
    }
    let part = b / (2.0 * m);
    (2.0 * b * m).sqrt() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - b
}

impl Decision {
    /// The moment of the last checkpoint before `end`, where that is the next one.
    fn last_before(&self, from: Instant, end: Instant) -> Option<Instant> {
        let expected = self.inputs.costs.map_or(FIRST, |costs| costs.until_committed);
        let room = expected.saturating_add(expected / 2).saturating_add(END_MARGIN);
        let at = end.checked_sub(room).filter(|at| *at > from)?;
        // A regular one so shortly before it would cost as much and save little.
        let least = match self.rule {
            Rule::Fixed => Duration::ZERO,
            _ => {
                let bound = self.inputs.costs.map_or(Duration::ZERO, cost_bound);
                (self.interval / 2).max(bound.min(self.interval))
            }
        };
        (at - from < self.interval.saturating_add(least)).then_some(at)
    }

    /// What `nodusctl describe` shows, with `now` on both clocks.
    #[must_use]
    pub fn info(&self, now: Instant, now_utc: Timestamp) -> CadenceInfo {
        let ahead = SignedDuration::try_from(self.next_at.saturating_duration_since(now));
        let costs = self.inputs.costs;
        CadenceInfo {
            interval: self.interval,
            rule: self.rule.to_string(),
            next: ahead.ok().and_then(|ahead| now_utc.checked_add(ahead).ok()),
            held_up: costs.map(|costs| costs.held_up),
            until_committed: costs.map(|costs| costs.until_committed),
            between_interruptions: Some(self.inputs.between_interruptions),
            expected_run_time: self.inputs.expected_run_time,
        }
    }

    /// `CadenceConstrained`, where the tenth is exceeded.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        let costs = self.inputs.costs.filter(|_| self.constrained)?;
        let message = format!(
            "a checkpoint takes {} and is taken every {}, so that checkpointing takes more than a \
             tenth of the time",
            nodus_protocol::units::format_duration(costs.until_committed),
            nodus_protocol::units::format_duration(self.interval),
        );
        Some(Condition { name: "CadenceConstrained".to_owned(), message })
    }
}

/// An instant that cannot be told any more is never reached: a year stands for it.
fn later(from: Instant, interval: Duration) -> Instant {
    from.checked_add(interval).unwrap_or(from + Duration::from_secs(365 * 86_400))
}

fn seconds(seconds: f64) -> Duration {
    if seconds <= 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

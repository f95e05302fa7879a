//! How often the capacity is interrupted: what is assumed, corrected by what this node has seen.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is assumed about interruptions before any was seen: a Gamma distribution of their rate. A
/// light one is soon corrected, and does little harm meanwhile: the interval goes with the square
/// root, so a mean that is wrong by four makes it wrong by two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// The mean time between interruptions.
    pub mean: Duration,
    /// How many seen interruptions it takes for what was seen to weigh as much as this assumption.
    pub weight: f64,
}

/// What a node has seen; kept over reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterruptionHistory {
    /// How often attempts were taken away without it being planned.
    pub interruptions: u64,
    /// How long attempts ran, each stretch of time counted once however many ran in it.
    pub uptime: Duration,
}

impl InterruptionHistory {
    /// Adds time in which an interruption could have come. A planned end adds nothing else.
    pub fn up(&mut self, duration: Duration) {
        self.uptime = self.uptime.saturating_add(duration);
    }

    /// Adds an interruption.
    pub fn interrupted(&mut self) {
        self.interruptions = self.interruptions.saturating_add(1);
    }

    /// M, the mean time between interruptions: one over the mean of the posterior of their rate.
    #[must_use]
    pub fn mean_between(&self, prior: &Prior) -> Duration {
        // A weight of nothing would divide nothing by nothing until the first interruption.
        let weight = prior.weight.max(0.01);
        // Rounding of counts past 2^53 is not seen in a mean.
        #[allow(clippy::cast_precision_loss)]
        let seen = self.interruptions as f64;
        let time = weight * prior.mean.as_secs_f64() + self.uptime.as_secs_f64();
        super::seconds(time / (weight + seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn prior() -> Prior {
        Prior { mean: 10 * HOUR, weight: 2.0 }
    }

    #[test]
    fn what_was_seen_corrects_what_was_assumed() {
        let mut history = InterruptionHistory::default();
        assert_eq!(history.mean_between(&prior()), 10 * HOUR);
        history.up(20 * HOUR);
        assert_eq!(history.mean_between(&prior()), 20 * HOUR, "quiet time raises it");
        history.interrupted();
        history.interrupted();
        assert_eq!(history.mean_between(&prior()), 10 * HOUR, "interruptions lower it");
        for _ in 0..1000 {
            history.up(3 * HOUR);
            history.interrupted();
        }
        let mean = history.mean_between(&prior()).as_secs_f64() / HOUR.as_secs_f64();
        assert!((3.0..3.1).contains(&mean), "{mean} h: the assumption wears off");
    }

    #[test]
    fn a_history_outlives_the_process() {
        let history = InterruptionHistory { interruptions: 3, uptime: 77 * HOUR };
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<InterruptionHistory>(&text).unwrap(), history);
        let empty: InterruptionHistory = serde_json::from_str("{}").unwrap();
        assert_eq!(empty, InterruptionHistory::default());
    }

    #[test]
    fn a_prior_without_weight_or_mean_still_gives_a_time() {
        let history = InterruptionHistory::default();
        let nothing = Prior { mean: HOUR, weight: 0.0 };
        assert_eq!(history.mean_between(&nothing), HOUR);
        let endless = Prior { mean: Duration::MAX, weight: 9.0 };
        assert_eq!(history.mean_between(&endless), Duration::MAX);
    }
}

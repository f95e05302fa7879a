//! What takes minutes of real time: `cargo test -p nodus-tests --test slow -- --ignored`.

use std::time::Duration;

use nodus_tests::wait;
use nodus_tests::{Agent, Job};

/// Two intervals of the shortest length that can be asked for.
#[test]
#[ignore = "takes two minutes"]
fn an_interval_of_a_minute_is_kept() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "interval: 1m");
    puppet.subscriber().answer_all();
    let mut times = Vec::new();
    for round in 0..2 {
        puppet.save("progress", &round.to_string());
        let count = usize::try_from(round).expect("small") + 1;
        wait::until("the next checkpoint", Duration::from_secs(75), || job.stored().len() == count);
        times.push(std::time::Instant::now());
        let newest = job.newest();
        assert_eq!(
            (&newest["cause"], &newest["consistency"]),
            (&"Interval".into(), &"Acked".into())
        );
    }
    let between = times[1] - times[0];
    assert!((57..=65).contains(&between.as_secs()), "{between:?} between them");
    assert_eq!(job.describe()["cadence"]["interval"], "1m");
}

use proptest::prelude::*;

use super::*;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn cost(held_up: u64, until_committed: u64) -> Cost {
    Cost { held_up: secs(held_up), until_committed: secs(until_committed), committed: true }
}

/// The decision with B, D, M and run length in seconds, and what is left until a known end.
fn decide(
    interval: Interval,
    costs: Option<(u64, u64)>,
    m: u64,
    run: Option<u64>,
    left: Option<u64>,
) -> (Instant, Decision) {
    let mut cadence = Cadence::new(interval, run.map(secs), None);
    if let Some((b, d)) = costs {
        cadence.observe(&cost(b, d));
    }
    let started = Instant::now();
    let moment = Moment {
        started,
        last: None,
        ends_at: left.map(|left| started + secs(left)),
        between_interruptions: secs(m),
    };
    (started, cadence.next(&moment))
}

/// Checks the interval in seconds and the rule of `interval: auto`.
fn check(costs: (u64, u64), m: u64, run: Option<u64>, interval: u64, rule: Rule) -> Decision {
    let (started, decision) = decide(Interval::Auto, Some(costs), m, run, None);
    let what = format!("B, D = {costs:?}, M = {m}, run = {run:?}");
    assert_eq!((decision.interval.as_secs(), decision.rule), (interval, rule), "{what}");
    assert_eq!(decision.next_at, started + decision.interval, "{what}");
    decision
}

#[test]
fn dalys_optimum() {
    // sqrt(2 * 20 * 86400) = 1859; times 1 + 0.0108/3 + 0.000116/9 less 20.
    check((20, 60), DAY, None, 1845, Rule::Daly);
    assert!((daly(20.0, 86_400.0) - 1845.7).abs() < 0.1);
    assert!((daly(300.0, 100.0) - 100.0).abs() < 1e-9, "past 2M it is M");
    assert!((daly(199.9, 100.0) - 100.0).abs() < 100.0, "and nothing wild just before");
}

#[test]
fn each_rule_goes_over_the_one_before() {
    check((20, 300), DAY, None, 3000, Rule::CostBound);
    check((20, 60), DAY, Some(8 * HOUR), 1845, Rule::Daly);
    check((20, 60), DAY, Some(2 * HOUR), 1440, Rule::FourCheckpoints);
    check((0, 0), DAY, None, 60, Rule::MinClamp);
    check((20, 1), DAY, Some(100), 60, Rule::MinClamp);
    check((300, 600), 365 * DAY, None, 6 * HOUR, Rule::MaxClamp);
}

#[test]
fn four_checkpoints_win_over_the_tenth_and_say_so() {
    let decision = check((20, 300), DAY, Some(2 * HOUR), 1440, Rule::FourCheckpoints);
    let condition = decision.condition().unwrap();
    assert_eq!(condition.name, "CadenceConstrained");
    assert!(condition.message.contains("5m") && condition.message.contains("24m"), "{condition:?}");
    let free = check((20, 300), DAY, Some(20 * HOUR), 3000, Rule::CostBound);
    assert_eq!(free.condition(), None);
    let clamped = check((20, 3 * HOUR), DAY, None, 6 * HOUR, Rule::MaxClamp);
    assert!(clamped.constrained, "six hours are less than ten times three");
}

#[test]
fn the_first_comes_after_a_minute() {
    let (started, decision) = decide(Interval::Auto, None, DAY, Some(8 * HOUR), None);
    assert_eq!((decision.rule, decision.next_at), (Rule::First, started + secs(60)));
    assert_eq!(decision.inputs.costs, None);
}

#[test]
fn the_next_is_counted_from_the_last_one_of_the_attempt() {
    let mut cadence = Cadence::new(Interval::Auto, None, None);
    cadence.observe(&cost(20, 60));
    let started = Instant::now();
    let last = started + secs(777);
    let moment =
        Moment { started, last: Some(last), ends_at: None, between_interruptions: secs(DAY) };
    let decision = cadence.next(&moment);
    assert_eq!(decision.next_at, last + decision.interval);
    let again = Cadence::new(Interval::Auto, None, cadence.costs());
    assert_eq!(again.next(&moment), decision, "a new agent decides the same");
}

#[test]
fn a_fixed_interval_stays_as_it_is() {
    let fixed = Interval::Fixed(secs(300));
    for costs in [None, Some((20, 600))] {
        let (_, decision) = decide(fixed, costs, HOUR, Some(600), None);
        assert_eq!((decision.interval, decision.rule), (secs(300), Rule::Fixed));
        assert!(!decision.constrained, "it is what the user asked for");
    }
}

#[test]
fn one_is_placed_before_a_known_end_with_room_for_it() {
    // D = 60: 60 + 30 + 5 seconds of room; the interval is 1845.
    let at = |left| {
        let (started, decision) = decide(Interval::Auto, Some((20, 60)), DAY, None, Some(left));
        (decision.rule, (decision.next_at - started).as_secs())
    };
    assert_eq!(at(DAY), (Rule::Daly, 1845), "the end is far off");
    assert_eq!(at(1000), (Rule::BeforeEnd, 905), "the next would come too late");
    assert_eq!(at(1900), (Rule::BeforeEnd, 1805), "or not in time");
    assert_eq!(at(2500), (Rule::BeforeEnd, 2405), "a regular one just before is left out");
    assert_eq!(at(3000), (Rule::Daly, 1845), "one well before is not");
    assert_eq!(at(90), (Rule::Daly, 1845), "there is no room for any");

    let (started, fixed) = decide(Interval::Fixed(secs(600)), None, DAY, None, Some(500));
    assert_eq!((fixed.rule, fixed.next_at), (Rule::BeforeEnd, started + secs(500 - 95)));
}

#[test]
fn what_describe_shows() {
    let (started, decision) = decide(Interval::Auto, Some((20, 60)), DAY, Some(8 * HOUR), None);
    let now_utc: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let info = decision.info(started + secs(45), now_utc);
    assert_eq!(info.rule, "Daly");
    assert_eq!(info.interval, decision.interval);
    assert_eq!(info.next.unwrap().to_string()[..19], *"2026-01-01T00:30:00");
    assert_eq!(info.held_up, Some(secs(20)));
    assert_eq!(info.until_committed, Some(secs(60)));
    assert_eq!(info.between_interruptions, Some(secs(DAY)));
    assert_eq!(info.expected_run_time, Some(secs(8 * HOUR)));
}

proptest! {
    #[test]
    fn the_interval_keeps_its_bounds_whatever_goes_in(
        b in any::<u64>(), d in any::<u64>(), m in any::<u64>(), run in any::<Option<u64>>(),
        small in 0u32..64,
    ) {
        let shrunk = |value: u64| secs(value >> small);
        let costs = Costs { held_up: shrunk(b), until_committed: shrunk(d) };
        let cadence = Cadence::new(Interval::Auto, run.map(shrunk), Some(costs));
        let moment = Moment {
            started: Instant::now(),
            last: None,
            ends_at: None,
            between_interruptions: shrunk(m),
        };
        let decision = cadence.next(&moment);
        prop_assert!((MIN_INTERVAL..=MAX_INTERVAL).contains(&decision.interval));
        let tenth = costs.until_committed.saturating_mul(10);
        prop_assert_eq!(decision.constrained, decision.interval < tenth);
        if let Some(run) = run.map(shrunk) {
            prop_assert!(decision.interval <= (run / 5).max(MIN_INTERVAL));
        }
    }
}

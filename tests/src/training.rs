//! Reading what the example programs print.

use std::path::Path;

use crate::source;

/// The interpreter; the system's own first, since it needs nothing of anybody's environment.
#[must_use]
pub fn python() -> &'static str {
    let system = "/usr/bin/python3";
    if Path::new(system).exists() { system } else { "python3" }
}

/// The path of a program in the source tree, as an argument.
#[must_use]
pub fn script(name: &str) -> String {
    source(name).to_str().expect("a source tree has a plain name").to_owned()
}

/// The training loop of the README.
#[must_use]
pub fn example() -> String {
    script("examples/resume/train.py")
}

/// The program that follows the published guide to the letter.
#[must_use]
pub fn letter() -> String {
    script("tests/programs/letter.py")
}

/// The steps that a log says were done, in its order.
#[must_use]
pub fn steps(log: &str) -> Vec<u64> {
    let number = |line: &str| line.strip_prefix("step ")?.split('/').next()?.parse().ok();
    log.lines().filter_map(number).collect()
}

/// The step that a log says its program went on from.
#[must_use]
pub fn resumed_from(log: &str) -> Option<u64> {
    log.lines().find_map(|line| line.strip_prefix("resumed from step ")?.parse().ok())
}

/// The second log begins where a save of the first left off, no earlier than `at_least`, and does
/// each step to the last exactly once.
pub fn assert_goes_on(first: &str, second: &str, at_least: u64, total: u64) {
    let from = resumed_from(second);
    let from = from.unwrap_or_else(|| panic!("it began anew:\n{second}"));
    assert!(from >= at_least, "it went back to step {from}, before {at_least}:\n{second}");
    let done = steps(first).last().copied().unwrap_or_default();
    assert!(from <= done, "it went on from step {from}, and only {done} were done:\n{first}");
    assert_eq!(steps(second), (from + 1..=total).collect::<Vec<_>>(), "each step once:\n{second}");
    assert!(second.contains("training complete"), "it did not finish:\n{second}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = "resumed from step 12\nstep 13/15\nnoise\nstep 14/15\n";
        assert_eq!(resumed_from(log), Some(12));
        assert_eq!(steps(log), [13, 14]);
        assert_eq!(resumed_from("step 1/2\n"), None);
    }

    #[test]
    #[should_panic(expected = "each step once")]
    fn a_step_left_out_is_noticed() {
        assert_goes_on("step 2/4\n", "resumed from step 2\nstep 4/4\ntraining complete\n", 1, 4);
    }

    #[test]
    #[should_panic(expected = "it began anew")]
    fn a_fresh_start_is_noticed() {
        assert_goes_on("step 2/4\n", "step 1/4\n", 1, 4);
    }
}

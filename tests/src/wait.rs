//! Waiting for something to become true, with a bound.

use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine; reached only where a test fails.
pub const LONG: Duration = Duration::from_secs(60);

/// How often a condition that cannot be waited for is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The first `Some` of `look`, or a panic that names `what` after `limit`.
pub fn some<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "gave up waiting for {what} after {limit:?}");
        pause(POLL);
    }
}

/// Waits until `look` is true, or panics after `limit`.
pub fn until(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    some(what, limit, || look().then_some(()));
}

/// Panics if `look` becomes true within `period`: for what must not happen.
pub fn never(what: &str, period: Duration, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + period;
    while Instant::now() < end {
        assert!(!look(), "{what} happened");
        pause(POLL);
    }
}

/// The one place that lets time pass: between two looks, never instead of one.
fn pause(duration: Duration) {
    #[expect(clippy::disallowed_methods, reason = "between two looks at a condition")]
    std::thread::sleep(duration);
}

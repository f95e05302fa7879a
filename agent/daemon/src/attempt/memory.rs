//! Finding out whether a program ended for want of memory.

use super::cgroup::Cgroup;
use super::record::ExitStatus;

/// Counts what the kernel kills for want of memory, as close to the program as it is counted.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    /// The attempt's own group, or the one all this runs in: a container's, a job step's.
    group: Option<Cgroup>,
    is_own: bool,
    before: u64,
}

impl MemoryWatch {
    /// Begins to count; `own` is the attempt's group.
    pub(super) fn new(own: Option<&Cgroup>) -> Self {
        let own = own.filter(|group| group.oom_kills().is_some()).cloned();
        let is_own = own.is_some();
        Self::of(own.or_else(Cgroup::own), is_own)
    }

    fn of(group: Option<Cgroup>, is_own: bool) -> Self {
        let before = group.as_ref().and_then(Cgroup::oom_kills).unwrap_or(0);
        Self { group, is_own, before }
    }

    /// Whether a program that ended so did for want of memory.
    pub(super) fn is_to_blame(&self, status: ExitStatus) -> bool {
        let now = self.group.as_ref().and_then(Cgroup::oom_kills).unwrap_or(0);
        // In a shared group the one killed may be a stranger; the kernel kills by this signal.
        now > self.before && (self.is_own || status == ExitStatus::Signal(9))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kill_in_a_shared_group_counts_only_if_the_program_was_killed() {
        let check = |is_own, kills: u64, status, expected| {
            let scratch = tempfile::tempdir().unwrap();
            let events = scratch.path().join("memory.events");
            fs::write(&events, "oom 1\noom_kill 2\n").unwrap();
            let watch = MemoryWatch::of(Some(Cgroup::at(scratch.path().to_owned())), is_own);
            fs::write(&events, format!("oom 1\noom_kill {kills}\n")).unwrap();
            assert_eq!(watch.is_to_blame(status), expected, "{is_own} {kills} {status:?}");
        };
        check(false, 3, ExitStatus::Signal(9), true);
        check(false, 3, ExitStatus::Code(1), false);
        check(false, 2, ExitStatus::Signal(9), false);
        check(true, 3, ExitStatus::Code(137), true);
        check(true, 2, ExitStatus::Signal(9), false);
        assert!(!MemoryWatch::of(None, false).is_to_blame(ExitStatus::Signal(9)));
    }
}

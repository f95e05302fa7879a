//! A cgroup of version 2 for one attempt: exact kills, an atomic freeze, a limit on CPUs.
//!
//! It is a bonus. Nothing here is needed for correctness, so creation that fails gives `None`.

use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::Pid;

/// The length of the scheduler's accounting period, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;
/// Nested groups that a program may have made are followed to this depth.
const DEPTH: usize = 8;

/// The cgroup of one attempt.
#[derive(Clone, Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one below the group this process is in.
    pub(super) fn create(id: &str, cpu: Option<u32>) -> Option<Self> {
        let parent = own_group()?;
        let group = Self(parent.join(format!("nodus-{id}")));
        fs::create_dir(&group.0).ok()?;
        if let Some(cpu) = cpu {
            // Refused where the parent has processes of its own: the attempt goes unlimited then.
            let limited = fs::write(parent.join("cgroup.subtree_control"), "+cpu").and_then(|()| {
                fs::write(group.file("cpu.max"), format!("{} {PERIOD}", u64::from(cpu) * PERIOD))
            });
            if let Err(error) = limited {
                tracing::debug!(group = %group.0.display(), %error, "no limit on CPUs set");
            }
        }
        Some(group)
    }

    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves the calling process in.
    pub(super) fn join(&self) -> io::Result<()> {
        fs::write(self.file("cgroup.procs"), "0")
    }

    /// Kills every process in it at once, forks in flight included.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.file("cgroup.kill"), "1")
    }

    /// Lets everything in it run again.
    pub(super) fn thaw(&self) -> io::Result<()> {
        fs::write(self.file("cgroup.freeze"), "0")
    }

    /// Stops everything in it and waits until it is still.
    pub(super) fn freeze(&self, bound: Duration) -> io::Result<()> {
        let deadline = Instant::now() + bound;
        let mut events = fs::File::open(self.file("cgroup.events"))?;
        fs::write(self.file("cgroup.freeze"), "1")?;
        loop {
            let mut text = String::new();
            events.rewind()?;
            events.read_to_string(&mut text)?;
            if counter(&text, "frozen") == Some(1) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.thaw()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))?;
        }
    }

    /// The processes in it and in the groups below it.
    pub(super) fn processes(&self) -> Vec<Pid> {
        let mut found = Vec::new();
        collect(&self.0, DEPTH, &mut found);
        found
    }

    /// The group this process is in.
    pub(super) fn own() -> Option<Self> {
        own_group().map(Self)
    }

    /// How many processes in it the kernel has killed for want of memory; `None` where that is not
    /// counted.
    pub(super) fn oom_kills(&self) -> Option<u64> {
        counter(&fs::read_to_string(self.file("memory.events")).ok()?, "oom_kill")
    }

    /// Removes it; it stays where processes are left in it.
    pub(super) fn remove(&self) {
        remove_tree(&self.0, DEPTH);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

fn children(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path())
}

fn collect(group: &Path, depth: usize, found: &mut Vec<Pid>) {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<Pid>().ok()));
    if depth > 0 {
        children(group).for_each(|child| collect(&child, depth - 1, found));
    }
}

fn remove_tree(group: &Path, depth: usize) {
    if depth > 0 {
        children(group).for_each(|child| remove_tree(&child, depth - 1));
    }
    if let Err(error) = fs::remove_dir(group) {
        tracing::debug!(group = %group.display(), %error, "cgroup left behind");
    }
}

/// The value of `name` in a file of `name value` lines.
fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// The directory of the version 2 group this process is in.
fn own_group() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    locate(&mounts, &groups)
}

fn locate(mounts: &str, groups: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let inside = Path::new(group).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ").then(|| Path::new(at).join(inside))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_on_pure_hybrid_and_container_layouts() {
        let check = |mounts: &str, groups: &str, expected: Option<&str>| {
            assert_eq!(locate(mounts, groups), expected.map(PathBuf::from));
        };
        let pure = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let service = "0::/system.slice/nodus-agent.service\n";
        check(pure, service, Some("/sys/fs/cgroup/system.slice/nodus-agent.service"));
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs cgroup rw\n\
                      38 31 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        check(hybrid, "4:memory:/x\n0::/\n", Some("/sys/fs/cgroup/unified/"));
        let container = "9 8 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        check(container, "0::/docker/abc/job\n", Some("/sys/fs/cgroup/job"));
        check(container, "0::/elsewhere\n", None);
        check("31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n", None);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "low 0\noom 3\noom_kill 2\n";
        assert_eq!(counter(text, "oom_kill"), Some(2));
        assert_eq!(counter(text, "oom"), Some(3));
        assert_eq!(counter(text, "kill"), None);
    }
}

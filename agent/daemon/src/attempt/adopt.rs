//! Finding an attempt again by its records.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::ATTEMPT_ID;
use super::cgroup::Cgroup;
use super::error::AttemptError;
use super::process::{self, Identity, Pid, Process};
use super::reaper::KILL_BOUND;
use super::record::{EXIT, ExitRecord, Order, PLAN, RecordDir, SHIM, ShimRecord, boot_id};
use super::running::Running;

/// How long a shim that was met while it starts its program is waited for.
const SETTLE_BOUND: Duration = Duration::from_secs(60);
/// Between two looks at something that has no event to wait for.
const PAUSE: Duration = Duration::from_millis(20);

/// What became of an attempt while nobody watched.
#[derive(Debug)]
pub enum Found {
    /// It runs.
    Running(Running),
    /// Its program ended.
    Ended(ExitRecord),
    /// Its shim was killed, so nobody knows how it ended; what it had left has been ended now.
    Lost {
        /// But for these.
        left: Vec<Pid>,
    },
    /// The system was started anew while it ran.
    Rebooted,
    /// Nothing of it ever ran, and nothing will.
    NeverStarted,
}

/// Finds out what became of the attempt with this record directory.
///
/// Whoever started it must be gone: two owners of one attempt would act against each other.
pub async fn adopt(dir: &Path) -> Result<Found, AttemptError> {
    let failed = |error| AttemptError::io("read the records of", dir, error);
    if !dir.exists() {
        return Ok(Found::NeverStarted);
    }
    let records = RecordDir::open(dir).map_err(failed)?;
    let deadline = Instant::now() + SETTLE_BOUND;
    loop {
        if let Some(record) = records.read(EXIT).map_err(failed)? {
            return Ok(Found::Ended(record));
        }
        let Some(record) = records.read::<ShimRecord>(SHIM).map_err(failed)? else {
            if await_no_shim(&records, deadline).await.map_err(failed)? {
                return Ok(Found::NeverStarted);
            }
            continue;
        };
        if record.boot != boot_id().map_err(failed)? {
            return Ok(Found::Rebooted);
        }
        if !record.shim.is_alive() {
            return gone(&records, &record).await.map_err(failed);
        }
        if record.program.is_some() {
            let running = Running::attach(dir, record).map_err(failed)?;
            running.thaw().map_err(failed)?;
            return Ok(Found::Running(running));
        }
        if Instant::now() >= deadline {
            // A shim that hangs before its program: nothing is lost with it.
            record.shim.signal(Signal::KILL).map_err(failed)?;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether there is no shim without a record either; waits a moment where there is one.
///
/// Its starter died right after it was executed. It will notice, but until then it could still write.
async fn await_no_shim(records: &RecordDir, deadline: Instant) -> std::io::Result<bool> {
    let Some(order) = records.read::<Order>(PLAN)? else { return Ok(true) };
    let shims = marked(&order.id)?;
    if shims.is_empty() {
        if let Some(group) = order.cgroup {
            Cgroup::at(group).remove();
        }
        // It may have written its record, or taken it back, since we looked for that.
        return Ok(!records.has(SHIM) && !records.has(EXIT));
    }
    if Instant::now() >= deadline {
        for shim in shims {
            shim.signal(Signal::KILL)?;
        }
    }
    tokio::time::sleep(PAUSE).await;
    Ok(false)
}

/// The live processes that carry the mark of an attempt.
fn marked(id: &str) -> std::io::Result<Vec<Identity>> {
    let mark = format!("{ATTEMPT_ID}={id}");
    let is_marked = |p: &Process| p.is_alive() && process::has_environment(p.identity.pid, &mark);
    Ok(process::list()?.into_iter().filter(is_marked).map(|p| p.identity).collect())
}

/// The shim has ended; its last words may have come after we had looked for them.
async fn gone(records: &RecordDir, record: &ShimRecord) -> std::io::Result<Found> {
    if let Some(record) = records.read(EXIT)? {
        return Ok(Found::Ended(record));
    }
    if !records.has(SHIM) {
        return Ok(Found::NeverStarted);
    }
    let left = sweep(record, Session::MaybeReused).await;
    if record.program.is_none() {
        records.remove(SHIM)?;
        return Ok(Found::NeverStarted);
    }
    Ok(Found::Lost { left })
}

/// What the number of the shim's session stands for, now that the shim is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// The shim ended this moment: its session.
    Known,
    /// Maybe another one's, if the shim's ended with its last member since.
    MaybeReused,
}

/// Ends whatever is left of an attempt whose shim is gone; returns what could not be ended.
pub(super) async fn sweep(record: &ShimRecord, session: Session) -> Vec<Pid> {
    let group = record.cgroup.clone().map(Cgroup::at);
    let deadline = Instant::now() + KILL_BOUND;
    loop {
        let left = remains(record, session, group.as_ref());
        if left.is_empty() || Instant::now() >= deadline {
            if let Some(group) = &group {
                group.remove();
            }
            return left.iter().map(|process| process.pid).collect();
        }
        if let Some(group) = &group {
            // What it cannot do is done one by one.
            let _ = group.kill();
        }
        for process in left {
            // Fails for another user's process, which is then among those left.
            let _ = process.signal(Signal::KILL);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn remains(record: &ShimRecord, session: Session, group: Option<&Cgroup>) -> Vec<Identity> {
    let all = process::list().unwrap_or_default();
    let inside: HashSet<Pid> =
        group.map(Cgroup::processes).unwrap_or_default().into_iter().collect();
    let mark = format!("{ATTEMPT_ID}={}", record.id);
    let is_marked = |pid| inside.contains(&pid) || process::has_environment(pid, &mark);
    let me = rustix::process::getpid().as_raw_pid();
    let mut found = belonging(&all, record.shim.pid, session, is_marked);
    found.retain(|process| process.pid != me);
    found
}

/// The live processes that carry the mark, those of the same session, and all their descendants.
///
/// A session has its number for as long as it has members, so one marked member proves that the
/// session is the shim's. Without one the number may have been used again, and proves nothing.
fn belonging(
    all: &[Process],
    number: Pid,
    session: Session,
    is_marked: impl Fn(Pid) -> bool,
) -> Vec<Identity> {
    let alive: Vec<&Process> = all.iter().filter(|process| process.is_alive()).collect();
    let mut seeds: HashSet<Pid> =
        alive.iter().map(|p| p.identity.pid).filter(|&pid| is_marked(pid)).collect();
    let members = || alive.iter().filter(|p| p.session == number).map(|p| p.identity.pid);
    if session == Session::Known || members().any(|pid| seeds.contains(&pid)) {
        seeds.extend(members());
    }
    let descendants = process::descendants(all, &seeds);
    let roots = alive.iter().filter(|p| seeds.contains(&p.identity.pid)).copied();
    roots.chain(&descendants).map(|process| process.identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: Pid, parent: Pid, session: Pid) -> Process {
        Process::fake(pid, parent, session)
    }

    /// C95: what is killed after a loss is exactly what belonged to the attempt.
    #[test]
    fn only_what_belongs_to_the_attempt_is_ended() {
        let check = |marked: &[Pid], session, expected: &[Pid]| {
            let all = [
                process(10, 1, 7),   // left in the shim's session
                process(11, 1, 7),   // the same, with its environment cleared
                process(12, 11, 12), // started by that one, in its own session
                process(20, 1, 20),  // a stranger
            ];
            let found = belonging(&all, 7, session, |pid| marked.contains(&pid));
            let mut found: Vec<Pid> = found.iter().map(|process| process.pid).collect();
            found.sort_unstable();
            assert_eq!(found, expected);
        };
        check(&[10], Session::MaybeReused, &[10, 11, 12]);
        check(&[12], Session::MaybeReused, &[12]);
        check(&[], Session::MaybeReused, &[]);
        check(&[], Session::Known, &[10, 11, 12]);
    }
}

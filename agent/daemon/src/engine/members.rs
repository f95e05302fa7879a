//! Which process belongs to which job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nodus_protocol::JobName;

use super::lock;
use crate::attempt::Running;
use crate::events::{Peer, Via, Whose};

/// The running attempts, by which a process on the events socket is known.
#[derive(Default)]
pub struct Members {
    running: Mutex<BTreeMap<JobName, Member>>,
}

/// An attempt, as far as it is known.
enum Member {
    /// Its program is being started, or looked for.
    Starting,
    /// It runs.
    Running(Arc<Running>),
}

impl Members {
    /// The attempt of a job is being started, or looked for: its program may be there already.
    pub fn expect(&self, job: &JobName) {
        lock(&self.running).insert(job.clone(), Member::Starting);
    }

    /// It runs.
    pub fn insert(&self, job: &JobName, running: Arc<Running>) {
        lock(&self.running).insert(job.clone(), Member::Running(running));
    }

    /// It is over.
    pub fn remove(&self, job: &JobName) {
        lock(&self.running).remove(job);
    }

    /// The job whose attempt the process descends from, or whose mount namespace it is in.
    ///
    /// A process in a process namespace of its own that we cannot see into has no id here; then the
    /// job's own socket, which only its user can reach, says whose it is.
    #[must_use]
    pub fn job_of(&self, peer: Peer, via: &Via) -> Whose {
        let (running, starting) = self.candidates(via);
        let Ok(pid @ 1..) = i32::try_from(peer.pid) else {
            return match via {
                Via::Job(_) => running.into_iter().next().map(|(job, _)| job).into(),
                Via::Common => Whose::Nobody,
            };
        };
        let belongs = |running: &Running| running.contains(pid) || shares_view(running, pid);
        match running.into_iter().find(|(_, running)| belongs(running)) {
            Some((job, _)) => Whose::Job(job),
            None if starting => Whose::Unsettled,
            None => Whose::Nobody,
        }
    }

    /// The running attempts whose clients can come through this socket, and whether more may follow.
    fn candidates(&self, via: &Via) -> (Vec<(JobName, Arc<Running>)>, bool) {
        let mut starting = false;
        let mut found = Vec::new();
        for (job, member) in &*lock(&self.running) {
            if matches!(via, Via::Job(only) if only != job) {
                continue;
            }
            match member {
                Member::Starting => starting = true,
                Member::Running(running) => found.push((job.clone(), Arc::clone(running))),
            }
        }
        (found, starting)
    }
}

/// Whether the process is in the attempt's mount namespace and that is not ours.
fn shares_view(running: &Running, pid: i32) -> bool {
    let namespace =
        |pid: String| -> Option<PathBuf> { std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok() };
    let (Some(theirs), Some(ours)) = (namespace(pid.to_string()), namespace("self".to_owned()))
    else {
        return false;
    };
    theirs != ours && namespace(running.program().to_string()) == Some(theirs)
}

//! Which process belongs to which job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nodus_protocol::JobName;

use super::lock;
use crate::attempt::Running;
use crate::events::{Peer, Via};

/// The running attempts, by which a process on the events socket is known.
#[derive(Default)]
pub struct Members {
    running: Mutex<BTreeMap<JobName, Arc<Running>>>,
}

impl Members {
    /// The attempt of a job runs.
    pub fn insert(&self, job: &JobName, running: Arc<Running>) {
        lock(&self.running).insert(job.clone(), running);
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
    pub fn job_of(&self, peer: Peer, via: &Via) -> Option<JobName> {
        let candidates: Vec<(JobName, Arc<Running>)> = lock(&self.running)
            .iter()
            .filter(|(job, _)| matches!(via, Via::Common) || *via == Via::Job((*job).clone()))
            .map(|(job, running)| (job.clone(), Arc::clone(running)))
            .collect();
        let Ok(pid @ 1..) = i32::try_from(peer.pid) else {
            return match via {
                Via::Job(job) => {
                    candidates.iter().any(|(name, _)| name == job).then(|| job.clone())
                }
                Via::Common => None,
            };
        };
        let belongs = |running: &Running| running.contains(pid) || shares_view(running, pid);
        candidates.into_iter().find(|(_, running)| belongs(running)).map(|(job, _)| job)
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

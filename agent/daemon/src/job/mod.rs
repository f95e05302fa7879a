//! One job: its state, what decides about it, and the task that carries it out.
//!
//! [`lifecycle`] decides where the job goes, the coordinator when its files are copied, the cadence
//! when that is due; all three are pure. `task` owns them and does what they say.

pub mod lifecycle;
pub mod place;
pub mod record;

mod acting;
mod arriving;
mod asked;
mod attempts;
mod copying;
mod ending;
mod finding;
mod preparing;
mod retaining;
mod task;
mod view;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::{CheckpointDone, JobDetail, JobInfo, ProblemCode, TimedEvent};
use nodus_protocol::job::Interruption;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::engine::Refusal;
use place::Place;
use record::Owner;

pub use attempts::log_path;
pub(crate) use copying::credentials;
pub(crate) use copying::own_store;
pub use task::{JobTask, Over};

/// Questions that may wait for a job's task.
const MAX_QUESTIONS: usize = 64;

/// Events that a slow reader may be behind before it misses some.
const MAX_EVENTS: usize = 256;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// What a job can be asked.
pub enum Ask {
    /// Checkpoint, then stop until `resume`.
    Suspend(Reply<CheckpointDone>),
    /// Start the next attempt.
    Resume(Reply<JobInfo>),
    /// Stop for good, without asking the program.
    Stop(Reply<CheckpointDone>),
    /// Stop, and remove every trace.
    Delete(Reply<()>),
    /// Take a checkpoint.
    Checkpoint {
        /// Whether the program is told that it is urgent.
        urgent: bool,
        /// Where the answer goes.
        reply: Reply<CheckpointDone>,
    },
    /// The capacity is about to go away.
    Reclaim {
        /// When and why.
        reclaim: Reclaim,
        /// Where the answer goes, when the checkpoint has ended.
        reply: Reply<CheckpointDone>,
    },
    /// Delete a stored checkpoint.
    DeleteCheckpoint {
        /// Which.
        seq: u64,
        /// Where the answer goes.
        reply: Reply<()>,
    },
    /// The epoch under which what is found about stored checkpoints can be marked.
    Epoch(Reply<Option<nodus_checkpoint::store::Epoch>>),
}

/// The capacity is about to go away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// Who said so.
    pub source: String,
    /// In how long, where known.
    pub within: Option<Duration>,
    /// Whether it takes this process with it, so that attempts are ended in order after their
    /// checkpoint.
    pub ends: Option<Interruption>,
    /// What the checkpoint's record says.
    pub cause: nodus_protocol::checkpoint::Cause,
}

impl Reclaim {
    /// A notice that leaves the programs running for as long as they can.
    #[must_use]
    pub fn notice(source: &str, within: Option<Duration>) -> Self {
        let cause = nodus_protocol::checkpoint::Cause::Reclaim;
        Self { source: source.to_owned(), within, ends: None, cause }
    }
}

/// What readers see of a job, without waiting for its task.
pub(crate) struct Published {
    detail: JobDetail,
    unstored: Vec<CheckpointInfo>,
}

/// How others reach a job's task.
#[derive(Clone)]
pub struct JobHandle {
    /// Whose it is.
    pub uid: u32,
    /// Whose it is, with groups.
    pub owner: Owner,
    /// Where its parts are.
    pub place: Place,
    questions: mpsc::Sender<Ask>,
    view: watch::Receiver<Arc<Published>>,
    events: broadcast::Sender<TimedEvent>,
}

impl JobHandle {
    /// Asks the job's task and waits for its answer.
    ///
    /// # Errors
    /// Where the job refuses, or its task has ended.
    pub async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Ask) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.questions.send(question(reply)).await.map_err(|_| Refusal::stopping())?;
        answer.await.unwrap_or_else(|_| Err(Refusal::stopping()))
    }

    /// Tells the job that the capacity is about to go away; the future waits for its checkpoint.
    pub fn tell_reclaim(&self, reclaim: Reclaim) -> impl Future<Output = ()> + use<> {
        let job = self.clone();
        async move {
            let asked = job.ask(|reply| Ask::Reclaim { reclaim, reply }).await;
            if let Err(refusal) = asked {
                tracing::debug!(reason = %refusal, "a job took no checkpoint at a notice");
            }
        }
    }

    /// The newest published state.
    #[must_use]
    pub fn detail(&self) -> JobDetail {
        self.view.borrow().detail.clone()
    }

    /// Waits until the published state is as asked, or the job is gone.
    pub async fn until(&self, mut wanted: impl FnMut(&JobDetail) -> bool) -> Option<JobDetail> {
        let mut view = self.view.clone();
        let seen = view.wait_for(|published| wanted(&published.detail)).await.ok()?;
        Some(seen.detail.clone())
    }

    /// Checkpoints that were skipped or failed, oldest first.
    #[must_use]
    pub fn unstored(&self) -> Vec<CheckpointInfo> {
        self.view.borrow().unstored.clone()
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<TimedEvent> {
        self.events.subscribe()
    }
}

/// Makes the directories of a job: the user's own for the user, the rest for the agent.
///
/// # Errors
/// Where one cannot be made.
pub fn make_place(place: &Place, owner: &Owner) -> Result<(), Refusal> {
    let refuse = |path: &Path, error: &dyn std::fmt::Display| {
        let detail = format!("cannot make the directory {}: {error}", path.display());
        Refusal::new(ProblemCode::Internal, detail)
    };
    let made = |path: &Path, mode: u32, owner: Option<&Owner>| {
        make_dir(path, mode, owner).map_err(|error| refuse(path, &error))
    };
    made(&place.home, 0o700, Some(owner))?;
    made(&place.records, 0o700, None)?;
    made(&place.runtime, 0o755, None)?;
    // In a directory of the user's nothing is done as root: any name in there can be a link by the
    // time that it is used.
    let _as_user = nodus_checkpoint::identity::enter(credentials(owner).as_ref())
        .map_err(|error| refuse(&place.home, &error.chain()))?;
    for name in ["state", "outputs"] {
        made(&place.home.join(name), 0o700, None)?;
    }
    Ok(())
}

/// Makes one directory, and the ways to it for everyone to pass through, whatever the umask.
pub(crate) fn make_dir(path: &Path, mode: u32, owner: Option<&Owner>) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_dir(parent, 0o755, None)?;
    }
    // Closed at first: nobody gets in between.
    match std::fs::DirBuilder::new().mode(mode & 0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        other => other?,
    }
    // By its descriptor, and not through a link: what was made is what is given away.
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).map_err(std::io::Error::other)?;
    let dir = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    dir.set_permissions(std::fs::Permissions::from_mode(mode))?;
    match owner {
        Some(owner) if rustix::process::geteuid().is_root() => {
            std::os::unix::fs::fchown(&dir, Some(owner.uid), Some(owner.gid))
        }
        _ => Ok(()),
    }
}

/// The time, for records and for people.
fn timestamp() -> Timestamp {
    Timestamp::now()
}

//! One job in one process, without root and without a daemon: `nodusctl run --standalone`.
//!
//! The same engine, with everything of the job in one directory. The same command again goes on
//! where the last one was suspended, interrupted or killed.

use std::fs::File;
use std::path::{Path, PathBuf};

use nodus_checkpoint::format::manifest::Hash;
use nodus_protocol::JobName;
use nodus_protocol::control::{CheckpointDone, JobDetail, ProblemCode, Submit, TimedEvent};
use nodus_protocol::job::Phase;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::broadcast;

use crate::engine::{Caller, Engine, Layout, Refusal, Settings};
use crate::events::Limits;
use crate::job::record::{FILE, Record, Standing};
use crate::job::{Ask, JobHandle, Reclaim};
use crate::socket;

/// The file whose lock says that a process runs the job.
const LOCK: &str = "lock";

/// A job that runs in this process.
pub struct Standalone {
    engine: Engine,
    job: JobHandle,
    events: Option<broadcast::Receiver<TimedEvent>>,
    _lock: File,
}

/// What became of a command.
pub enum Begun {
    /// The job runs now.
    Running(Standalone),
    /// It had succeeded before: there is nothing to do.
    Succeeded(Box<JobDetail>),
}

impl Standalone {
    /// Starts the job, or goes on with it.
    ///
    /// # Errors
    /// Where another process runs it, or its directories cannot be used.
    pub async fn begin(
        settings: Settings,
        caller: &Caller,
        submit: Submit,
    ) -> Result<Begun, Refusal> {
        let name = submit.spec.name.clone();
        let place = settings.layout.place(&name);
        crate::job::make_place(&place, &caller.owner)?;
        let lock = claim(&place.records, &name)?;
        let record = load(&place.records)?;
        let engine = Engine::start(settings, Limits::default())
            .await
            .map_err(|error| Refusal::new(ProblemCode::Internal, format!("{error:#}")))?;
        let (job, events) = match record {
            None => engine.begin(caller, submit)?,
            Some(record) if record.standing == Standing::Succeeded => {
                let detail = engine.watch(record).0.detail();
                return Ok(Begun::Succeeded(Box::new(detail)));
            }
            Some(record) => {
                // Also where the last run was killed while it was being suspended or stopped.
                let rests = record.standing.intent().is_some()
                    || matches!(
                        record.standing,
                        Standing::Suspended
                            | Standing::Interrupted { .. }
                            | Standing::Failed { .. }
                    );
                let (job, events) = engine.take_up(record, submit)?;
                if rests {
                    resume(&job).await?;
                }
                (job, events)
            }
        };
        Ok(Begun::Running(Self { engine, job, events: Some(events), _lock: lock }))
    }

    /// What happens to the job, from its beginning; once.
    pub fn events(&mut self) -> broadcast::Receiver<TimedEvent> {
        self.events.take().unwrap_or_else(|| self.job.events())
    }

    /// Waits until nothing more happens to the job by itself.
    pub async fn rested(&self) -> JobDetail {
        match self.job.until(rests).await {
            Some(detail) => detail,
            None => self.job.detail(),
        }
    }

    /// Checkpoints, then stops; the same command again goes on.
    ///
    /// # Errors
    /// Where the job is over.
    pub async fn suspend(&self) -> Result<CheckpointDone, Refusal> {
        self.job.ask(Ask::Suspend).await
    }

    /// Stops without asking the program; what it saved last is kept.
    ///
    /// # Errors
    /// Where the job is over.
    pub async fn stop(&self) -> Result<CheckpointDone, Refusal> {
        self.job.ask(Ask::Stop).await
    }

    /// Tells the job that the capacity is about to go away.
    pub async fn reclaim(&self, reclaim: Reclaim) {
        self.job.tell_reclaim(reclaim).await;
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &JobHandle {
        &self.job
    }

    /// Lets the job write down where it is.
    pub async fn close(self) {
        self.engine.close().await;
    }
}

/// Goes on with a job that rests, or is coming to rest.
async fn resume(job: &JobHandle) -> Result<(), Refusal> {
    let rested = job.until(rests).await.ok_or_else(Refusal::stopping)?;
    if rested.info.phase != Phase::Succeeded {
        job.ask(Ask::Resume).await?;
    }
    Ok(())
}

/// Whether nothing more happens to the job by itself.
fn rests(detail: &JobDetail) -> bool {
    detail.info.phase.is_finished() || detail.info.phase == Phase::Suspended
}

/// Makes this the one process that runs the job, or that does with its directory what no run may
/// see, for as long as the file is open.
///
/// # Errors
/// Where another process has it.
pub fn claim(records: &Path, name: &JobName) -> Result<File, Refusal> {
    let path = records.join(LOCK);
    let cannot = |error: std::io::Error| {
        let detail = format!("cannot lock {}: {error}", path.display());
        Refusal::new(ProblemCode::Internal, detail)
    };
    let file = File::options().create(true).append(true).open(&path).map_err(cannot)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let detail = format!("job {name} is already running in another process");
            Err(Refusal::new(ProblemCode::Conflict, detail))
        }
        Err(error) => Err(cannot(error.into())),
    }
}

fn load(records: &Path) -> Result<Option<Record>, Refusal> {
    match records.join(FILE).exists() {
        true => Ok(Some(Record::load(records)?)),
        false => Ok(None),
    }
}

/// Where a standalone job's events socket is, among the places that this user has for such things:
/// the first whose path is short enough for a socket.
#[must_use]
pub fn runtime_dir(state_root: &Path, name: &JobName, user_runtime: Option<&Path>) -> PathBuf {
    let home = state_root.join(name.as_str());
    // Two state roots may hold jobs of the same name.
    let tag = Hash::of(home.as_os_str().as_encoded_bytes()).to_string();
    let short = format!("{}-{}", &tag[..12], &name.as_str()[..name.as_str().len().min(20)]);
    let fits = |dir: &PathBuf| {
        let socket = dir.join(crate::job::place::EVENTS_SOCKET);
        socket.as_os_str().len() <= socket::MAX_PATH
    };
    let candidates = [
        user_runtime.map(|dir| dir.join("nodus").join(&short)),
        Some(home.join(crate::engine::ALONE_RECORDS).join("run")),
    ];
    let last = || {
        let uid = rustix::process::geteuid().as_raw();
        PathBuf::from(format!("/tmp/nodus-{uid}")).join(&short)
    };
    candidates.into_iter().flatten().find(fits).unwrap_or_else(last)
}

/// The layout of a standalone job.
#[must_use]
pub fn layout(state_root: &Path, name: &JobName, user_runtime: Option<&Path>) -> Layout {
    Layout::Alone {
        state_root: state_root.to_owned(),
        runtime: runtime_dir(state_root, name, user_runtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C61: a path that is too long for a socket is not cut, and two jobs do not meet.
    #[test]
    fn c61_long_paths_get_a_short_unique_place() {
        let long = PathBuf::from(format!("/{}", "x".repeat(140)));
        let (a, b): (JobName, JobName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let dirs = [runtime_dir(&long, &a, None), runtime_dir(&long, &b, None)];
        assert_ne!(dirs[0], dirs[1]);
        for dir in dirs {
            assert!(dir.join("events.sock").as_os_str().len() <= 107, "{}", dir.display());
        }
        let short = runtime_dir(Path::new("/r"), &a, None);
        assert_eq!(short, Path::new("/r/a/.nodus/run"));
        let user = runtime_dir(Path::new("/r"), &a, Some(Path::new("/run/user/7")));
        assert!(user.starts_with("/run/user/7/nodus"));
    }
}

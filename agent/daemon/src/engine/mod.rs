//! The engine: all jobs of this process, whether it is the node's agent or a standalone run.
//!
//! Each job is one task that owns its state ([`crate::job`]); the engine finds the task, asks it,
//! and answers. Readers look at a published copy and never wait for a job.

mod history;
mod members;
mod paths;
mod refusal;
mod settings;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::control::{
    CheckpointDone, JobDetail, JobInfo, Notice, ProblemCode, Submit, TimedEvent,
};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::events::{EventsHub, Limits, Via};
use crate::job::record::{FILE, Owner, Record};
use crate::job::{Ask, JobHandle, JobTask, Over, Reclaim};

pub use history::History;
pub use members::Members;
pub use refusal::Refusal;
pub use settings::{ALONE_RECORDS, Layout, Settings};

/// Copies that run at the same time; more would only make each slower.
const MAX_COPIES: usize = 4;

/// How long jobs have to write down where they are when the process ends.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Whoever asks, as the socket's peer credentials say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user, with the groups under which the user's jobs run.
    pub owner: Owner,
    /// Whether the user is one of the operators, who see and control every job.
    pub operator: bool,
}

impl Caller {
    /// Whether the caller sees and controls the jobs of all users.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.owner.uid == 0 || self.operator
    }

    /// Whether the caller may see and control a job of this user.
    #[must_use]
    pub fn may(&self, uid: u32) -> bool {
        self.is_operator() || self.owner.uid == uid
    }
}

/// What every job's task shares.
pub struct Shared {
    /// What the engine was told.
    pub settings: Settings,
    /// The events of all training programs.
    pub hub: EventsHub,
    /// The interruptions of this node.
    history: History,
    /// Whose a process on the events socket is.
    pub members: Arc<Members>,
    /// Bounds how many copies run at the same time.
    pub copies: tokio::sync::Semaphore,
    /// Whether attempts can have their own view of `/nodus`.
    pub private_views: bool,
    /// Tells every task to write down where it is and end.
    pub closing: CancellationToken,
}

impl Shared {
    /// M: the mean time between interruptions of this node, as far as is known.
    #[must_use]
    pub fn mean_between_interruptions(&self) -> Duration {
        self.history.mean_between(&self.settings.prior)
    }

    /// Adds how long an attempt ran, and whether it was taken away; writes to the disk.
    pub fn remember_uptime(&self, ran: Duration, interrupted: bool) {
        self.history.remember(ran, interrupted);
    }
}

/// All jobs of this process.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    jobs: Arc<Mutex<BTreeMap<JobName, JobHandle>>>,
    /// Names of jobs that are just being accepted.
    reserved: Arc<Mutex<BTreeSet<JobName>>>,
    tasks: TaskTracker,
}

/// The name of a job that is being accepted: nobody else gets it meanwhile.
struct Reserved {
    name: JobName,
    names: Arc<Mutex<BTreeSet<JobName>>>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&self.names).remove(&self.name);
    }
}

impl Engine {
    /// An engine with the jobs that its records hold; their running attempts are found again.
    ///
    /// # Errors
    /// Where the records cannot be read at all. One job's unreadable record is logged, and its
    /// files are left alone.
    pub async fn start(settings: Settings, limits: Limits) -> anyhow::Result<Self> {
        let private_views = match crate::attempt::view_supported(&settings.shim).await {
            Ok(()) => true,
            Err(why) => {
                tracing::info!(why, "attempts see the node's /nodus: no private mount namespaces");
                false
            }
        };
        let history = History::load(&settings);
        let members = Arc::<Members>::default();
        let resolver = {
            let members = Arc::clone(&members);
            move |peer, via: &Via| members.job_of(peer, via)
        };
        let hub = EventsHub::new(Box::new(resolver), limits);
        let engine = Self {
            shared: Arc::new(Shared {
                settings,
                hub,
                history,
                members,
                copies: tokio::sync::Semaphore::new(MAX_COPIES),
                private_views,
                closing: CancellationToken::new(),
            }),
            jobs: Arc::default(),
            reserved: Arc::default(),
            tasks: TaskTracker::new(),
        };
        engine.find_jobs()?;
        Ok(engine)
    }

    fn find_jobs(&self) -> anyhow::Result<()> {
        let Some(records) = self.shared.settings.layout.records() else { return Ok(()) };
        crate::job::make_dir(records, 0o755, None)?;
        for entry in std::fs::read_dir(records)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str().and_then(|name| name.parse::<JobName>().ok()) else {
                continue;
            };
            if let Err(error) = self.find_job(&name) {
                tracing::error!(job = %name, error = %error.chain(), "cannot read a job's record");
            }
        }
        Ok(())
    }

    fn find_job(&self, name: &JobName) -> nodus_checkpoint::Result<()> {
        let place = self.shared.settings.layout.place(name);
        let record = Record::load(&place.records)?;
        self.watch(record);
        Ok(())
    }

    /// Starts the task of a job whose record is written; its events are given from the beginning.
    pub fn watch(&self, record: Record) -> (JobHandle, broadcast::Receiver<TimedEvent>) {
        let name = record.spec.name.clone();
        let (handle, task) = JobTask::new(Arc::clone(&self.shared), record);
        let events = handle.events();
        self.jobs().insert(name.clone(), handle.clone());
        let jobs = Arc::clone(&self.jobs);
        self.tasks.spawn(async move {
            let Over::Removed { tell } = task.run().await else { return };
            // Whoever hears that it is gone may submit another one of its name at once.
            lock(&jobs).remove(&name);
            for reply in tell {
                let _ = reply.send(Ok(()));
            }
        });
        (handle, events)
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobName, JobHandle>> {
        lock(&self.jobs)
    }

    fn handle(&self, caller: &Caller, name: &JobName) -> Result<JobHandle, Refusal> {
        let handle = self.jobs().get(name).cloned();
        handle.filter(|job| caller.may(job.uid)).ok_or_else(|| Refusal::no_job(name))
    }

    /// Accepts a job and starts it.
    ///
    /// # Errors
    /// Where a job of this name exists, or the record cannot be written.
    pub fn submit(&self, caller: &Caller, submit: Submit) -> Result<JobInfo, Refusal> {
        Ok(self.begin(caller, submit)?.0.detail().info)
    }

    /// Accepts a job, starts it, and gives its events from the beginning.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn begin(
        &self,
        caller: &Caller,
        submit: Submit,
    ) -> Result<(JobHandle, broadcast::Receiver<TimedEvent>), Refusal> {
        let name = submit.spec.name.clone();
        let _reserved = self.reserve(&name)?;
        self.has_room(caller)?;
        supported(&submit)?;
        let place = self.shared.settings.layout.place(&name);
        paths::check(&self.shared.settings, &submit.spec, &place, &caller.owner)?;
        if place.records.join(FILE).exists() {
            let detail = format!(
                "there are records of a job {name} that cannot be read, see the agent's log; choose another --name"
            );
            return Err(Refusal::new(ProblemCode::Conflict, detail));
        }
        let now = Timestamp::now();
        let record = Record::new(submit.spec, submit.environment, caller.owner.clone(), now);
        crate::job::make_place(&place, &record.owner)?;
        record.save(&place.records)?;
        Ok(self.watch(record))
    }

    /// Takes the name of a job that is being accepted, until its task is there.
    fn reserve(&self, name: &JobName) -> Result<Reserved, Refusal> {
        let jobs = self.jobs();
        if jobs.contains_key(name) || !lock(&self.reserved).insert(name.clone()) {
            let detail = format!(
                "there is already a job {name}; choose another --name, or `nodusctl delete job/{name}` first"
            );
            return Err(Refusal::new(ProblemCode::Conflict, detail));
        }
        Ok(Reserved { name: name.clone(), names: Arc::clone(&self.reserved) })
    }

    fn has_room(&self, caller: &Caller) -> Result<(), Refusal> {
        let jobs = self.jobs();
        let own = jobs.values().filter(|job| job.uid == caller.owner.uid).count();
        let settings = &self.shared.settings;
        let full = [
            (jobs.len(), settings.max_jobs, "this agent has"),
            (own, settings.max_jobs_per_user, "you have"),
        ]
        .into_iter()
        .find(|(count, limit, _)| count >= limit);
        let Some((count, _, whose)) = full else { return Ok(()) };
        let detail =
            format!("{whose} {count} jobs, the most that are allowed; delete finished ones");
        Err(Refusal::new(ProblemCode::Conflict, detail))
    }

    /// Takes up a job whose record exists (standalone mode), with a new description.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn take_up(
        &self,
        mut record: Record,
        submit: Submit,
    ) -> Result<(JobHandle, broadcast::Receiver<TimedEvent>), Refusal> {
        supported(&submit)?;
        record.spec = submit.spec;
        record.environment = submit.environment;
        let place = self.shared.settings.layout.place(&record.spec.name);
        paths::check(&self.shared.settings, &record.spec, &place, &record.owner)?;
        record.save(&place.records)?;
        Ok(self.watch(record))
    }

    /// The caller's jobs by name.
    #[must_use]
    pub fn list(&self, caller: &Caller) -> Vec<JobInfo> {
        let jobs = self.jobs();
        jobs.values().filter(|job| caller.may(job.uid)).map(|job| job.detail().info).collect()
    }

    /// All that is known of a job.
    ///
    /// # Errors
    /// Where there is none that the caller may see.
    pub fn detail(&self, caller: &Caller, name: &JobName) -> Result<JobDetail, Refusal> {
        Ok(self.handle(caller, name)?.detail())
    }

    /// Checkpoints and stops a job; answers when the checkpoint is committed or has failed and the
    /// program is over.
    ///
    /// # Errors
    /// Where there is no such job, or nothing of it to suspend.
    pub async fn suspend(
        &self,
        caller: &Caller,
        name: &JobName,
    ) -> Result<CheckpointDone, Refusal> {
        self.handle(caller, name)?.ask(Ask::Suspend).await
    }

    /// Starts the next attempt of a suspended or failed job.
    ///
    /// # Errors
    /// Where there is no such job, or it is running or over.
    pub async fn resume(&self, caller: &Caller, name: &JobName) -> Result<JobInfo, Refusal> {
        self.handle(caller, name)?.ask(Ask::Resume).await
    }

    /// Stops a job for good, without asking its program; what it saved last is kept.
    ///
    /// # Errors
    /// Where there is no such job, or it is over.
    pub async fn stop(&self, caller: &Caller, name: &JobName) -> Result<CheckpointDone, Refusal> {
        self.handle(caller, name)?.ask(Ask::Stop).await
    }

    /// Stops a job and removes it with its checkpoints.
    ///
    /// # Errors
    /// Where there is no such job.
    pub async fn delete(&self, caller: &Caller, name: &JobName) -> Result<(), Refusal> {
        self.handle(caller, name)?.ask(Ask::Delete).await
    }

    /// Takes a checkpoint and answers when it is committed, skipped or has failed.
    ///
    /// # Errors
    /// Where there is no such job, or it is not running.
    pub async fn checkpoint(
        &self,
        caller: &Caller,
        name: &JobName,
        urgent: bool,
    ) -> Result<CheckpointDone, Refusal> {
        self.handle(caller, name)?.ask(|reply| Ask::Checkpoint { urgent, reply }).await
    }

    /// What happens to a job from now on.
    ///
    /// # Errors
    /// Where there is no such job.
    pub fn events(
        &self,
        caller: &Caller,
        name: &JobName,
    ) -> Result<broadcast::Receiver<TimedEvent>, Refusal> {
        Ok(self.handle(caller, name)?.events())
    }

    /// The handle of a job, for what needs more than one question.
    ///
    /// # Errors
    /// Where there is none that the caller may see.
    pub fn job(&self, caller: &Caller, name: &JobName) -> Result<JobHandle, Refusal> {
        self.handle(caller, name)
    }

    /// Tells every job that the capacity is about to go away.
    ///
    /// # Errors
    /// Only root may say so.
    pub async fn notice(&self, caller: &Caller, notice: &Notice) -> Result<(), Refusal> {
        if !caller.is_operator() {
            let detail = "only root and operators may give a notice to a node";
            return Err(Refusal::new(ProblemCode::Forbidden, detail));
        }
        let source = if notice.source.is_empty() { "operator" } else { &notice.source };
        tracing::warn!(source, within = ?notice.r#in, "the capacity of this node is about to go away");
        self.reclaim(&Reclaim::notice(source, notice.r#in)).await;
        Ok(())
    }

    /// Takes an urgent checkpoint of every job, of all at once; returns when all are committed or have failed, or
    /// when the notice's time is up.
    pub async fn reclaim(&self, reclaim: &Reclaim) {
        let handles: Vec<JobHandle> = self.jobs().values().cloned().collect();
        let mut asked: JoinSet<()> =
            handles.iter().map(|job| job.tell_reclaim(reclaim.clone())).collect();
        while asked.join_next().await.is_some() {}
    }

    /// Lets every job write down where it is, and ends their tasks; the attempts go on.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!(unfinished = self.tasks.len(), "jobs still busy after the grace period");
        }
    }

    /// Passes through what the engine needs to do anything at all; never returns where that hangs.
    pub async fn touch(&self) {
        let count = self.jobs().len();
        let _ = self.shared.mean_between_interruptions();
        tokio::task::yield_now().await;
        tracing::trace!(jobs = count, "alive");
    }

    /// What all jobs share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// What this version cannot run is refused before anything runs.
fn supported(submit: &Submit) -> Result<(), Refusal> {
    use nodus_protocol::spec::{Format, Integration};
    let policy = &submit.spec.recovery.checkpoint;
    let refuse = |detail: &str| Err(Refusal::new(ProblemCode::Invalid, detail));
    if policy.format == Format::Dcp {
        return refuse(
            "recovery.checkpoint.format: Dcp (gang checkpoints) is not in this version; Files is",
        );
    }
    if policy.integration == Integration::HFTrainer {
        return refuse(
            "recovery.checkpoint.integration: HFTrainer is not in this version; Auto and None are",
        );
    }
    Ok(())
}

/// A number from 0 to 1 that differs between jobs that failed together.
pub(crate) fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(0u8) >> 11;
    #[allow(clippy::cast_precision_loss)] // 53 bits fit exactly
    let fraction = random as f64 / (1u64 << 53) as f64;
    fraction
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

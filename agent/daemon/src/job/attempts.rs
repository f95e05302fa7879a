//! Preparing, starting, finding again and ending the attempts of a job.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodus_checkpoint::Error;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::outcomes;
use nodus_checkpoint::restore::{self, RestoreOptions, RestoreReport};
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_protocol::checkpoint::FailureReason;
use nodus_protocol::control::{AttemptInfo, JobEvent};
use nodus_protocol::event::FromProgram;
use nodus_protocol::job::{AttemptEnd, Interruption, StopReason};
use nodus_protocol::spec::Continuity;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::copying::{FileId, credentials, open_for_writing, open_store};
use super::lifecycle::{self, Stage};
use super::place::{OWN, Place, Sight, Surroundings, copies_files};
use super::record::{AttemptRecord, Record, Standing};
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{
    self, Ended, ExitRecord, ExitStatus, Found, Plan, Running, StartError, UserIds, View,
};
use crate::coordinator;
use crate::engine::Shared;

/// How long to wait before a store that did not answer is asked again.
const STORE_RETRY: Duration = Duration::from_secs(10);

/// How much longer than its grace period the end of an attempt may take.
const STOP_SLACK: Duration = Duration::from_secs(5);

/// What supervised the attempt is gone.
const LOST: AttemptEnd = AttemptEnd::Interrupted { by: Interruption::NodeFailure };

/// Failures in a row from the same checkpoint that make it suspect.
const SUSPECT_AFTER: u32 = 2;

/// An attempt whose program runs.
pub(super) struct Live {
    pub(super) running: Arc<Running>,
    pub(super) since: Instant,
    /// Files under the job's paths that were open for writing when the program was told to end.
    pub(super) writing_when_told: HashSet<FileId>,
    /// The notice that ends it, where there is one.
    pub(super) deadline: Option<Instant>,
}

/// The files are as the attempt needs them.
pub(super) struct Prepared {
    epoch: Option<Epoch>,
    next_seq: u64,
    restored_from: Option<u64>,
    restore_reason: Option<String>,
    warnings: Vec<String>,
}

/// Why an attempt could not be prepared.
pub(super) enum NotPrepared {
    /// It may go away by itself.
    Later(String),
    /// It will not.
    Never(String),
}

impl From<Error> for NotPrepared {
    fn from(error: Error) -> Self {
        match error.reason() {
            FailureReason::StoreUnavailable | FailureReason::NoSpace => Self::Later(error.chain()),
            _ => Self::Never(error.chain()),
        }
    }
}

/// What preparing needs of the job, apart from its task.
struct Preparation {
    shared: Arc<Shared>,
    place: Place,
    record: Record,
    attempt: u32,
}

impl JobTask {
    /// Restores, then starts: reported by notes.
    pub(super) fn prepare(&mut self) {
        let preparation = Preparation {
            shared: Arc::clone(&self.shared),
            place: self.place.clone(),
            record: self.record.clone(),
            attempt: self.record.attempt_number() + 1,
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let prepared = tokio::task::spawn_blocking(move || preparation.run()).await;
            let result =
                prepared.unwrap_or_else(|panic| Err(NotPrepared::Never(panic.to_string())));
            let _ = post.send(Note::Prepared(Box::new(result))).await;
        });
    }

    pub(super) fn not_prepared(&mut self, failure: NotPrepared) {
        match failure {
            NotPrepared::Later(message) => {
                self.warn(format!("cannot prepare the next attempt, trying again: {message}"));
                self.conditions.insert("StoreUnavailable", message);
                self.live_on(lifecycle::Event::NotPrepared { retry_after: STORE_RETRY });
            }
            NotPrepared::Never(message) => {
                self.record.message = Some(format!("cannot prepare the next attempt: {message}"));
                self.live_on(lifecycle::Event::CannotPrepare(StopReason::RestoreFailed));
            }
        }
    }

    /// Writes down that the attempt exists, then starts its program.
    pub(super) fn prepared(&mut self, prepared: Prepared) {
        self.conditions.remove("StoreUnavailable");
        for warning in prepared.warnings {
            self.warn(warning);
        }
        let number = self.record.attempt_number() + 1;
        self.record.next_seq = prepared.next_seq;
        let info = AttemptInfo {
            number,
            started: timestamp(),
            ended: None,
            end: None,
            restored_from: prepared.restored_from,
            restore_reason: prepared.restore_reason,
        };
        let epoch = prepared.epoch.as_ref().map_or(0, Epoch::number);
        self.record.attempt_started(AttemptRecord { info, epoch, committed: None });
        self.epoch = prepared.epoch;
        self.coordinator = coordinator::Coordinator::new(
            self.record.next_seq,
            (&self.record.spec.recovery.checkpoint).into(),
        );
        self.save();
        self.launch(number, prepared.restored_from.is_some());
    }

    fn launch(&self, number: u32, restored: bool) {
        self.shared.members.expect(&self.name);
        let own = self.shared.private_views;
        let plans = [own.then_some(Sight::Own), Some(Sight::Node)]
            .into_iter()
            .flatten()
            .map(|sight| self.plan(number, restored, sight))
            .collect();
        let post = self.post.clone();
        tokio::spawn(async move {
            let started = start_first(plans).await;
            let _ = post.send(Note::Started(Box::new(started))).await;
        });
    }

    fn plan(&self, number: u32, restored: bool, sight: Sight) -> Plan {
        let settings = &self.shared.settings;
        let spec = &self.record.spec;
        let surroundings = Surroundings {
            spec,
            submitted: &self.record.environment,
            place: &self.place,
            sight,
            attempt: number,
            restored,
            cursor: self.record.progress,
        };
        let owner = &self.record.owner;
        let user = rustix::process::geteuid().is_root().then(|| UserIds {
            uid: owner.uid,
            gid: owner.gid,
            groups: owner.groups.clone(),
        });
        Plan {
            dir: attempt_dir(&self.place, number),
            shim: settings.shim.clone(),
            command: spec.command.clone(),
            env: surroundings.environment(),
            workdir: spec.workdir.clone().unwrap_or_else(|| self.place.home.clone()),
            output: settings.output,
            user,
            view: match sight {
                Sight::Own => View::Private { binds: self.place.binds(spec) },
                Sight::Node => View::Host,
            },
            die_with_parent: settings.die_with_us,
            cgroup: rustix::process::geteuid().is_root() && !settings.die_with_us,
            cpu: spec.cpu,
            stop_grace: settings.stop_grace,
        }
    }

    pub(super) fn started(&mut self, result: Result<Live, String>) {
        match result {
            Ok(live) => {
                self.attach(live);
                let attempt = self.record.attempt().map(|attempt| attempt.info.clone());
                if let Some(info) = attempt {
                    self.emit(JobEvent::AttemptStarted {
                        attempt: info.number,
                        restored_from: info.restored_from,
                        restore_reason: info.restore_reason,
                    });
                }
                self.live_on(lifecycle::Event::Started);
                self.plan_checkpoint();
            }
            Err(message) => {
                self.shared.members.remove(&self.name);
                self.record.message = Some(message.clone());
                self.warn(message);
                self.attempt_over(AttemptEnd::NotStarted);
                self.live_on(lifecycle::Event::NotStarted);
            }
        }
    }

    /// Takes a running attempt under this task's care.
    fn attach(&mut self, live: Live) {
        let running = Arc::clone(&live.running);
        self.shared.members.insert(&self.name, Arc::clone(&running));
        self.coordinate(coordinator::Event::AttemptStarted);
        self.last_checkpoint = None;
        self.live = Some(live);
        self.log_ended = CancellationToken::new();
        self.follow_log(&running);
        let post = self.post.clone();
        tokio::spawn(async move {
            let end = watch(&running).await;
            let _ = post.send(Note::Ended(end)).await;
        });
    }

    /// Reads the events that a program without a socket prints.
    fn follow_log(&self, running: &Arc<Running>) {
        if self.shared.settings.output != attempt::Output::Log {
            return;
        }
        let (path, post) = (running.log_path(), self.post.clone());
        let ended = self.log_ended.clone();
        let name = self.name.clone();
        tokio::spawn(async move {
            if let Err(error) = read_printed(&path, ended, &post).await {
                tracing::warn!(job = %name, %error, "cannot read events from the program's log");
            }
        });
    }

    /// Finds the attempt that ran when the process before this one ended.
    pub(super) async fn find_attempt(&mut self) {
        let number = self.record.attempt_number();
        let dir = attempt_dir(&self.place, number);
        let found = match attempt::adopt(&dir).await {
            Ok(found) => found,
            Err(error) => {
                self.warn(format!("cannot find attempt {number} again: {}", chain(&error)));
                Found::Lost { left: Vec::new() }
            }
        };
        self.reopen_epoch();
        match found {
            Found::Running(running) if self.shared.settings.die_with_us => {
                self.end_orphan(&running).await;
            }
            Found::Running(running) => self.adopt(running),
            Found::NeverStarted => self.forget_attempt(),
            Found::Ended(record) => self.found_over(self.orphaned(attempt_end(&record))),
            Found::Lost { .. } => self.found_over(LOST),
            Found::Rebooted => {
                self.after_reboot = true;
                self.found_over(AttemptEnd::Interrupted { by: Interruption::Reboot });
            }
        }
    }

    /// The process that the attempt belonged to was killed, so its shim is ending it already.
    async fn end_orphan(&mut self, running: &Running) {
        let grace = self.shared.settings.stop_grace;
        let end = match tokio::time::timeout(grace + STOP_SLACK, running.stop(grace)).await {
            Ok(Ok(Ended::Exited(record))) => self.orphaned(attempt_end(&record)),
            _ => LOST,
        };
        self.found_over(end);
    }

    /// An attempt that ends with its process did not fail when that process was killed.
    fn orphaned(&self, end: AttemptEnd) -> AttemptEnd {
        match end {
            AttemptEnd::Signaled { .. } if self.shared.settings.die_with_us => LOST,
            end => end,
        }
    }

    fn adopt(&mut self, running: Running) {
        let copies = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        let stage = Stage::Running { ending: None };
        self.life = lifecycle::Lifecycle::at(stage, None, copies, true);
        let ran = self.ran();
        let since = Instant::now().checked_sub(ran).unwrap_or_else(Instant::now);
        let running = Arc::new(running);
        self.attach(Live { running, since, writing_when_told: HashSet::new(), deadline: None });
        tracing::info!(job = %self.name, attempt = self.record.attempt_number(), "found the running attempt again");
        self.plan_checkpoint();
        if let Some(intent) = intent {
            self.live_on(lifecycle::Event::End(intent));
        }
    }

    /// The process died between writing down the attempt and starting it: as if it had not.
    fn forget_attempt(&mut self) {
        self.shared.members.remove(&self.name);
        self.record.attempts.pop();
        self.record.standing = Standing::Due;
        self.save();
        let attempted = !self.record.attempts.is_empty();
        let copies = copies_files(&self.record.spec);
        let stage = Stage::Waiting { until: Instant::now() };
        self.life = lifecycle::Lifecycle::at(stage, None, copies, attempted);
    }

    fn found_over(&mut self, end: AttemptEnd) {
        let copies = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        let stage = Stage::Running { ending: None };
        self.life = lifecycle::Lifecycle::at(stage, intent, copies, true);
        self.coordinate(coordinator::Event::AttemptStarted);
        self.ended(end);
    }

    pub(super) fn reopen_epoch(&mut self) {
        let Some(number) = self.record.attempt().map(|attempt| attempt.epoch) else { return };
        if number == 0 {
            return;
        }
        let opened = open_epoch(&self.shared, &self.record, number);
        match opened {
            Ok((epoch, next_seq)) => {
                self.record.next_seq = self.record.next_seq.max(next_seq);
                self.coordinator = coordinator::Coordinator::new(
                    self.record.next_seq,
                    (&self.record.spec.recovery.checkpoint).into(),
                );
                self.epoch = Some(epoch);
            }
            Err(error) => {
                let message = error.chain();
                self.warn(format!("cannot write checkpoints of the running attempt: {message}"));
                self.conditions.insert("StoreUnavailable", message);
            }
        }
    }

    /// SIGTERM, the grace period, SIGKILL.
    pub(super) fn terminate(&mut self) {
        let grace = self.shared.settings.stop_grace;
        let Some(live) = &mut self.live else { return };
        // After the end nobody can see any more what was half-written.
        let running = &live.running;
        live.writing_when_told = tokio::task::block_in_place(|| open_for_writing(running));
        let running = Arc::clone(&live.running);
        let (name, post) = (self.name.clone(), self.post.clone());
        tokio::spawn(async move {
            if tokio::time::timeout(grace + STOP_SLACK, running.stop(grace)).await.is_err() {
                tracing::error!(job = %name, "an attempt does not end after SIGKILL");
                let message = "the attempt does not end after SIGKILL".to_owned();
                let _ = post.send(Note::Warning(message)).await;
            }
        });
    }

    pub(super) fn live_deadline(&mut self, deadline: Option<Instant>) {
        if let Some(live) = &mut self.live {
            live.deadline = deadline;
        }
    }

    /// Until when the checkpoint before an ending has to be committed.
    pub(super) fn ending_deadline(&self) -> Instant {
        let notice = self.live.as_ref().and_then(|live| live.deadline);
        notice.unwrap_or_else(|| Instant::now() + self.shared.settings.suspend_timeout)
    }

    /// How long the attempt has run.
    pub(super) fn ran(&self) -> Duration {
        let started = self.record.attempt().map(|attempt| attempt.info.started);
        let ran = started.map(|started| timestamp().duration_since(started));
        ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default()
    }

    /// The program is over.
    pub(super) fn ended(&mut self, end: AttemptEnd) {
        if !matches!(self.life.stage(), Stage::Running { .. }) {
            return;
        }
        let told = self.life.intent().is_some();
        self.live_on_end(end, told);
    }

    fn live_on_end(&mut self, end: AttemptEnd, told: bool) {
        let clean = end == AttemptEnd::Exited { code: 0 };
        self.coordinate(coordinator::Event::AttemptEnded { clean });
        self.wakes.checkpoint = None;
        let ran = self.ran();
        self.remember_uptime(end, told, ran);
        // The lifecycle says whose doing it was; the record needs that before anything follows.
        let mut preview = self.life.clone();
        let _ = preview.on(Instant::now(), lifecycle::Event::Ended(end));
        let attributed = match preview.stage() {
            Stage::Ending { end } => *end,
            _ => end,
        };
        self.attempt_over(attributed);
        self.live_on(lifecycle::Event::Ended(end));
    }

    fn attempt_over(&mut self, end: AttemptEnd) {
        self.record.attempt_ended(end, timestamp());
        self.save();
        self.log_ended.cancel();
        self.shared.members.remove(&self.name);
        let attempt = self.record.attempt_number();
        self.emit(JobEvent::AttemptEnded { attempt, end });
    }

    fn remember_uptime(&self, end: AttemptEnd, told: bool, ran: Duration) {
        let interrupted = matches!(end, AttemptEnd::Interrupted { .. }) && !told;
        self.shared.remember_uptime(ran, interrupted);
    }

    /// The exit checkpoint is over: what comes next is decided, and counted.
    pub(super) fn exit_saved(&mut self) {
        let Stage::Ending { end } = *self.life.stage() else { return };
        self.live = None;
        self.after_reboot = false;
        self.note_outcome(end);
        let progressed = self.progressed();
        let next = self.record.decide(end, progressed, crate::engine::jitter());
        self.say_why(end, &next);
        self.epoch = None;
        self.live_on(lifecycle::Event::ExitSaved(next));
        if let Stage::Waiting { .. } = self.life.stage() {
            self.record.standing = Standing::Due;
            self.save();
        }
    }

    fn progressed(&self) -> bool {
        let committed = self.record.attempt().is_some_and(|attempt| attempt.committed.is_some());
        committed || self.exit_seq.is_some()
    }

    fn say_why(&mut self, end: AttemptEnd, next: &crate::recovery::Next) {
        use crate::recovery::Next;
        self.record.message = match next {
            Next::StartAgain { after, counts_retry: true } => Some(format!(
                "attempt {} ended with {end}; retry {} of {} in {}",
                self.record.attempt_number(),
                self.record.counters.retries,
                self.record.spec.recovery.max_retries,
                nodus_protocol::units::format_duration(*after),
            )),
            Next::Failed(_) => {
                let why = self.record.message.take();
                let ended = format!("attempt {} ended with {end}", self.record.attempt_number());
                Some(why.map_or(ended.clone(), |why| format!("{ended}: {why}")))
            }
            _ => None,
        };
    }

    /// Records on the checkpoint that the attempt started from what became of it (C12).
    fn note_outcome(&mut self, end: AttemptEnd) {
        let failed = matches!(
            end,
            AttemptEnd::Exited { code: 1.. | ..=-1 }
                | AttemptEnd::Signaled { .. }
                | AttemptEnd::NotStarted
        );
        let Some(epoch) = self.epoch.clone() else { return };
        let number = self.record.attempt_number();
        let from = self.record.attempt().and_then(|attempt| attempt.info.restored_from);
        let suspects = if failed {
            self.record.note_failure(SUSPECT_AFTER, self.exit_seq)
        } else {
            self.record.stuck = None;
            Vec::new()
        };
        let committed = self.record.attempt().is_some_and(|attempt| attempt.committed.is_some());
        let became = match (committed || end == (AttemptEnd::Exited { code: 0 }), failed) {
            (true, _) => outcomes::Ended::Progressed,
            (false, true) => outcomes::Ended::Failed,
            (false, false) => outcomes::Ended::Interrupted,
        };
        let noted = tokio::task::block_in_place(|| {
            let store = open_store(&self.shared, &self.record)?;
            if let Some(from) = from {
                outcomes::record_attempt(&store, &epoch, from, number, became)?;
            }
            suspects.iter().try_for_each(|seq| outcomes::mark_suspect(&store, &epoch, *seq))
        });
        if let Err(error) = noted {
            self.warn(format!("cannot record how attempt {number} ended: {}", error.chain()));
        }
        if !suspects.is_empty() {
            let list: Vec<String> = suspects.iter().map(u64::to_string).collect();
            self.warn(format!(
                "checkpoint {} is Suspect: {SUSPECT_AFTER} attempts in a row that started from it failed",
                list.join(", ")
            ));
        }
    }
}

impl Preparation {
    fn run(self) -> Result<Prepared, NotPrepared> {
        super::make_place(&self.place, &self.record.owner)
            .map_err(|refusal| NotPrepared::Never(refusal.to_string()))?;
        let _ = std::fs::remove_dir_all(attempt_dir(&self.place, self.attempt));
        match self.record.spec.recovery.continuity {
            Continuity::Checkpointed if copies_files(&self.record.spec) => self.restore(),
            Continuity::Ephemeral => {
                self.empty_own_paths().map_err(|error| NotPrepared::Never(error.chain()))?;
                Ok(self.as_it_is())
            }
            _ => Ok(self.as_it_is()),
        }
    }

    fn as_it_is(&self) -> Prepared {
        Prepared {
            epoch: None,
            next_seq: self.record.next_seq,
            restored_from: None,
            restore_reason: None,
            warnings: Vec::new(),
        }
    }

    fn restore(&self) -> Result<Prepared, NotPrepared> {
        let spec = &self.record.spec;
        let settings = &self.shared.settings;
        let now = timestamp();
        let store = JobStore::create(&settings.store, &spec.name, self.record.owner.uid, now)?;
        if let Some(lock) = store.lock()? {
            store.sweep(&lock)?;
        }
        let next_seq = self.record.next_seq.max(store.highest_seq()? + 1);
        let epoch = store.begin_epoch(self.attempt, next_seq, &settings.node, now)?;
        let report = match store.list()?.is_empty() {
            true => None,
            // Where none of those there are can be restored, starting anew would lose them without
            // a word.
            false => Some(self.restore_newest(&store, &epoch)?),
        };
        Ok(Prepared {
            epoch: Some(epoch),
            next_seq,
            restored_from: report.as_ref().map(|report| report.seq),
            restore_reason: report.as_ref().map(RestoreReport::explanation),
            warnings: report
                .iter()
                .flat_map(|report| &report.warnings)
                .map(ToString::to_string)
                .collect(),
        })
    }

    fn restore_newest(&self, store: &JobStore, epoch: &Epoch) -> Result<RestoreReport, Error> {
        let user = credentials(&self.record.owner);
        let options = RestoreOptions::for_job(user, self.shared.settings.threads);
        let roots = self.place.roots(&self.record.spec);
        restore::restore_newest(store, Some(epoch), &roots, &options, &Control::default())
    }

    /// Empties the job's own paths; those of the node are never touched.
    fn empty_own_paths(&self) -> Result<(), Error> {
        let spec = &self.record.spec;
        let own = spec.recovery.checkpoint.paths.iter().filter(|path| path.starts_with(OWN));
        let credentials = credentials(&self.record.owner);
        for path in own {
            restore::empty(&self.place.physical(path), credentials.as_ref())?;
        }
        Ok(())
    }
}

/// Where an attempt's own records are.
pub(super) fn attempt_dir(place: &Place, number: u32) -> PathBuf {
    place.records.join("attempts").join(number.to_string())
}

/// Where an attempt's log is.
#[must_use]
pub fn log_path(place: &Place, number: u32) -> PathBuf {
    attempt_dir(place, number).join(attempt::LOG_FILE)
}

/// Passes on what a program without a socket says by printing it.
async fn read_printed(
    path: &Path,
    ended: CancellationToken,
    post: &mpsc::Sender<Note>,
) -> std::io::Result<()> {
    let mut events = attempt::log::Events::open(path, 0, ended).await?;
    while let Some(line) = events.next().await? {
        // What is not understood has nobody to be told.
        if let Some(Ok(FromProgram { message, .. })) = FromProgram::parse_log_line(&line)
            && post.send(Note::Printed(message)).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Starts the first of the plans that can be had: the others say what to do where it cannot.
async fn start_first(plans: Vec<Plan>) -> Result<Live, String> {
    let mut last = "there is no way to start it".to_owned();
    for plan in plans {
        match attempt::start(&plan).await {
            Ok(running) => {
                return Ok(Live {
                    running: Arc::new(running),
                    since: Instant::now(),
                    writing_when_told: HashSet::new(),
                    deadline: None,
                });
            }
            Err(error) => {
                let final_word = !matches!(error, StartError::View { .. });
                last = chain(&error);
                clear(&plan.dir);
                if final_word {
                    break;
                }
                tracing::warn!(error = last, "the attempt cannot have a view of its own");
            }
        }
    }
    Err(last)
}

fn clear(dir: &Path) {
    // Where it stays, the next start says why.
    let _ = std::fs::remove_dir_all(dir);
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn attempt_end(record: &ExitRecord) -> AttemptEnd {
    match record.status {
        ExitStatus::Code(code) => AttemptEnd::Exited { code },
        ExitStatus::Signal(signal) => AttemptEnd::Signaled { signal, oom: record.oom },
    }
}

/// How a running attempt ended, as its shim tells or fails to tell.
async fn watch(running: &Running) -> AttemptEnd {
    match running.wait().await {
        Ok(Ended::Exited(record)) => attempt_end(&record),
        Ok(Ended::Lost { left }) => {
            if !left.is_empty() {
                tracing::error!(?left, "processes of a lost attempt cannot be ended");
            }
            LOST
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot find out how an attempt ended");
            LOST
        }
    }
}

fn open_epoch(shared: &Shared, record: &Record, number: u64) -> Result<(Epoch, u64), Error> {
    let store = JobStore::open(&shared.settings.store, &record.spec.name)?
        .ok_or_else(|| Error::NotFound { job: record.spec.name.to_string(), seq: None })?;
    Ok((store.resume_epoch(number)?, store.highest_seq()? + 1))
}

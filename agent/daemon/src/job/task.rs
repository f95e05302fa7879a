//! The task that owns one job and carries out what its pure parts decide.
//!
//! Everything that can change the job arrives here one after the other: questions of users, events
//! of training programs, notes from the work this task has started, and its own timers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodus_checkpoint::store::Epoch;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{Cause, Outcome};
use nodus_protocol::control::{CheckpointDone, JobEvent, JobInfo, ProblemCode, TimedEvent};
use nodus_protocol::event::ProgramMessage;
use nodus_protocol::job::{AttemptEnd, Interruption};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::attempts::{Live, NotPrepared, Prepared};
use super::copying::Copying;
use super::lifecycle::{self, Action, Intent, Lifecycle, Parked, Refused, Stage};
use super::place::{Place, copies_files};
use super::record::{Record, Standing, Wish};
use super::{Ask, JobHandle, MAX_EVENTS, MAX_QUESTIONS, Published, Reclaim, Reply, timestamp};
use crate::cadence::Cadence;
use crate::coordinator::{self, Coordinator, Trigger, WaiterId};
use crate::engine::{Refusal, Shared};
use crate::events::ClientEvent;
use crate::socket;

/// Notes that the work of one job can leave before its task reads them.
const MAX_NOTES: usize = 64;

/// Nothing is due: the task looks again all the same.
const IDLE: Duration = Duration::from_secs(3600);

/// How often progress is written down at most; a cursor is a hint about where to go on.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

/// Whether a job's task ended because the job is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The job is removed.
    Removed,
    /// The process ends; the job is as its record says.
    Kept,
}

impl Over {
    /// Whether the job is removed.
    #[must_use]
    pub fn is_removed(self) -> bool {
        self == Self::Removed
    }
}

/// What work that the task has started reports to it.
pub(super) enum Note {
    /// The files are as the next attempt needs them.
    Prepared(Box<Result<Prepared, NotPrepared>>),
    /// The program of the attempt runs, or could not be started.
    Started(Box<Result<Live, String>>),
    /// The program is over.
    Ended(AttemptEnd),
    /// The copy no longer depends on the program's files.
    Captured {
        /// Of which checkpoint.
        seq: u64,
    },
    /// A capture or copy is over.
    Copied(Box<super::copying::Copied>),
    /// The program printed an event.
    Printed(ProgramMessage),
    /// Something that an operator should know.
    Warning(String),
    /// Every trace of the job is removed.
    Removed(Result<(), String>),
}

/// Who waits for a checkpoint.
enum Waiter {
    /// A user, for this checkpoint.
    Asked(Reply<CheckpointDone>),
    /// The lifecycle, before it ends the attempt.
    Ending,
    /// The lifecycle, after the attempt has ended.
    Exit,
}

/// When the task has to look at something by itself.
#[derive(Default)]
pub(super) struct Wakes {
    pub(super) life: Option<Instant>,
    pub(super) coordinator: Option<Instant>,
    pub(super) checkpoint: Option<Instant>,
    pub(super) retention: Option<Instant>,
    pub(super) progress: Option<Instant>,
}

impl Wakes {
    fn next(&self, now: Instant) -> Instant {
        let all = [self.life, self.coordinator, self.checkpoint, self.retention, self.progress];
        all.into_iter().flatten().min().unwrap_or(now + IDLE)
    }
}

/// Takes a timer that is due.
fn take_due(wake: &mut Option<Instant>, now: Instant) -> bool {
    wake.take_if(|at| *at <= now).is_some()
}

/// One job's task, before it runs.
pub struct JobTask {
    pub(super) shared: Arc<Shared>,
    pub(super) name: JobName,
    pub(super) place: Place,
    pub(super) record: Record,
    pub(super) life: Lifecycle,
    pub(super) coordinator: Coordinator,
    pub(super) cadence: Cadence,
    /// When the newest checkpoint of this attempt ended.
    pub(super) last_checkpoint: Option<Instant>,
    pub(super) wakes: Wakes,
    pub(super) live: Option<Live>,
    pub(super) epoch: Option<Epoch>,
    pub(super) copying: Option<Copying>,
    pub(super) conditions: BTreeMap<&'static str, String>,
    pub(super) post: mpsc::Sender<Note>,
    waiters: BTreeMap<WaiterId, Waiter>,
    next_waiter: u64,
    /// Users who wait for the job to have come to rest.
    resting: Vec<Reply<CheckpointDone>>,
    deleting: Vec<Reply<()>>,
    /// How the checkpoint before an ending went, for those who wait for the rest.
    last_done: Option<(u64, Outcome)>,
    /// The exit checkpoint that was committed in this ending.
    pub(super) exit_seq: Option<u64>,
    /// Whether the exit checkpoint is of files that a power cut may have left half-written.
    pub(super) after_reboot: bool,
    /// Tells who reads the log of the attempt that no more will come.
    pub(super) log_ended: CancellationToken,
    removed: bool,
    questions: mpsc::Receiver<Ask>,
    notes: mpsc::Receiver<Note>,
    clients: mpsc::Receiver<ClientEvent>,
    view: watch::Sender<Arc<Published>>,
    events: broadcast::Sender<TimedEvent>,
}

impl JobTask {
    /// The task of the job that this record describes, and the handle by which others reach it.
    #[must_use]
    pub fn new(shared: Arc<Shared>, record: Record) -> (JobHandle, Self) {
        let name = record.spec.name.clone();
        let place = shared.settings.layout.place(&name);
        let (asks, questions) = mpsc::channel(MAX_QUESTIONS);
        let (post, notes) = mpsc::channel(MAX_NOTES);
        let (events, _) = broadcast::channel(MAX_EVENTS);
        let clients = shared.hub.add_job(name.clone());
        if matches!(record.standing, Standing::Running { .. }) {
            shared.members.expect(&name);
        }
        let now = Instant::now();
        let policy = &record.spec.recovery;
        let life = Lifecycle::new(now, copies_files(&record.spec));
        let coordinator = Coordinator::new(record.next_seq, (&policy.checkpoint).into());
        let interval = policy.checkpoint.interval;
        let cadence = Cadence::new(interval, policy.expected_run_time, record.costs);
        let detail = super::view::bare(&record, &place, life.phase());
        let published = Published { detail, unstored: record.unstored.clone() };
        let (view, seen) = watch::channel(Arc::new(published));
        let handle = JobHandle {
            uid: record.owner.uid,
            owner: record.owner.clone(),
            place: place.clone(),
            questions: asks,
            view: seen,
            events: events.clone(),
        };
        let task = Self {
            shared,
            name,
            place,
            record,
            life,
            coordinator,
            cadence,
            last_checkpoint: None,
            wakes: Wakes::default(),
            live: None,
            epoch: None,
            copying: None,
            conditions: BTreeMap::new(),
            post,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            resting: Vec::new(),
            deleting: Vec::new(),
            last_done: None,
            exit_seq: None,
            after_reboot: false,
            log_ended: CancellationToken::new(),
            removed: false,
            questions,
            notes,
            clients,
            view,
            events,
        };
        (handle, task)
    }

    /// Runs the job until it is removed or the process ends.
    pub async fn run(mut self) -> Over {
        self.open_socket().await;
        self.find_again().await;
        let closing = self.shared.closing.clone();
        loop {
            self.publish();
            if self.removed {
                self.shared.hub.remove_job(&self.name);
                return Over::Removed;
            }
            let due = tokio::time::Instant::from_std(self.wakes.next(Instant::now()));
            tokio::select! {
                Some(question) = self.questions.recv() => self.question(question),
                Some(note) = self.notes.recv() => self.note(note),
                Some(event) = self.clients.recv() => self.client(event),
                () = tokio::time::sleep_until(due) => self.woke(Instant::now()),
                () = closing.cancelled() => {
                    self.save();
                    return Over::Kept;
                }
            }
        }
    }

    /// Lets the job's programs in through a socket of its own.
    async fn open_socket(&mut self) {
        let owner = &self.record.owner;
        let place = socket::Place {
            path: self.place.events_socket(),
            mode: 0o600,
            owner: Some(socket::Owner { uid: owner.uid, gid: owner.gid }),
            dir_mode: 0o755,
        };
        if let Err(error) = self.shared.hub.bind_job_socket(&self.name, place).await {
            self.warn(format!("programs cannot reach the events socket: {error}"));
            self.conditions.insert("EventsSocketUnavailable", error.to_string());
        }
    }

    /// Takes up the job where its record says that it is.
    async fn find_again(&mut self) {
        let attempted = !self.record.attempts.is_empty();
        let checkpointed = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        let now = Instant::now();
        let at = |stage| Lifecycle::at(stage, intent, checkpointed, attempted);
        self.life = match self.record.standing {
            Standing::Due => at(Stage::Waiting { until: now }),
            Standing::Suspended => at(Stage::Parked(Parked::Suspended)),
            Standing::Interrupted { by } => at(Stage::Parked(Parked::Interrupted(by))),
            Standing::Succeeded => at(Stage::Parked(Parked::Succeeded)),
            Standing::Failed { reason } => at(Stage::Parked(Parked::Failed(reason))),
            Standing::Deleting => at(Stage::Parked(Parked::Suspended)),
            Standing::Running { .. } | Standing::Ending { .. } => at(Stage::Preparing),
        };
        self.wakes.life = Some(now);
        match self.record.standing {
            Standing::Running { .. } => self.find_attempt().await,
            Standing::Ending { .. } => self.find_ending(),
            Standing::Deleting => self.remove(),
            Standing::Succeeded | Standing::Failed { .. } => self.wakes.retention = Some(now),
            _ => {}
        }
    }

    /// Goes on with an exit checkpoint that the process before this one did not finish.
    fn find_ending(&mut self) {
        let end = self.record.attempt().and_then(|attempt| attempt.info.end);
        let end = end.unwrap_or(AttemptEnd::Interrupted { by: Interruption::NodeFailure });
        let copies = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        self.life = Lifecycle::at(Stage::Ending { end }, intent, copies, true);
        self.reopen_epoch();
        self.act(vec![Action::SaveExit]);
    }

    // ---- what arrives ----------------------------------------------------------------------

    fn question(&mut self, question: Ask) {
        match question {
            Ask::Suspend(reply) => self.end("suspend", Intent::Suspend, reply),
            Ask::Stop(reply) => self.end("stop", Intent::Stop, reply),
            Ask::Delete(reply) => self.delete(reply),
            Ask::Resume(reply) => {
                let resumed = self.resume();
                self.publish();
                let answer = resumed.map(|()| self.view.borrow().detail.info.clone());
                let _ = reply.send(answer);
            }
            Ask::Checkpoint { urgent, reply } => {
                self.checkpoint(Cause::Request, urgent, None, reply);
            }
            Ask::Reclaim { reclaim, reply } => self.reclaim(reclaim, reply),
            Ask::DeleteCheckpoint { seq, reply } => {
                let _ = reply.send(self.delete_checkpoint(seq));
            }
            Ask::Epoch(reply) => {
                let _ = reply.send(self.some_epoch());
            }
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Prepared(result) => match *result {
                Ok(prepared) => self.prepared(prepared),
                Err(failure) => self.not_prepared(failure),
            },
            Note::Started(result) => self.started(*result),
            Note::Ended(end) => self.ended(end),
            Note::Captured { seq } => self.coordinate(coordinator::Event::Captured { seq }),
            Note::Copied(copied) => self.copied(*copied),
            Note::Printed(message) => self.printed(&message),
            Note::Warning(message) => self.warn(message),
            Note::Removed(result) => self.traces_removed(result),
        }
    }

    fn client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Left { client } => {
                self.coordinate(coordinator::Event::Left { client });
            }
            ClientEvent::Message { client, peer, message } => {
                let pid = coordinator::Pid(peer.pid);
                match message {
                    ProgramMessage::Subscribe(subscription) => {
                        self.coordinate(coordinator::Event::Subscribed {
                            client,
                            pid,
                            subscription,
                        });
                    }
                    ProgramMessage::Ack(ack) => {
                        self.coordinate(coordinator::Event::Ack { pid, ack });
                    }
                    other => self.printed(&other),
                }
            }
        }
    }

    /// What a program can also say without a socket, by printing it.
    fn printed(&mut self, message: &ProgramMessage) {
        match message {
            ProgramMessage::Progress(progress) => self.progress(*progress),
            ProgramMessage::Now if self.can_checkpoint().is_ok() => {
                self.trigger(Cause::Request, false, None, None);
            }
            _ => {}
        }
    }

    fn progress(&mut self, progress: nodus_protocol::event::Progress) {
        self.record.progress = Some(progress);
        self.cadence.progress(self.record.wall_time_at(timestamp()), progress);
        self.plan_checkpoint();
        self.wakes.progress.get_or_insert(Instant::now() + PROGRESS_PERIOD);
        self.emit(JobEvent::Progress(progress));
    }

    fn woke(&mut self, now: Instant) {
        if take_due(&mut self.wakes.life, now) {
            self.live_on(lifecycle::Event::Woke);
        }
        if take_due(&mut self.wakes.coordinator, now) {
            self.coordinate(coordinator::Event::Woke);
        }
        if take_due(&mut self.wakes.checkpoint, now) && self.can_checkpoint().is_ok() {
            self.trigger(Cause::Interval, false, None, None);
        }
        if take_due(&mut self.wakes.retention, now) {
            self.retain();
        }
        if take_due(&mut self.wakes.progress, now) {
            self.save();
        }
    }

    // ---- what users ask --------------------------------------------------------------------

    fn end(&mut self, verb: &str, intent: Intent, reply: Reply<CheckpointDone>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(intent)) {
            Ok(actions) => {
                self.last_done = None;
                self.resting.push(reply);
                self.note_wish(intent);
                self.act(actions);
                self.rested();
            }
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, verb, refused)));
            }
        }
    }

    /// Writes down what somebody wants, so that it still happens after a restart of the agent.
    fn note_wish(&mut self, intent: Intent) {
        let wanted = match intent {
            Intent::Suspend | Intent::Interrupt(_) => Some(Wish::Suspend),
            Intent::Stop => Some(Wish::Stop),
            Intent::Delete => None,
        };
        match &mut self.record.standing {
            Standing::Running { wish } | Standing::Ending { wish } => {
                *wish = wanted.or(*wish);
                self.save();
            }
            _ => {}
        }
    }

    fn delete(&mut self, reply: Reply<()>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(Intent::Delete)) {
            Ok(actions) => {
                self.deleting.push(reply);
                self.act(actions);
            }
            Err(Refused::Deleting) => self.deleting.push(reply),
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, "delete", refused)));
            }
        }
    }

    fn resume(&mut self) -> Result<(), Refusal> {
        let not_now = |refused| Refusal::not_now(&self.name, "resume", refused);
        let failed = matches!(self.life.stage(), Stage::Parked(Parked::Failed(_)));
        let actions = self.life.on(Instant::now(), lifecycle::Event::Resume).map_err(not_now)?;
        if failed {
            // Whoever resumes a failed job has looked at it: its limits begin anew.
            self.record.counters = crate::recovery::Counters {
                wall_time: self.record.counters.wall_time,
                ..Default::default()
            };
            self.record.finished = None;
        }
        self.record.message = None;
        self.record.standing = Standing::Due;
        self.wakes.retention = None;
        self.save();
        self.act(actions);
        Ok(())
    }

    /// Whether a checkpoint of this job can be taken now.
    pub(super) fn can_checkpoint(&self) -> Result<(), Refusal> {
        let refuse = |why: String| Err(Refusal::new(ProblemCode::Conflict, why));
        if !copies_files(&self.record.spec) {
            let kind = self.record.spec.recovery.continuity;
            return refuse(format!("job {} is {kind}: its files are not copied", self.name));
        }
        match self.life.stage() {
            Stage::Running { .. } => Ok(()),
            _ => refuse(format!(
                "cannot checkpoint job {}: it is {}, and only a running job can be",
                self.name,
                self.life.phase()
            )),
        }
    }

    fn checkpoint(
        &mut self,
        cause: Cause,
        urgent: bool,
        deadline: Option<Instant>,
        reply: Reply<CheckpointDone>,
    ) {
        match self.can_checkpoint() {
            Ok(()) => self.trigger(cause, urgent, deadline, Some(Waiter::Asked(reply))),
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
            }
        }
    }

    fn reclaim(&mut self, reclaim: Reclaim, reply: Reply<CheckpointDone>) {
        let deadline = reclaim.within.map(|within| timestamp() + within);
        self.emit(JobEvent::Notice { source: reclaim.source, deadline });
        match reclaim.ends {
            Some(by) => {
                let within = reclaim.within.map(|within| Instant::now() + within);
                self.live_deadline(within);
                self.end("end", Intent::Interrupt(by), reply);
            }
            None => {
                let within = reclaim.within.unwrap_or(self.shared.settings.suspend_timeout);
                self.checkpoint(reclaim.cause, true, Some(Instant::now() + within), reply);
            }
        }
    }

    // ---- what the pure parts decide --------------------------------------------------------

    /// Tells the lifecycle, and does what follows.
    pub(super) fn live_on(&mut self, event: lifecycle::Event) {
        match self.life.on(Instant::now(), event) {
            Ok(actions) => {
                self.act(actions);
                self.rested();
            }
            // Two pieces of work raced to their ends; the lifecycle is as before.
            Err(refused) => tracing::debug!(job = %self.name, ?event, %refused, "event came late"),
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Prepare => self.prepare(),
                Action::Save(cause) => {
                    let deadline = self.ending_deadline();
                    self.trigger(cause, true, Some(deadline), Some(Waiter::Ending));
                }
                Action::Terminate => self.terminate(),
                Action::SaveExit => self.save_exit(),
                Action::WakeAt(at) => self.wakes.life = Some(at),
                Action::Remove => self.remove(),
            }
        }
    }

    fn save_exit(&mut self) {
        self.exit_seq = None;
        if self.epoch.is_some() && copies_files(&self.record.spec) {
            self.trigger(Cause::Exit, true, None, Some(Waiter::Exit));
        } else {
            self.exit_saved();
        }
    }

    fn trigger(
        &mut self,
        cause: Cause,
        urgent: bool,
        deadline: Option<Instant>,
        waiter: Option<Waiter>,
    ) {
        let waiter = waiter.map(|waiter| {
            self.next_waiter += 1;
            self.waiters.insert(WaiterId(self.next_waiter), waiter);
            WaiterId(self.next_waiter)
        });
        let expected_copy = self
            .cadence
            .costs()
            .map_or(Duration::ZERO, |costs| costs.until_committed.saturating_sub(costs.held_up));
        let trigger = Trigger { cause, urgent, deadline, expected_copy, waiter };
        self.coordinate(coordinator::Event::Trigger(trigger));
    }

    /// Tells the coordinator, and does what follows.
    pub(super) fn coordinate(&mut self, event: coordinator::Event) {
        for action in self.coordinator.on(Instant::now(), event) {
            match action {
                coordinator::Action::Send { client, message } => {
                    self.shared.hub.send(client, &message);
                }
                coordinator::Action::Capture { seq, cause, trust, freeze } => {
                    self.capture(seq, cause, trust, freeze);
                }
                coordinator::Action::WakeAt(at) => self.wakes.coordinator = Some(at),
                coordinator::Action::Done(done) => self.checkpoint_done(&done),
                coordinator::Action::Rejected { waiter } => self.rejected(waiter),
                coordinator::Action::Emit(event) => self.emit(event),
            }
        }
    }

    fn checkpoint_done(&mut self, done: &coordinator::Done) {
        self.account(done);
        for id in &done.waiters {
            match self.waiters.remove(id) {
                Some(Waiter::Asked(reply)) => {
                    let outcome = Some(done.outcome.clone());
                    let phase = self.life.phase();
                    let _ = reply.send(Ok(CheckpointDone { seq: Some(done.seq), outcome, phase }));
                }
                Some(Waiter::Ending) => {
                    self.last_done = Some((done.seq, done.outcome.clone()));
                    self.live_on(lifecycle::Event::Saved);
                }
                Some(Waiter::Exit) => {
                    if matches!(done.outcome, Outcome::Committed(_)) {
                        self.exit_seq = Some(done.seq);
                    }
                    self.last_done.get_or_insert((done.seq, done.outcome.clone()));
                    self.exit_saved();
                }
                None => {}
            }
        }
    }

    fn rejected(&mut self, waiter: WaiterId) {
        match self.waiters.remove(&waiter) {
            Some(Waiter::Asked(reply)) => {
                let why = format!("cannot checkpoint job {}: its program has ended", self.name);
                let _ = reply.send(Err(Refusal::new(ProblemCode::Conflict, why)));
            }
            Some(Waiter::Ending) => self.live_on(lifecycle::Event::Saved),
            Some(Waiter::Exit) => self.exit_saved(),
            None => {}
        }
    }

    /// Writes down and answers where the job has come to rest.
    fn rested(&mut self) {
        let Stage::Parked(parked) = *self.life.stage() else { return };
        if self.life.intent() == Some(Intent::Delete) {
            return;
        }
        let standing = Standing::parked(parked);
        if self.record.standing != standing {
            self.record.standing = standing;
            if self.life.phase().is_finished() {
                self.record.finished.get_or_insert(timestamp());
            }
            self.save();
            self.wakes.retention = Some(Instant::now());
        }
        for reply in std::mem::take(&mut self.resting) {
            let (seq, outcome) = self.last_done.clone().unzip();
            let _ = reply.send(Ok(CheckpointDone { seq, outcome, phase: self.life.phase() }));
        }
    }

    fn traces_removed(&mut self, result: Result<(), String>) {
        let answer = result.map_err(|why| {
            let detail = format!("cannot remove all of job {}: {why}", self.name);
            Refusal::new(ProblemCode::Internal, detail)
        });
        self.removed = answer.is_ok();
        for reply in std::mem::take(&mut self.deleting) {
            let _ = reply.send(answer.clone());
        }
    }

    // ---- telling others --------------------------------------------------------------------

    /// Writes the record. A failure is shown and does not stop the job: its program costs money.
    pub(super) fn save(&mut self) {
        self.record.costs = self.cadence.costs();
        let saved = tokio::task::block_in_place(|| self.record.save(&self.place.records));
        match saved {
            Ok(()) => {
                self.conditions.remove("RecordNotSaved");
            }
            Err(error) => {
                let message = error.chain();
                tracing::error!(job = %self.name, error = message, "cannot write the job's record");
                self.conditions.insert("RecordNotSaved", message);
            }
        }
    }

    /// Shows an event to whoever follows the job.
    pub(super) fn emit(&mut self, event: JobEvent) {
        super::view::log(&self.name, &event);
        // No receiver is no error: nobody follows.
        let _ = self.events.send(TimedEvent { at: timestamp(), event });
    }

    pub(super) fn warn(&mut self, message: String) {
        self.emit(JobEvent::Warning { message });
    }

    fn publish(&mut self) {
        let detail = self.detail();
        let JobInfo { phase, reason, message, .. } = detail.info.clone();
        let published = Published { detail, unstored: self.record.unstored.clone() };
        let before = self.view.send_replace(Arc::new(published)).detail.info.phase;
        if before != phase {
            self.emit(JobEvent::Phase { phase, reason, message });
        }
    }
}

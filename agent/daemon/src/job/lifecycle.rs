//! The life of one job, decided without touching anything.
//!
//! ```text
//!            ┌────────── Resume ───────────────────────────────┐
//!            ▼                                                 │
//!  Waiting ──woke──▶ Preparing ──started──▶ Running ──ended──▶ Ending ──saved──▶ Parked
//!     ▲                  │                    │ suspend, stop    │   (Suspended, Succeeded,
//!     └──── retry ───────┴────────────────────┼──────────────────┘    Failed)
//!                                             └ checkpoint, then SIGTERM
//! ```
//!
//! *Preparing* restores and starts; *Ending* takes the exit checkpoint, so that whatever an attempt
//! saved last is kept before anything else happens to its files.

use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::Cause;
use nodus_protocol::job::{AttemptEnd, Interruption, Phase, StopReason};

use crate::recovery::Next;

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The next attempt is prepared when this time comes.
    Waiting {
        /// When.
        until: Instant,
    },
    /// The files are being restored and the program started.
    Preparing,
    /// The program runs.
    Running {
        /// How far an ending that somebody asked for has come.
        ending: Option<EndingStep>,
    },
    /// The program is over, and the exit checkpoint is being taken.
    Ending {
        /// How it ended.
        end: AttemptEnd,
    },
    /// Nothing happens by itself.
    Parked(Parked),
}

/// How far an ending that somebody asked for has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndingStep {
    /// The urgent checkpoint before it is under way.
    Saving,
    /// The program was told to end.
    Terminating,
}

/// A job to which nothing happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// Until `resume`.
    Suspended,
    /// For good.
    Succeeded,
    /// Until somebody resumes it.
    Failed(StopReason),
    /// Interrupted in a process that ends with it (standalone mode): the next run goes on.
    Interrupted(Interruption),
}

/// Why an attempt is to end, where somebody wants it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// `suspend`, or Ctrl-C in standalone mode.
    Suspend,
    /// `stop`.
    Stop,
    /// `delete`.
    Delete,
    /// The capacity goes away and takes this process with it.
    Interrupt(Interruption),
    /// `maxWallTime` is used up.
    TimeUp,
    /// A later attempt elsewhere owns the job: nothing that this one does is kept any more.
    Fence,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants the job to end.
    End(Intent),
    /// Somebody wants it to go on.
    Resume,
    /// The time of [`Action::WakeAt`] has come.
    Woke,
    /// The program of the attempt runs.
    Started,
    /// It could not be prepared; the cause may go away by itself.
    NotPrepared {
        /// When to try again.
        retry_after: Duration,
    },
    /// It could not be prepared and never will be by itself.
    CannotPrepare(StopReason),
    /// The program could not be started: the attempt is over before it began.
    NotStarted,
    /// The checkpoint before an asked-for ending is committed, skipped or has failed.
    Saved,
    /// The program is over.
    Ended(AttemptEnd),
    /// The exit checkpoint is committed, skipped or has failed; what is next was decided by
    /// [`crate::recovery`].
    ExitSaved(Next),
}

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Restore and start the next attempt.
    Prepare,
    /// Take an urgent checkpoint, then report [`Event::Saved`].
    Save(Cause),
    /// SIGTERM, the grace period, SIGKILL.
    Terminate,
    /// Take the exit checkpoint.
    SaveExit,
    /// Report [`Event::Woke`] then.
    WakeAt(Instant),
    /// Remove every trace of the job.
    Remove,
}

/// Why an event cannot be met: clients cause it, so it will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is over for good.
    #[error("it has already succeeded")]
    Succeeded,
    /// It has failed.
    #[error("it has already failed")]
    Failed,
    /// It is being deleted.
    #[error("it is being deleted")]
    Deleting,
    /// It is already on its way.
    #[error("it is already running")]
    AlreadyRunning,
    /// The shell reported something that this stage does not wait for.
    #[error("nothing waits for it")]
    Unexpected,
}

/// A job's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    stage: Stage,
    intent: Option<Intent>,
    /// Whether there are files to save before and after an attempt.
    checkpointed: bool,
    /// Whether any attempt was started before, for the name of the phase.
    attempted: bool,
}

impl Lifecycle {
    /// A job whose first attempt is due at once.
    #[must_use]
    pub fn new(now: Instant, checkpointed: bool) -> Self {
        Self::at(Stage::Waiting { until: now }, None, checkpointed, false)
    }

    /// A job found again after a restart of the agent.
    #[must_use]
    pub fn at(stage: Stage, intent: Option<Intent>, checkpointed: bool, attempted: bool) -> Self {
        Self { stage, intent, checkpointed, attempted }
    }

    /// Where it is.
    #[must_use]
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// What somebody wants of it.
    #[must_use]
    pub fn intent(&self) -> Option<Intent> {
        self.intent
    }

    /// The word for where it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match (&self.stage, self.intent) {
            (Stage::Parked(Parked::Suspended | Parked::Interrupted(_)), _) => Phase::Suspended,
            (Stage::Parked(Parked::Succeeded), _) => Phase::Succeeded,
            (Stage::Parked(Parked::Failed(_)), _) => Phase::Failed,
            (_, Some(Intent::Suspend | Intent::Interrupt(_) | Intent::TimeUp)) => Phase::Suspending,
            (Stage::Running { .. } | Stage::Ending { .. }, _) => Phase::Running,
            (Stage::Waiting { .. } | Stage::Preparing, _) if self.attempted => Phase::Recovering,
            (Stage::Waiting { .. } | Stage::Preparing, _) => Phase::Pending,
        }
    }

    /// What the job goes through when `event` happens.
    ///
    /// # Errors
    /// Where the event cannot be met; the job is as before.
    pub fn on(&mut self, now: Instant, event: Event) -> Result<Vec<Action>, Refused> {
        match event {
            Event::End(intent) => self.end(intent),
            Event::Resume => self.resume(now),
            Event::Woke => Ok(self.woke(now)),
            Event::Started => self.started(),
            Event::NotPrepared { retry_after } => self.not_prepared(now + retry_after),
            Event::CannotPrepare(reason) => self.cannot_prepare(reason),
            Event::NotStarted => self.ended(AttemptEnd::NotStarted),
            Event::Saved => Ok(self.saved()),
            Event::Ended(end) => self.ended(end),
            Event::ExitSaved(next) => self.exit_saved(now, next),
        }
    }

    fn end(&mut self, intent: Intent) -> Result<Vec<Action>, Refused> {
        if self.intent == Some(Intent::Delete) {
            return Err(Refused::Deleting);
        }
        match self.stage {
            Stage::Waiting { .. } => Ok(self.park(intent)),
            Stage::Parked(parked) => self.end_parked(parked, intent),
            Stage::Preparing | Stage::Ending { .. } => {
                self.intent = Some(stronger(self.intent, intent));
                Ok(vec![])
            }
            Stage::Running { ending } => Ok(self.end_running(ending, intent)),
        }
    }

    fn end_parked(&mut self, parked: Parked, intent: Intent) -> Result<Vec<Action>, Refused> {
        match (parked, intent) {
            (_, Intent::Delete) | (Parked::Suspended | Parked::Interrupted(_), Intent::Stop) => {
                Ok(self.park(intent))
            }
            (Parked::Suspended | Parked::Interrupted(_), _)
            | (Parked::Failed(StopReason::Stopped), Intent::Stop) => Ok(vec![]),
            (Parked::Succeeded, _) => Err(Refused::Succeeded),
            (Parked::Failed(_), _) => Err(Refused::Failed),
        }
    }

    fn end_running(&mut self, ending: Option<EndingStep>, intent: Intent) -> Vec<Action> {
        let wanted = stronger(self.intent, intent);
        let already = self.intent.replace(wanted);
        let save = match wanted {
            Intent::Suspend => Some(Cause::Suspend),
            Intent::Interrupt(_) => Some(Cause::Reclaim),
            Intent::TimeUp => Some(Cause::Interval),
            Intent::Stop | Intent::Delete | Intent::Fence => None,
        };
        match (ending, save) {
            (Some(EndingStep::Terminating), _) => vec![],
            (Some(EndingStep::Saving), Some(_)) if already == Some(wanted) => vec![],
            (_, Some(cause)) if self.checkpointed => {
                self.stage = Stage::Running { ending: Some(EndingStep::Saving) };
                vec![Action::Save(cause)]
            }
            _ => self.terminate(),
        }
    }

    fn terminate(&mut self) -> Vec<Action> {
        self.stage = Stage::Running { ending: Some(EndingStep::Terminating) };
        vec![Action::Terminate]
    }

    fn resume(&mut self, now: Instant) -> Result<Vec<Action>, Refused> {
        match (&self.stage, self.intent) {
            (_, Some(Intent::Delete)) => Err(Refused::Deleting),
            (Stage::Parked(Parked::Succeeded), _) => Err(Refused::Succeeded),
            (Stage::Parked(_), _) => {
                self.intent = None;
                Ok(self.wait(now))
            }
            _ => Err(Refused::AlreadyRunning),
        }
    }

    fn wait(&mut self, until: Instant) -> Vec<Action> {
        self.stage = Stage::Waiting { until };
        vec![Action::WakeAt(until)]
    }

    fn woke(&mut self, now: Instant) -> Vec<Action> {
        match self.stage {
            Stage::Waiting { until } if until <= now => {
                self.stage = Stage::Preparing;
                vec![Action::Prepare]
            }
            _ => vec![], // A timer that outlived its reason.
        }
    }

    fn started(&mut self) -> Result<Vec<Action>, Refused> {
        if self.stage != Stage::Preparing {
            return Err(Refused::Unexpected);
        }
        self.attempted = true;
        self.stage = Stage::Running { ending: None };
        // Nothing was saved yet in this attempt, so there is nothing to save before its end.
        Ok(if self.intent.is_some() { self.terminate() } else { vec![] })
    }

    fn not_prepared(&mut self, until: Instant) -> Result<Vec<Action>, Refused> {
        match (&self.stage, self.intent) {
            (Stage::Preparing, Some(intent)) => Ok(self.park(intent)),
            (Stage::Preparing, None) => Ok(self.wait(until)),
            _ => Err(Refused::Unexpected),
        }
    }

    fn cannot_prepare(&mut self, reason: StopReason) -> Result<Vec<Action>, Refused> {
        match (&self.stage, self.intent) {
            // Whoever wants it to end gets what they want: the next start finds the cause again.
            (Stage::Preparing, Some(intent)) => Ok(self.park(intent)),
            (Stage::Preparing, None) => {
                self.stage = Stage::Parked(Parked::Failed(reason));
                Ok(vec![])
            }
            _ => Err(Refused::Unexpected),
        }
    }

    fn saved(&mut self) -> Vec<Action> {
        match self.stage {
            Stage::Running { ending: Some(EndingStep::Saving) } => self.terminate(),
            _ => vec![], // The program ended by itself meanwhile.
        }
    }

    fn ended(&mut self, end: AttemptEnd) -> Result<Vec<Action>, Refused> {
        let ending = match self.stage {
            Stage::Running { ending } => ending,
            Stage::Preparing if end == AttemptEnd::NotStarted => None,
            _ => return Err(Refused::Unexpected),
        };
        self.attempted = true;
        self.stage = Stage::Ending { end: self.attributed(end, ending) };
        Ok(vec![Action::SaveExit])
    }

    /// Who ended the attempt: a program that was told to end did not fail, and one that finished
    /// before it was told did succeed.
    fn attributed(&self, end: AttemptEnd, ending: Option<EndingStep>) -> AttemptEnd {
        let told = ending == Some(EndingStep::Terminating);
        match self.intent {
            _ if end == (AttemptEnd::Exited { code: 0 }) && !told => end,
            // Told by an agent that was killed since: only used-up time leaves no wish behind.
            None if told => AttemptEnd::Interrupted { by: Interruption::TimeLimit },
            None => end,
            Some(Intent::Suspend) => AttemptEnd::Suspended,
            Some(Intent::Stop | Intent::Delete | Intent::Fence) => AttemptEnd::Stopped,
            Some(Intent::Interrupt(by)) => AttemptEnd::Interrupted { by },
            Some(Intent::TimeUp) => AttemptEnd::Interrupted { by: Interruption::TimeLimit },
        }
    }

    fn exit_saved(&mut self, now: Instant, next: Next) -> Result<Vec<Action>, Refused> {
        let Stage::Ending { end } = self.stage else { return Err(Refused::Unexpected) };
        let ours = !matches!(self.intent, Some(Intent::Delete | Intent::Fence));
        if end == (AttemptEnd::Exited { code: 0 }) && ours {
            self.stage = Stage::Parked(Parked::Succeeded);
            return Ok(vec![]);
        }
        if let Some(intent) = self.intent {
            return Ok(self.park(intent));
        }
        match next {
            Next::StartAgain { after, .. } => Ok(self.wait(now + after)),
            Next::Succeeded => self.parked(Parked::Succeeded),
            Next::Suspended => self.parked(Parked::Suspended),
            Next::Stopped(reason) | Next::Failed(reason) => self.parked(Parked::Failed(reason)),
        }
    }

    fn parked(&mut self, parked: Parked) -> Result<Vec<Action>, Refused> {
        self.stage = Stage::Parked(parked);
        Ok(vec![])
    }

    fn park(&mut self, intent: Intent) -> Vec<Action> {
        self.intent = Some(intent).filter(|intent| *intent == Intent::Delete);
        let (parked, actions) = match intent {
            Intent::Suspend => (Parked::Suspended, vec![]),
            Intent::Interrupt(by) => (Parked::Interrupted(by), vec![]),
            Intent::Stop => (Parked::Failed(StopReason::Stopped), vec![]),
            Intent::TimeUp => (Parked::Failed(StopReason::WallTimeExceeded), vec![]),
            Intent::Fence => (Parked::Failed(StopReason::Fenced), vec![]),
            Intent::Delete => (Parked::Failed(StopReason::Stopped), vec![Action::Remove]),
        };
        self.stage = Stage::Parked(parked);
        actions
    }
}

/// Of two wishes the one that leaves less.
fn stronger(a: Option<Intent>, b: Intent) -> Intent {
    let rank = |intent: &Intent| match intent {
        Intent::Interrupt(_) => 0,
        Intent::Suspend => 1,
        Intent::TimeUp => 2,
        Intent::Stop => 3,
        Intent::Fence => 4,
        Intent::Delete => 5,
    };
    a.into_iter().chain([b]).max_by_key(rank).unwrap_or(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLEAN: AttemptEnd = AttemptEnd::Exited { code: 0 };
    const KILLED: AttemptEnd = AttemptEnd::Signaled { signal: 15, oom: false };
    const AGAIN: Next = Next::StartAgain { after: Duration::from_secs(1), counts_retry: true };

    struct Story {
        now: Instant,
        job: Lifecycle,
    }

    impl Story {
        fn running() -> Self {
            let now = Instant::now();
            let mut story = Self { now, job: Lifecycle::new(now, true) };
            assert_eq!(story.job.phase(), Phase::Pending);
            story.check(Event::Woke, &[Action::Prepare]);
            story.check(Event::Started, &[]);
            assert_eq!(story.job.phase(), Phase::Running);
            story
        }

        fn check(&mut self, event: Event, expected: &[Action]) {
            assert_eq!(self.job.on(self.now, event).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn suspended_in_the_middle_and_resumed() {
        let mut story = Story::running();
        story.check(Event::End(Intent::Suspend), &[Action::Save(Cause::Suspend)]);
        assert_eq!(story.job.phase(), Phase::Suspending);
        story.check(Event::Saved, &[Action::Terminate]);
        story.check(Event::Ended(KILLED), &[Action::SaveExit]);
        assert_eq!(story.job.stage(), &Stage::Ending { end: AttemptEnd::Suspended });
        assert_eq!(story.job.phase(), Phase::Suspending);
        story.check(Event::ExitSaved(Next::Suspended), &[]);
        assert_eq!(story.job.phase(), Phase::Suspended);
        let now = story.now;
        story.check(Event::Resume, &[Action::WakeAt(now)]);
        assert_eq!(story.job.phase(), Phase::Recovering);
        story.check(Event::Woke, &[Action::Prepare]);
        story.check(Event::Started, &[]);
    }

    #[test]
    fn a_program_that_finishes_while_it_is_being_suspended_has_succeeded() {
        let mut story = Story::running();
        story.check(Event::End(Intent::Suspend), &[Action::Save(Cause::Suspend)]);
        story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        story.check(Event::Saved, &[]);
        story.check(Event::ExitSaved(Next::Succeeded), &[]);
        assert_eq!(story.job.phase(), Phase::Succeeded);
    }

    #[test]
    fn a_program_that_obeys_sigterm_with_0_is_suspended_and_not_finished() {
        let mut story = Story::running();
        story.check(Event::End(Intent::Suspend), &[Action::Save(Cause::Suspend)]);
        story.check(Event::Saved, &[Action::Terminate]);
        story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        story.check(Event::ExitSaved(Next::Suspended), &[]);
        assert_eq!(story.job.phase(), Phase::Suspended);
    }

    #[test]
    fn a_failure_is_tried_again_and_an_intent_is_not() {
        let mut story = Story::running();
        story.check(Event::Ended(KILLED), &[Action::SaveExit]);
        let due = story.now + Duration::from_secs(1);
        story.check(Event::ExitSaved(AGAIN), &[Action::WakeAt(due)]);
        story.check(Event::Woke, &[]);
        story.now = due;
        story.check(Event::Woke, &[Action::Prepare]);
        story.check(Event::End(Intent::Suspend), &[]);
        story.check(Event::Started, &[Action::Terminate]);
        story.check(Event::Ended(KILLED), &[Action::SaveExit]);
        story.check(Event::ExitSaved(AGAIN), &[]);
        assert_eq!(story.job.phase(), Phase::Suspended);
    }

    #[test]
    fn a_fenced_attempt_is_ended_at_once_and_has_not_succeeded() {
        let mut story = Story::running();
        story.check(Event::End(Intent::Suspend), &[Action::Save(Cause::Suspend)]);
        story.check(Event::End(Intent::Fence), &[Action::Terminate]);
        story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        story.check(Event::ExitSaved(Next::Succeeded), &[]);
        assert_eq!(story.job.stage(), &Stage::Parked(Parked::Failed(StopReason::Fenced)));
        let mut over = Story::running();
        over.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        over.check(Event::End(Intent::Fence), &[]);
        over.check(Event::ExitSaved(Next::Succeeded), &[]);
        assert_eq!(over.job.stage(), &Stage::Parked(Parked::Failed(StopReason::Fenced)));
    }

    #[test]
    fn used_up_time_ends_an_attempt_after_a_checkpoint() {
        let mut story = Story::running();
        story.check(Event::End(Intent::TimeUp), &[Action::Save(Cause::Interval)]);
        story.check(Event::Saved, &[Action::Terminate]);
        story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        let by = Interruption::TimeLimit;
        assert_eq!(story.job.stage(), &Stage::Ending { end: AttemptEnd::Interrupted { by } });
        story.check(Event::ExitSaved(AGAIN), &[]);
        assert_eq!(story.job.stage(), &Stage::Parked(Parked::Failed(StopReason::WallTimeExceeded)));
    }

    /// The agent was killed after it had told the program to end.
    #[test]
    fn a_program_that_obeyed_while_the_agent_was_away_has_not_succeeded() {
        let told = Stage::Running { ending: Some(EndingStep::Terminating) };
        for (intent, parked) in [
            (Some(Intent::Suspend), Parked::Suspended),
            (Some(Intent::Stop), Parked::Failed(StopReason::Stopped)),
            (None, Parked::Failed(StopReason::WallTimeExceeded)),
        ] {
            let job = Lifecycle::at(told.clone(), intent, true, true);
            let mut story = Story { now: Instant::now(), job };
            story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
            story.check(Event::ExitSaved(Next::Stopped(StopReason::WallTimeExceeded)), &[]);
            assert_eq!(story.job.stage(), &Stage::Parked(parked));
        }
    }

    #[test]
    fn what_cannot_be_prepared_is_still_suspended_or_stopped() {
        let now = Instant::now();
        for (intent, parked) in [
            (Intent::Suspend, Parked::Suspended),
            (Intent::Stop, Parked::Failed(StopReason::Stopped)),
        ] {
            let mut story = Story { now, job: Lifecycle::new(now, true) };
            story.check(Event::Woke, &[Action::Prepare]);
            story.check(Event::End(intent), &[]);
            story.check(Event::CannotPrepare(StopReason::RestoreFailed), &[]);
            assert_eq!(story.job.stage(), &Stage::Parked(parked));
        }
    }

    #[test]
    fn delete_at_any_time() {
        let mut story = Story::running();
        story.check(Event::End(Intent::Suspend), &[Action::Save(Cause::Suspend)]);
        story.check(Event::End(Intent::Delete), &[Action::Terminate]);
        assert_eq!(story.job.on(story.now, Event::End(Intent::Stop)), Err(Refused::Deleting));
        story.check(Event::Ended(KILLED), &[Action::SaveExit]);
        story.check(Event::ExitSaved(AGAIN), &[Action::Remove]);
        let mut parked = Story::running();
        parked.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        parked.check(Event::ExitSaved(Next::Succeeded), &[]);
        parked.check(Event::End(Intent::Delete), &[Action::Remove]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let mut story = Story::running();
        assert_eq!(story.job.on(story.now, Event::Resume), Err(Refused::AlreadyRunning));
        story.check(Event::Ended(CLEAN), &[Action::SaveExit]);
        story.check(Event::ExitSaved(Next::Succeeded), &[]);
        assert_eq!(story.job.on(story.now, Event::Resume), Err(Refused::Succeeded));
        assert_eq!(story.job.on(story.now, Event::End(Intent::Suspend)), Err(Refused::Succeeded));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let end = prop_oneof![Just(CLEAN), Just(KILLED)];
        let intent = prop_oneof![
            Just(Intent::Suspend),
            Just(Intent::Stop),
            Just(Intent::Interrupt(Interruption::Reclaim)),
            Just(Intent::TimeUp),
            Just(Intent::Fence),
        ];
        prop_oneof![
            intent.prop_map(Event::End),
            Just(Event::Resume),
            Just(Event::Woke),
            Just(Event::Started),
            Just(Event::NotPrepared { retry_after: Duration::ZERO }),
            Just(Event::Saved),
            end.prop_map(Event::Ended),
            Just(Event::ExitSaved(AGAIN)),
        ]
    }

    proptest! {
        /// However events come, a program is started only after the one before it was saved, and
        /// everything that was asked of the shell fits the stage.
        #[test]
        fn one_attempt_at_a_time(events in prop::collection::vec(any_event(), 0..60)) {
            let now = Instant::now();
            let mut job = Lifecycle::new(now, true);
            let (mut alive, mut saving) = (false, false);
            for event in events {
                let before = job.clone();
                let Ok(actions) = job.on(now + Duration::from_secs(3600), event) else {
                    prop_assert_eq!(&job, &before);
                    continue;
                };
                match event {
                    Event::Started => alive = true,
                    Event::Ended(_) => { alive = false; saving = true; }
                    Event::ExitSaved(_) => saving = false,
                    _ => {}
                }
                prop_assert!(!(actions.contains(&Action::Prepare) && (alive || saving)));
                prop_assert!(!actions.contains(&Action::Terminate) || alive);
                prop_assert_eq!(matches!(job.stage(), Stage::Ending { .. }), saving);
            }
        }
    }
}

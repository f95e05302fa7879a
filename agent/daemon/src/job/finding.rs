//! Taking a job up again where its record says that it is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use nodus_checkpoint::Error;
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_protocol::job::{AttemptEnd, Interruption};

use super::attempts::{Live, attempt_dir, chain};
use super::ending::{LOST, STOP_SLACK, attempt_end};
use super::lifecycle::{self, Action, Lifecycle, Parked, Stage};
use super::place::copies_files;
use super::record::{Record, Standing};
use super::task::JobTask;
use crate::attempt::{self, Ended, Found, Running};
use crate::coordinator;
use crate::engine::Shared;

impl JobTask {
    /// Takes up the job where its record says that it is.
    pub(super) async fn find_again(&mut self) {
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
    pub(super) fn find_ending(&mut self) {
        let end = self.record.attempt().and_then(|attempt| attempt.info.end);
        let end = end.unwrap_or(AttemptEnd::Interrupted { by: Interruption::NodeFailure });
        let copies = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        self.life = Lifecycle::at(Stage::Ending { end }, intent, copies, true);
        self.reopen_epoch();
        self.act(vec![Action::SaveExit]);
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
        self.life = Lifecycle::at(stage, None, copies, true);
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
        self.life = Lifecycle::at(stage, None, copies, attempted);
    }

    fn found_over(&mut self, end: AttemptEnd) {
        let copies = copies_files(&self.record.spec);
        let intent = self.record.standing.intent();
        let stage = Stage::Running { ending: None };
        self.life = Lifecycle::at(stage, intent, copies, true);
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
}

fn open_epoch(shared: &Shared, record: &Record, number: u64) -> Result<(Epoch, u64), Error> {
    let store = JobStore::open(&shared.settings.store, &record.spec.name)?
        .ok_or_else(|| Error::NotFound { job: record.spec.name.to_string(), seq: None })?;
    Ok((store.resume_epoch(number)?, store.highest_seq()? + 1))
}

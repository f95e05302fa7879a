//! Taking a job up again where its record says that it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use nodus_checkpoint::Error;
use nodus_checkpoint::error::chain;
use nodus_checkpoint::process::OpenFiles;
use nodus_checkpoint::store::Epoch;
use nodus_protocol::job::{AttemptEnd, Interruption};

use super::attempts::{Live, attempt_dir, log_path};
use super::copying::open_store;
use super::ending::{LOST, attempt_end};
use super::lifecycle::{self, Action, EndingStep, Lifecycle, Parked, Stage};
use super::place::copies_files;
use super::record::{FILE, Record, Standing};
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{self, Ended, ExitRecord, Found, Running};
use crate::coordinator;

/// Where the record says that a job is, as far as that needs no look at its attempt.
pub(super) fn standing_of(record: &Record, now: Instant) -> Lifecycle {
    let stage = match record.standing {
        Standing::Due => Stage::Waiting { until: now },
        Standing::Suspended | Standing::Deleting => Stage::Parked(Parked::Suspended),
        Standing::Interrupted { by } => Stage::Parked(Parked::Interrupted(by)),
        Standing::Succeeded => Stage::Parked(Parked::Succeeded),
        Standing::Failed { reason } => Stage::Parked(Parked::Failed(reason)),
        Standing::Running { told, .. } => {
            Stage::Running { ending: told.then_some(EndingStep::Terminating) }
        }
        Standing::Ending { .. } => Stage::Ending { end: newest_end(record) },
    };
    let attempted = !record.attempts.is_empty();
    Lifecycle::at(stage, record.standing.intent(), copies_files(&record.spec), attempted)
}

fn newest_end(record: &Record) -> AttemptEnd {
    record.attempt().and_then(|attempt| attempt.info.end).unwrap_or(LOST)
}

impl JobTask {
    /// Takes up the job where its record says that it is.
    pub(super) async fn find_again(&mut self) {
        let now = Instant::now();
        self.say_left();
        match self.record.standing {
            Standing::Running { .. } => self.find_attempt().await,
            Standing::Ending { .. } => self.find_ending(),
            Standing::Deleting => self.remove(),
            Standing::Succeeded | Standing::Failed { .. } => self.wakes.retention = Some(now),
            Standing::Due => self.wakes.life = Some(now),
            Standing::Suspended | Standing::Interrupted { .. } => {}
        }
    }

    /// Goes on with an exit checkpoint that the process before this one did not finish.
    fn find_ending(&mut self) {
        // Nobody writes the files any more: they are captured as if the attempt ended now.
        let clean = matches!(newest_end(&self.record), AttemptEnd::Exited { code: 0 });
        self.expect_checkpoints();
        self.coordinate(coordinator::Event::AttemptEnded { clean });
        self.act(vec![Action::SaveExit]);
    }

    /// Finds the attempt that ran when the process before this one ended.
    async fn find_attempt(&mut self) {
        let number = self.record.attempt_number();
        let dir = attempt_dir(&self.place, number);
        let found = match attempt::adopt(&dir).await {
            Ok(found) => found,
            Err(error) => {
                self.warn(format!("cannot find attempt {number} again: {}", chain(&error)));
                Found::Lost { left: Vec::new() }
            }
        };
        match found {
            Found::Running(running) if self.shared.settings.die_with_us => {
                self.end_orphan(&running).await;
            }
            Found::Running(running) => self.adopt(running),
            Found::NeverStarted => self.forget_attempt(),
            Found::Ended(record) => self.found_over(self.orphaned(&record), record.ended),
            Found::Lost { .. } => self.found_over(LOST, self.last_seen()),
            Found::Rebooted => {
                self.after_reboot = true;
                let end = AttemptEnd::Interrupted { by: Interruption::Reboot };
                self.found_over(end, self.last_seen());
            }
        }
    }

    /// The process that the attempt belonged to was killed, so its shim is ending it already.
    async fn end_orphan(&mut self, running: &Running) {
        let (end, at) = match running.stop(self.shared.settings.stop_grace).await {
            Ok(Ended::Exited(record)) => (self.orphaned(&record), record.ended),
            _ => (LOST, timestamp()),
        };
        self.found_over(end, at);
    }

    /// How an attempt ended while nobody watched: one that its shim told to end, because the
    /// process that it belonged to was killed, was interrupted, whatever its program made of that.
    fn orphaned(&self, record: &ExitRecord) -> AttemptEnd {
        match attempt_end(record) {
            _ if record.told => LOST,
            AttemptEnd::Signaled { .. } if self.shared.settings.die_with_us => LOST,
            end => end,
        }
    }

    /// The newest sign of life of an attempt whose end nobody saw: the time that the node was down
    /// is none of its own.
    fn last_seen(&self) -> Timestamp {
        let number = self.record.attempt_number();
        let paths = [self.place.records.join(FILE), log_path(&self.place, number)];
        let changed = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
        let newest = paths.iter().filter_map(changed).max();
        let newest = newest.and_then(|time| Timestamp::try_from(time).ok());
        newest.unwrap_or_else(timestamp).min(timestamp())
    }

    fn adopt(&mut self, running: Running) {
        // What somebody wants of it is wanted anew, and followed from its beginning.
        let intent = self.life.intent();
        let told = matches!(self.record.standing, Standing::Running { told: true, .. });
        let copies = copies_files(&self.record.spec);
        self.life = Lifecycle::at(Stage::Running { ending: None }, None, copies, true);
        let ran = self.ran(timestamp());
        let since = Instant::now().checked_sub(ran).unwrap_or_else(Instant::now);
        let running = Arc::new(running);
        self.attach(Live {
            running,
            since,
            writing_when_told: OpenFiles::default(),
            deadline: None,
        });
        tracing::info!(job = %self.name, attempt = self.record.attempt_number(), "found the running attempt again");
        self.look_for_epoch();
        self.plan_checkpoint();
        match intent {
            _ if told => {
                self.life = standing_of(&self.record, Instant::now());
                self.terminate();
            }
            Some(intent) => self.live_on(lifecycle::Event::End(intent)),
            None => {}
        }
    }

    /// The process died between writing down the attempt and starting it: as if it had not.
    fn forget_attempt(&mut self) {
        let intent = self.life.intent();
        self.shared.members.remove(&self.name);
        self.record.attempts.pop();
        self.record.standing = Standing::Due;
        self.save();
        let now = Instant::now();
        self.life = standing_of(&self.record, now);
        self.wakes.life = Some(now);
        if let Some(intent) = intent {
            self.live_on(lifecycle::Event::End(intent));
        }
    }

    fn found_over(&mut self, end: AttemptEnd, at: Timestamp) {
        self.expect_checkpoints();
        self.ended(end, at);
    }

    /// Opens the epoch of an attempt that was found again; a store that does not answer now is
    /// asked again by each checkpoint.
    fn look_for_epoch(&self) {
        let number = self.record.attempt().map_or(0, |attempt| attempt.epoch);
        if number == 0 {
            return;
        }
        let (shared, record) = (Arc::clone(&self.shared), self.record.clone());
        let post = self.post.clone();
        tokio::task::spawn_blocking(move || {
            let opened = open_store(&shared, &record).and_then(|store| store.resume_epoch(number));
            let _ = post.blocking_send(Note::Epoch(Box::new(opened)));
        });
    }

    pub(super) fn epoch_found(&mut self, opened: Result<Epoch, Error>) {
        match opened {
            Ok(epoch) => self.epoch_opened(Some(epoch)),
            Err(error @ Error::Fenced { .. }) => self.fenced(&error.chain()),
            Err(error) => {
                let message = error.chain();
                self.warn(format!("cannot write checkpoints of the running attempt: {message}"));
                self.conditions.insert("StoreUnavailable", message);
            }
        }
    }

    /// Takes an epoch over for the attempt that it belongs to.
    pub(super) fn epoch_opened(&mut self, epoch: Option<Epoch>) {
        let ours = self.record.attempt().map(|attempt| attempt.epoch);
        let current = matches!(self.life.stage(), Stage::Running { .. } | Stage::Ending { .. });
        if current && epoch.as_ref().map(Epoch::number) == ours {
            self.epoch = epoch;
            self.conditions.remove("StoreUnavailable");
        }
    }
}

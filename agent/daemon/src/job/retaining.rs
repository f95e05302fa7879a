//! Deleting: checkpoints that the policy no longer keeps, and the job itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodus_checkpoint::identity::Credentials;
use nodus_checkpoint::retention::{self, Policy, Situation};
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_checkpoint::stored::Stored;
use nodus_checkpoint::{Error, Result};
use nodus_protocol::control::ProblemCode;

use super::place::copies_files;
use super::record::Standing;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::engine::{Refusal, Shared};

/// When retention is tried again after it could not delete.
const RETRY: Duration = Duration::from_secs(300);

impl JobTask {
    /// Deletes what the policy no longer keeps, and notes what is the newest now.
    pub(super) fn retain(&mut self) {
        if !copies_files(&self.record.spec) {
            return;
        }
        if self.copying.is_some() {
            // What it is going to point to must not go away; it ends with a retention of its own.
            return;
        }
        let situation = self.situation();
        let retained = tokio::task::block_in_place(|| self.retain_now(situation));
        match retained {
            Ok(latest) => {
                self.conditions.remove("RetentionBlocked");
                self.record.latest = latest;
                self.wakes.retention = self.next_retention();
            }
            Err(error) => {
                self.conditions.insert("RetentionBlocked", error.chain());
                self.wakes.retention = Some(Instant::now() + RETRY);
            }
        }
    }

    fn situation(&self) -> Situation {
        match self.record.finished.filter(|_| self.life.phase().is_finished()) {
            Some(at) => Situation::Finished { at, now: timestamp() },
            None => Situation::Running,
        }
    }

    fn since_finish(&self) -> Option<Duration> {
        let finished = self.record.finished.filter(|_| self.life.phase().is_finished())?;
        Some(Duration::try_from(timestamp().duration_since(finished)).unwrap_or_default())
    }

    /// When the checkpoints of a finished job expire.
    fn next_retention(&self) -> Option<Instant> {
        let retain = self.record.spec.recovery.checkpoint.retain_after_finish;
        let left = retain.checked_sub(self.since_finish()?)?;
        (!left.is_zero()).then(|| Instant::now() + left)
    }

    fn retain_now(
        &self,
        situation: Situation,
    ) -> Result<Option<nodus_protocol::checkpoint::CheckpointInfo>> {
        let Some(store) = JobStore::open(&self.shared.settings.store, &self.record.spec.name)?
        else {
            return Ok(None);
        };
        if let Some(epoch) = self.any_epoch(&store)? {
            let asked = &self.record.spec.recovery.checkpoint;
            let policy = Policy {
                keep_last: asked.keep_last,
                retain_after_finish: asked.retain_after_finish,
            };
            retention::apply(&store, &epoch, &policy, situation)?;
        }
        let listing = store.list()?;
        let choice = nodus_checkpoint::choose::newest(&listing);
        let chosen = choice.and_then(|choice| listing.iter().find(|one| one.seq() == choice.seq));
        Ok(chosen.map(Stored::info))
    }

    /// The epoch of the running attempt, or the last one: between attempts nobody else writes.
    fn any_epoch(&self, store: &JobStore) -> Result<Option<Epoch>> {
        let number = self.record.attempts.iter().rev().map(|attempt| attempt.epoch).max();
        match (&self.epoch, number) {
            (Some(epoch), _) => Ok(Some(epoch.clone())),
            (None, Some(number)) if number > 0 => store.resume_epoch(number).map(Some),
            _ => Ok(None),
        }
    }

    pub(super) fn delete_checkpoint(&mut self, seq: u64) -> std::result::Result<(), Refusal> {
        if self.copying.is_some() {
            let detail = "a checkpoint is being taken, and may need this one; try again after it";
            return Err(Refusal::new(ProblemCode::Conflict, detail));
        }
        let deleted = tokio::task::block_in_place(|| self.delete_now(seq));
        self.retain();
        deleted.map_err(|error| match error {
            Error::NotFound { .. } => Refusal::no_checkpoint(&self.name, seq),
            other => other.into(),
        })
    }

    fn delete_now(&self, seq: u64) -> Result<()> {
        let none = || Error::NotFound { job: self.name.to_string(), seq: Some(seq) };
        let store = JobStore::open(&self.shared.settings.store, &self.record.spec.name)?
            .ok_or_else(none)?;
        let epoch = self.any_epoch(&store)?.ok_or_else(none)?;
        retention::delete(&store, &epoch, seq)
    }

    /// The epoch under which this job's checkpoints can be marked; none before its first attempt.
    pub(super) fn some_epoch(&self) -> std::result::Result<Option<Epoch>, Refusal> {
        tokio::task::block_in_place(|| {
            let opened = JobStore::open(&self.shared.settings.store, &self.record.spec.name)?;
            let epoch = opened.map(|store| self.any_epoch(&store)).transpose()?;
            Ok(epoch.flatten())
        })
    }

    /// Removes every trace of the job; reported by a note.
    pub(super) fn remove(&mut self) {
        self.record.standing = Standing::Deleting;
        self.save();
        self.wakes = super::task::Wakes::default();
        let traces = Traces {
            shared: std::sync::Arc::clone(&self.shared),
            name: self.name.clone(),
            home: self.place.home.clone(),
            records: self.place.records.clone(),
            runtime: self.place.runtime.clone(),
            credentials: super::copying::credentials(&self.record.owner),
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let removed = tokio::task::spawn_blocking(move || traces.remove()).await;
            let result = removed.map_err(|panic| panic.to_string()).flatten();
            let _ = post.send(Note::Removed(result)).await;
        });
    }
}

/// Everything a job leaves on a node and in a store.
struct Traces {
    shared: std::sync::Arc<Shared>,
    name: nodus_protocol::JobName,
    home: PathBuf,
    records: PathBuf,
    runtime: PathBuf,
    credentials: Option<Credentials>,
}

impl Traces {
    /// The record goes last: whatever stops this, the next start of the agent goes on with it.
    fn remove(&self) -> std::result::Result<(), String> {
        let store = JobStore::open(&self.shared.settings.store, &self.name);
        if let Some(store) = store.map_err(|error| error.chain())? {
            store.delete_job().map_err(|error| error.chain())?;
        }
        // As the job's user: what is in there is theirs, links to others' directories included.
        let emptied = match self.home.exists() {
            true => nodus_checkpoint::restore::empty(&self.home, self.credentials.as_ref()),
            false => Ok(()),
        };
        emptied.map_err(|error| error.chain())?;
        remove_dir(&self.runtime)?;
        remove_dir(&self.records)?;
        remove_dir(&self.home)
    }
}

fn remove_dir(path: &Path) -> std::result::Result<(), String> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

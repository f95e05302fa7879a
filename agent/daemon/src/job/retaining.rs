//! Deleting: checkpoints that the policy no longer keeps, and the job itself.

use std::path::Path;
use std::time::{Duration, Instant};

use nodus_checkpoint::retention::{self, Policy, Situation};
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_checkpoint::stored::Stored;
use nodus_checkpoint::{Error, Result};
use nodus_protocol::control::ProblemCode;

use super::copying::{credentials, own_store};
use super::place::{Place, copies_files};
use super::record::{Record, Standing};
use super::task::{JobTask, Note};
use super::timestamp;
use crate::engine::{Refusal, Shared};

/// When retention is tried again after it could not delete.
const RETRY: Duration = Duration::from_secs(300);

/// When removing a job is tried again after something of it could not be removed.
const REMOVE_AGAIN: Duration = Duration::from_secs(60);

impl JobTask {
    /// Deletes what the policy no longer keeps, and notes what is the newest now.
    pub(super) fn retain(&mut self) {
        if !copies_files(&self.record.spec) {
            return;
        }
        if self.copying.is_some() || self.preparing.is_some() {
            // What is pointed to or restored must not go away. A copy ends with a retention of its
            // own, and after a restore a copy follows.
            return;
        }
        let situation = self.situation();
        let retained = tokio::task::block_in_place(|| self.retain_now(situation));
        match retained {
            Ok(latest) => {
                self.conditions.remove("RetentionBlocked");
                if self.record.latest != latest {
                    self.record.latest = latest;
                    self.save();
                }
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
        let Some(store) = self.store()? else { return Ok(None) };
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
        // The newest, not the highest: in a store that was lost and made anew they begin at 1.
        let mut epochs = self.record.attempts.iter().rev().map(|attempt| attempt.epoch);
        match (&self.epoch, epochs.find(|&epoch| epoch > 0)) {
            (Some(epoch), _) => Ok(Some(epoch.clone())),
            (None, Some(number)) => store.resume_epoch(number).map(Some),
            _ => Ok(None),
        }
    }

    fn store(&self) -> Result<Option<JobStore>> {
        let Record { spec, owner, .. } = &self.record;
        own_store(&self.shared.settings.store, &spec.name, owner.uid)
    }

    pub(super) fn delete_checkpoint(&mut self, seq: u64) -> std::result::Result<(), Refusal> {
        if self.copying.is_some() || self.preparing.is_some() {
            let detail = "a checkpoint is being taken or restored, and may need this one; try again \
                          after it";
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
        let store = self.store()?.ok_or_else(none)?;
        let epoch = self.any_epoch(&store)?.ok_or_else(none)?;
        retention::delete(&store, &epoch, seq)
    }

    /// The epoch under which this job's checkpoints can be marked; none before its first attempt.
    pub(super) fn some_epoch(&self) -> std::result::Result<Option<Epoch>, Refusal> {
        tokio::task::block_in_place(|| {
            let opened = self.store()?;
            let epoch = opened.map(|store| self.any_epoch(&store)).transpose()?;
            Ok(epoch.flatten())
        })
    }

    /// Removes every trace of the job; reported by a note.
    pub(super) fn remove(&mut self) {
        self.record.standing = Standing::Deleting;
        self.save();
        self.wakes = super::task::Wakes::default();
        let detail = format!("job {} is being deleted", self.name);
        for reply in std::mem::take(&mut self.resting) {
            let _ = reply.send(Err(Refusal::new(ProblemCode::Conflict, detail.clone())));
        }
        let traces = Traces {
            shared: std::sync::Arc::clone(&self.shared),
            record: self.record.clone(),
            place: self.place.clone(),
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let removed = tokio::task::spawn_blocking(move || traces.remove()).await;
            let result = removed.map_err(|panic| panic.to_string()).flatten();
            let _ = post.send(Note::Removed(result)).await;
        });
    }

    pub(super) fn traces_removed(&mut self, result: std::result::Result<(), String>) {
        let Err(why) = result else {
            self.removed = true;
            return;
        };
        let detail = format!("cannot remove all of job {}, trying again: {why}", self.name);
        self.warn(detail.clone());
        self.conditions.insert("NotRemoved", why);
        self.wakes.removal = Some(Instant::now() + REMOVE_AGAIN);
        for reply in std::mem::take(&mut self.deleting) {
            let _ = reply.send(Err(Refusal::new(ProblemCode::Internal, detail.clone())));
        }
    }
}

/// Everything a job leaves on a node and in a store.
struct Traces {
    shared: std::sync::Arc<Shared>,
    record: Record,
    place: Place,
}

impl Traces {
    /// The record goes last: whatever stops this, the next start of the agent goes on with it.
    fn remove(&self) -> std::result::Result<(), String> {
        self.remove_stored().map_err(|error| error.chain())?;
        // As the job's user: what is in there is theirs, links to others' directories included.
        let credentials = credentials(&self.record.owner);
        let home = &self.place.home;
        nodus_checkpoint::restore::empty(home, credentials.as_ref())
            .map_err(|error| error.chain())?;
        // Just the directory: what somebody has put into it since is not removed by root.
        removed(home, std::fs::remove_dir(home))?;
        for dir in [&self.place.runtime, &self.place.records] {
            removed(dir, std::fs::remove_dir_all(dir))?;
        }
        Ok(())
    }

    fn remove_stored(&self) -> Result<()> {
        let root = &self.shared.settings.store;
        let written = self.record.attempts.iter().any(|attempt| attempt.epoch > 0);
        if written && !root.is_dir() {
            // Not mounted, perhaps: the checkpoints would stay without anybody who knows of them.
            return Err(Error::io("find the store", root, std::io::ErrorKind::NotFound));
        }
        match JobStore::open(root, &self.record.spec.name)? {
            Some(store) if self.is_ours(&store)? => store.delete_job(),
            Some(store) => {
                tracing::warn!(job = %store.job(), "its checkpoints stay: they are another job's");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether what the store has under the job's name is this job's, and no other node's by now.
    fn is_ours(&self, store: &JobStore) -> Result<bool> {
        if store.record().uid != self.record.owner.uid {
            return Ok(false);
        }
        let newest = self.record.attempts.iter().map(|attempt| attempt.epoch).max().unwrap_or(0);
        let node = &self.shared.settings.node;
        let elsewhere = |epoch: &nodus_checkpoint::format::EpochRecord| {
            newest > 0 && epoch.epoch > newest && epoch.node != *node
        };
        Ok(!store.epochs()?.iter().any(elsewhere))
    }
}

fn removed(path: &Path, result: std::io::Result<()>) -> std::result::Result<(), String> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

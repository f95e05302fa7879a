//! Making the files as the next attempt needs them.

use std::sync::Arc;
use std::time::Duration;

use nodus_checkpoint::control::Control;
use nodus_checkpoint::restore::{self, RestoreOptions, RestoreReport};
use nodus_checkpoint::snapshot::object_of;
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_checkpoint::stored::Stored;
use nodus_checkpoint::{Error, choose};
use nodus_protocol::checkpoint::{FailureReason, Outcome};
use nodus_protocol::job::StopReason;
use nodus_protocol::spec::Continuity;
use tokio::sync::mpsc;

use super::attempts::attempt_dir;
use super::copying::{Copied, CopyJob, credentials, own_dirs, own_store};
use super::lifecycle;
use super::place::{OWN, Place, copies_files};
use super::record::Record;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::engine::Shared;

/// How long to wait before what failed is tried again: at first, and at the most.
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// How often a store without the checkpoints that were there is looked at again: ten minutes, in
/// which a file system is mounted.
const TRIES_WITHOUT_STORE: u32 = 12;

/// The files are as the attempt needs them.
pub(super) struct Prepared {
    pub(super) epoch: Option<Epoch>,
    pub(super) next_seq: u64,
    pub(super) restored_from: Option<u64>,
    pub(super) restore_reason: Option<String>,
    pub(super) warnings: Vec<String>,
}

/// Why an attempt could not be prepared.
pub(super) enum NotPrepared {
    /// It may go away by itself.
    Later(String),
    /// It will not.
    Never(StopReason, String),
}

impl From<Error> for NotPrepared {
    fn from(error: Error) -> Self {
        match error.reason() {
            FailureReason::StoreUnavailable | FailureReason::NoSpace => Self::Later(error.chain()),
            // Whoever cancelled it wants the job to end.
            _ if matches!(error, Error::Cancelled) => Self::Later(error.chain()),
            _ => Self::Never(StopReason::RestoreFailed, error.chain()),
        }
    }
}

/// What preparing came to.
pub(super) struct Preparing {
    /// The checkpoint of what the attempt before had left, where there was something to store.
    left: Option<Copied>,
    result: Result<Prepared, NotPrepared>,
}

impl Preparing {
    fn never(message: String) -> Self {
        let result = Err(NotPrepared::Never(StopReason::RestoreFailed, message));
        Self { left: None, result }
    }
}

/// What preparing needs of the job, apart from its task.
struct Preparation {
    shared: Arc<Shared>,
    place: Place,
    record: Record,
    attempt: u32,
    control: Control,
    /// How often that has failed already.
    tries: u32,
    /// Where what the attempt before had left is stored first.
    left: Option<CopyJob>,
    post: mpsc::Sender<Note>,
}

impl JobTask {
    /// Restores, then starts: reported by notes.
    pub(super) fn prepare(&mut self) {
        let control = Control::new();
        self.preparing = Some(control.clone());
        let preparation = Preparation {
            shared: Arc::clone(&self.shared),
            place: self.place.clone(),
            record: self.record.clone(),
            attempt: self.record.attempt_number() + 1,
            left: self.record.unsaved.map(|left| self.copy_of_left(left, control.clone())),
            control,
            tries: self.tries,
            post: self.post.clone(),
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let prepared = tokio::task::spawn_blocking(move || preparation.run()).await;
            let result = prepared.unwrap_or_else(|panic| Preparing::never(panic.to_string()));
            let _ = post.send(Note::Prepared(Box::new(result))).await;
        });
    }

    /// Somebody wants the job to end: a long restore is not waited for.
    pub(super) fn cancel_preparing(&self) {
        if let Some(control) = &self.preparing {
            control.cancel();
        }
    }

    pub(super) fn preparing_over(&mut self, Preparing { left, result }: Preparing) {
        self.preparing = None;
        if let Some(left) = left {
            self.left_stored(left);
        }
        match result {
            Ok(prepared) if self.life.intent().is_none() => self.prepared(prepared),
            // Somebody wants it to end, so its program is not even started.
            Ok(_) => self.live_on(lifecycle::Event::NotPrepared { retry_after: FIRST_RETRY }),
            Err(failure) => self.not_prepared(failure),
        }
    }

    fn not_prepared(&mut self, failure: NotPrepared) {
        match failure {
            NotPrepared::Later(message) => {
                if self.life.intent().is_none() {
                    self.warn(format!("cannot prepare the next attempt, trying again: {message}"));
                    self.conditions.insert("StoreUnavailable", message);
                }
                let retry_after = retry_after(self.tries);
                self.tries = self.tries.saturating_add(1);
                self.live_on(lifecycle::Event::NotPrepared { retry_after });
            }
            NotPrepared::Never(reason, message) => {
                self.record.message = Some(format!("cannot prepare the next attempt: {message}"));
                self.live_on(lifecycle::Event::CannotPrepare(reason));
            }
        }
    }
}

/// The pause after so many tries: short while a store comes back, and never so long that a person
/// who has made room wonders.
fn retry_after(tries: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << tries.min(8)).min(LONGEST_RETRY)
}

/// What it means that the files an attempt left could not be stored: an older checkpoint restored
/// over them would destroy them, so nothing is restored.
fn not_stored(outcome: &Outcome) -> Option<NotPrepared> {
    let Outcome::Failed { reason, message } = outcome else { return None };
    let what = format!("the files that the last attempt left cannot be stored: {message}");
    Some(match reason {
        FailureReason::StoreUnavailable | FailureReason::NoSpace => NotPrepared::Later(what),
        FailureReason::Fenced => NotPrepared::Never(StopReason::Fenced, what),
        _ => NotPrepared::Never(StopReason::NotSaved, what),
    })
}

impl Preparation {
    fn run(mut self) -> Preparing {
        let left = self.left.take();
        if let Err(failure) = self.make_ready() {
            return Preparing { left: None, result: Err(failure) };
        }
        // Nothing is restored over files where nothing is stored.
        let stored = match self.stored() {
            Ok(stored) => stored,
            Err(failure) => return Preparing { left: None, result: Err(failure) },
        };
        let left = left.filter(|_| stored).map(CopyJob::run_alone);
        if let Some(failure) = left.as_ref().and_then(|left| not_stored(left.outcome())) {
            return Preparing { left, result: Err(failure) };
        }
        Preparing { left, result: self.files() }
    }

    fn make_ready(&self) -> Result<(), NotPrepared> {
        let never = |message| NotPrepared::Never(StopReason::RestoreFailed, message);
        super::make_place(&self.place, &self.record.owner)
            .map_err(|refusal| never(refusal.to_string()))?;
        // Where it stays, starting says why.
        let _ = std::fs::remove_dir_all(attempt_dir(&self.place, self.attempt));
        Ok(())
    }

    /// Whether the store has checkpoints of the job.
    fn stored(&self) -> Result<bool, NotPrepared> {
        if !copies_files(&self.record.spec) {
            return Ok(false);
        }
        let Record { spec, owner, latest, .. } = &self.record;
        let settings = &self.shared.settings;
        let store = own_store(&settings.store, &spec.name, owner.uid)?;
        let empty =
            store.map_or(Ok(true), |store| store.list().map(|listing| listing.is_empty()))?;
        match latest {
            // A file system that is not mounted, for example: starting anew would lose everything.
            Some(latest) if empty => Err(self.gone(latest.seq)),
            _ => Ok(!empty),
        }
    }

    fn gone(&self, latest: u64) -> NotPrepared {
        let store = self.shared.settings.store.display();
        let what = format!(
            "{store} has no checkpoints of the job any more, and {latest} was one; once it is \
             certain that they are lost, `nodusctl resume` goes on with the files that are there"
        );
        match self.tries < TRIES_WITHOUT_STORE {
            true => NotPrepared::Later(what),
            false => NotPrepared::Never(StopReason::RestoreFailed, what),
        }
    }

    fn files(&self) -> Result<Prepared, NotPrepared> {
        match self.record.spec.recovery.continuity {
            Continuity::Checkpointed if copies_files(&self.record.spec) => self.restore(),
            Continuity::Ephemeral => {
                let never =
                    |error: Error| NotPrepared::Never(StopReason::RestoreFailed, error.chain());
                self.empty_own_paths().map_err(never)?;
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

    /// Says what is about to be restored: a large one takes its time.
    fn announce(&self, listing: &[Stored]) {
        let chosen = choose::newest(listing)
            .and_then(|choice| listing.iter().find(|stored| stored.seq() == choice.seq));
        if let Some(Stored::Good { record, .. }) = chosen {
            // Where the task is gone, nobody is left to be told.
            let (seq, bytes) = (record.seq, record.bytes);
            let _ = self.post.blocking_send(Note::Restoring { seq, bytes });
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
        let listing = store.list()?;
        self.announce(&listing);
        let report = match listing.is_empty() {
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
        let mut options = RestoreOptions::for_job(user, self.shared.settings.threads);
        let own = own_dirs(&self.shared, &self.place);
        options.standing = own.iter().filter_map(|dir| object_of(dir)).collect();
        let roots = self.place.roots(&self.record.spec);
        restore::restore_newest(store, Some(epoch), &roots, &options, &self.control)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_short() {
        let pauses: Vec<u64> = (0..5).map(|tries| retry_after(tries).as_secs()).collect();
        assert_eq!(pauses, [10, 20, 40, 60, 60]);
        assert_eq!(retry_after(u32::MAX), LONGEST_RETRY);
    }

    #[test]
    fn nothing_is_restored_over_files_that_are_not_stored() {
        let failed = |reason| Outcome::Failed { reason, message: "x".to_owned() };
        let later = |reason| matches!(not_stored(&failed(reason)), Some(NotPrepared::Later(_)));
        assert!(later(FailureReason::NoSpace) && later(FailureReason::StoreUnavailable));
        for (reason, expected) in [
            (FailureReason::Fenced, StopReason::Fenced),
            (FailureReason::PermissionDenied, StopReason::NotSaved),
            (FailureReason::CheckpointTooLarge, StopReason::NotSaved),
        ] {
            let never = not_stored(&failed(reason));
            assert!(matches!(never, Some(NotPrepared::Never(stop, _)) if stop == expected));
        }
        let skipped = nodus_protocol::checkpoint::Skipped::Empty;
        assert!(not_stored(&Outcome::Skipped { reason: skipped }).is_none());
    }
}

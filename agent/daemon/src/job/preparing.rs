//! Making the files as the next attempt needs them.

use std::sync::Arc;
use std::time::Duration;

use nodus_checkpoint::Error;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::restore::{self, RestoreOptions, RestoreReport};
use nodus_checkpoint::snapshot::object_of;
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_protocol::checkpoint::FailureReason;
use nodus_protocol::job::StopReason;
use nodus_protocol::spec::Continuity;

use super::attempts::attempt_dir;
use super::copying::{credentials, own_dirs};
use super::lifecycle;
use super::place::{OWN, Place, copies_files};
use super::record::Record;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::engine::Shared;

/// How long to wait before a store that did not answer is asked again.
const STORE_RETRY: Duration = Duration::from_secs(10);

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
        let mut options = RestoreOptions::for_job(user, self.shared.settings.threads);
        let own = own_dirs(&self.shared, &self.place);
        options.standing = own.iter().filter_map(|dir| object_of(dir)).collect();
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

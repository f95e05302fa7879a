//! What users ask about the checkpoints of their jobs: answered from the store, on a thread of its
//! own, while the job goes on.

use std::io::Write;
use std::path::{Path, PathBuf};

use nodus_checkpoint::control::Control;
use nodus_checkpoint::identity::Credentials;
use nodus_checkpoint::restore::{self, RestoreOptions};
use nodus_checkpoint::store::JobStore;
use nodus_checkpoint::stored::Stored;
use nodus_checkpoint::{choose, export, verify};
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::{ProblemCode, RestoreDone, RestoreTo, VerifyDone};

use super::{Caller, Engine, Refusal};
use crate::job::{Ask, JobHandle, own_store};

impl Engine {
    /// The job's checkpoints, oldest first; those that were skipped or failed are among them.
    ///
    /// # Errors
    /// Where there is no such job, or the store does not answer.
    pub async fn checkpoints(
        &self,
        caller: &Caller,
        name: &JobName,
    ) -> Result<Vec<CheckpointInfo>, Refusal> {
        let job = self.job(caller, name)?;
        let store = self.shared().settings.store.clone();
        let named = name.clone();
        let uid = job.uid;
        let listed = blocking(move || Ok(list(&store, &named, uid)?)).await?;
        let mut all: Vec<CheckpointInfo> = listed.iter().map(Stored::info).collect();
        let known: std::collections::BTreeSet<u64> = all.iter().map(|info| info.seq).collect();
        all.extend(job.unstored().into_iter().filter(|info| !known.contains(&info.seq)));
        all.sort_by_key(|info| info.seq);
        Ok(all)
    }

    /// One checkpoint.
    ///
    /// # Errors
    /// Where there is no such job or checkpoint.
    pub async fn checkpoint_info(
        &self,
        caller: &Caller,
        name: &JobName,
        seq: u64,
    ) -> Result<CheckpointInfo, Refusal> {
        let all = self.checkpoints(caller, name).await?;
        let found = all.into_iter().find(|info| info.seq == seq);
        found.ok_or_else(|| Refusal::no_checkpoint(name, seq))
    }

    /// Deletes a checkpoint; others that need its data keep it.
    ///
    /// # Errors
    /// Where there is no such job or checkpoint.
    pub async fn delete_checkpoint(
        &self,
        caller: &Caller,
        name: &JobName,
        seq: u64,
    ) -> Result<(), Refusal> {
        self.job(caller, name)?.ask(|reply| Ask::DeleteCheckpoint { seq, reply }).await
    }

    /// Reads a whole checkpoint and compares it with its hashes; what is found is marked, so that
    /// nothing starts from it.
    ///
    /// # Errors
    /// Where there is no such job or checkpoint, or the store does not answer.
    pub async fn verify(
        &self,
        caller: &Caller,
        name: &JobName,
        seq: u64,
        control: Control,
    ) -> Result<VerifyDone, Refusal> {
        let job = self.job(caller, name)?;
        let (store, named) = (self.shared().settings.store.clone(), name.clone());
        let epoch = job.ask(Ask::Epoch).await?;
        let (threads, uid) = (self.shared().settings.threads, job.uid);
        let report = blocking(move || {
            let store = open(&store, &named, uid)?;
            known(&store, seq)?;
            Ok(verify::verify(&store, seq, epoch.as_ref(), threads, &control)?)
        })
        .await?;
        let problems = report.problems.iter().map(ToString::to_string).collect();
        Ok(VerifyDone { seq, bytes: report.bytes, problems })
    }

    /// Writes a checkpoint as one `.tar.zst`; `out` is written to on a thread of its own.
    ///
    /// # Errors
    /// Where there is no such job or checkpoint, or the data is damaged.
    pub async fn export(
        &self,
        caller: &Caller,
        name: &JobName,
        seq: u64,
        out: impl Write + Send + 'static,
        control: Control,
    ) -> Result<(), Refusal> {
        self.checkpoint_info(caller, name, seq).await?;
        let uid = self.job(caller, name)?.uid;
        let (store, named) = (self.shared().settings.store.clone(), name.clone());
        blocking(move || {
            export::export(&open(&store, &named, uid)?, seq, out, &control)?;
            Ok(())
        })
        .await
    }

    /// Puts a checkpoint's files somewhere else than the job, as the caller.
    ///
    /// # Errors
    /// Where there is no such job or checkpoint, the directory is not absolute, or the caller may
    /// not write there.
    pub async fn restore(
        &self,
        caller: &Caller,
        name: &JobName,
        wanted: RestoreTo,
        control: Control,
    ) -> Result<RestoreDone, Refusal> {
        let job = self.job(caller, name)?;
        let to = PathBuf::from(&wanted.to);
        if !to.is_absolute() {
            let detail = format!("to: {:?} is not allowed: an absolute directory is", wanted.to);
            return Err(Refusal::new(ProblemCode::Invalid, detail));
        }
        let (store, named) = (self.shared().settings.store.clone(), name.clone());
        let threads = self.shared().settings.threads;
        let options = RestoreOptions::for_job(credentials(caller), threads);
        blocking(move || {
            let store = open(&store, &named, job.uid)?;
            restore_to(&store, &job, &wanted, &to, &options, &control)
        })
        .await
    }
}

fn restore_to(
    store: &JobStore,
    job: &JobHandle,
    wanted: &RestoreTo,
    to: &Path,
    options: &RestoreOptions,
    control: &Control,
) -> Result<RestoreDone, Refusal> {
    let listing = store.list()?;
    let name = job.detail().info.name;
    let choice = choose::wanted(name.as_str(), &listing, wanted.seq)?;
    let chosen = listing.iter().find(|stored| stored.seq() == choice.seq);
    let Some(Stored::Good { record, .. }) = chosen else {
        return Err(Refusal::no_checkpoint(&name, choice.seq));
    };
    let roots = restore::roots_under(record, to)?;
    let report = restore::restore(store, choice.seq, &roots, options, control)?;
    let reason = choose::explanation(&choice.reason, &choice.passed_over);
    Ok(RestoreDone {
        seq: choice.seq,
        reason: (!choice.passed_over.is_empty()).then_some(reason),
        to: to.to_string_lossy().into_owned(),
        files: report.files,
        bytes: report.bytes,
        notes: report.warnings.iter().map(ToString::to_string).collect(),
    })
}

/// The identity under which a caller's files are touched; ourselves, where we are not root.
fn credentials(caller: &Caller) -> Option<Credentials> {
    let switch = rustix::process::geteuid().is_root() && caller.owner.uid != 0;
    switch.then(|| caller.owner.credentials())
}

fn open(store: &Path, name: &JobName, uid: u32) -> Result<JobStore, Refusal> {
    own_store(store, name, uid)?.ok_or_else(|| {
        Refusal::new(ProblemCode::NotFound, format!("job {name} has no checkpoints yet"))
    })
}

fn list(store: &Path, name: &JobName, uid: u32) -> nodus_checkpoint::Result<Vec<Stored>> {
    own_store(store, name, uid)?.map_or_else(|| Ok(Vec::new()), |store| store.list())
}

fn known(store: &JobStore, seq: u64) -> Result<(), Refusal> {
    match store.get(seq)? {
        Some(_) => Ok(()),
        None => Err(Refusal::no_checkpoint(store.job(), seq)),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(Refusal::new(ProblemCode::Internal, panic.to_string())))
}

//! Commands on a store itself, with no agent: `--store DIR`.

mod checks;
mod export;
mod restore;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;
use nodus_agent::engine::ALONE_RECORDS;
use nodus_agent::standalone::claim;
use nodus_checkpoint::store::{JobStore, Stored};
use nodus_checkpoint::{choose, retention};
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::CheckpointInfo;

pub(super) use restore::refuse_occupied;

use super::checkpoint::deleted_checkpoint;
use crate::args::{CheckpointCommand, Command, Delete, DeleteCheckpoint, ListCheckpoints, Show};
use crate::console::{Console, Surroundings};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::render;

/// Does what a store is named for; `None` for what is the agent's to do.
pub(super) fn without_agent(
    command: &Command,
    console: &Console,
    around: &Surroundings,
) -> Option<Result<Exit>> {
    let exit = match command {
        Command::Delete(delete) => {
            delete_job(&delete.job.0, delete.store.as_deref()?, delete, console)
        }
        Command::Checkpoint(CheckpointCommand::List(list)) => {
            checkpoint_list(list, list.direct.store.as_deref()?, console)
        }
        Command::Checkpoint(CheckpointCommand::Show(show)) => {
            checkpoint_show(show, show.direct.store.as_deref()?, console)
        }
        Command::Checkpoint(CheckpointCommand::Verify(verify)) => {
            checks::verify(verify, verify.direct.store.as_deref()?, console)
        }
        Command::Checkpoint(CheckpointCommand::Export(export)) => {
            export::export(export, export.direct.store.as_deref()?, console)
        }
        Command::Checkpoint(CheckpointCommand::Delete(delete)) => {
            delete_checkpoint(delete, delete.direct.store.as_deref()?, console)
        }
        Command::Restore(args) => {
            restore::restore(args, args.direct.store.as_deref()?, console, around)
        }
        _ => return None,
    };
    Some(exit)
}

fn checkpoint_list(args: &ListCheckpoints, store: &Path, console: &Console) -> Result<Exit> {
    let listing = open(store, &args.job.0)?.list()?;
    let list: Vec<CheckpointInfo> = listing.iter().map(Stored::info).collect();
    let text = || render::checkpoint_list(&list, Timestamp::now(), console.style);
    console.result(&list, text)?;
    Ok(Exit::DONE)
}

fn checkpoint_show(args: &Show, store: &Path, console: &Console) -> Result<Exit> {
    let store = open(store, &args.job.0)?;
    let seq = seq_or_newest(&store, args.seq)?;
    let stored = store.get(seq)?.ok_or_else(|| absent(&store, Some(seq)))?;
    let info = stored.info();
    let text = || render::checkpoint(&info, Timestamp::now(), console.style);
    console.result(&info, text)?;
    Ok(Exit::DONE)
}

/// Under the epoch that is current. The lock keeps a checkpoint that is just being written from
/// building on the one that goes.
fn delete_checkpoint(args: &DeleteCheckpoint, store: &Path, console: &Console) -> Result<Exit> {
    let (job, seq) = (&args.job.0, args.seq);
    let store = open(store, job)?;
    let _lock = store.lock()?.ok_or_else(|| busy(job))?;
    let current = store.epochs()?.last().map(|record| record.epoch);
    let epoch = store.resume_epoch(current.ok_or_else(|| absent(&store, Some(seq)))?)?;
    retention::delete(&store, &epoch, seq)?;
    deleted_checkpoint(job, seq, console)
}

/// The directories of a standalone job. What is to be found again by this command goes last, so
/// that it can be repeated after a failure.
fn delete_job(job: &JobName, store: &Path, args: &Delete, console: &Console) -> Result<Exit> {
    let home = args.state_root.as_ref().map(|root| root.join(job.as_str()));
    let records = home.as_ref().map(|home| home.join(ALONE_RECORDS));
    let _alone = match records.filter(|records| records.is_dir()) {
        Some(records) => Some(claim(&records, job)?),
        None => None,
    };
    let stored = JobStore::open(store, job)?;
    let _writer = match &stored {
        Some(stored) => Some(stored.lock()?.ok_or_else(|| busy(job))?),
        None => None,
    };
    let had_files = home.as_deref().map(remove).transpose()?.unwrap_or(false);
    if stored.is_none() && !had_files {
        return Err(nothing(store, job));
    }
    if let Some(stored) = stored {
        stored.delete_job()?;
    }
    let value = serde_json::json!({ "deleted": job });
    console.result(&value, || format!("job/{job} and its checkpoints are deleted"))?;
    Ok(Exit::DONE)
}

/// Says whether there was anything.
fn remove(dir: &Path) -> Result<bool> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::io("remove", dir.display(), source)),
    }
}

/// The part of the store that is the job's.
fn open(store: &Path, job: &JobName) -> Result<JobStore> {
    JobStore::open(store, job)?.ok_or_else(|| nothing(store, job))
}

/// The number asked for, or the one that a restore would choose.
fn seq_or_newest(store: &JobStore, seq: Option<u64>) -> Result<u64> {
    match seq {
        Some(seq) => Ok(seq),
        None => {
            let listing = store.list()?;
            let choice = choose::newest(&listing);
            let choice = choice.ok_or_else(|| choose::none(store.job().as_str(), &listing))?;
            Ok(choice.seq)
        }
    }
}

fn nothing(store: &Path, job: &JobName) -> Error {
    Error::NotFound(format!("the store {} has nothing of job/{job}", store.display()))
}

fn absent(store: &JobStore, seq: Option<u64>) -> Error {
    nodus_checkpoint::Error::NotFound { job: store.job().to_string(), seq }.into()
}

fn busy(job: &JobName) -> Error {
    let why = format!("a checkpoint of job/{job} is just being written: try again when it is over");
    nodus_checkpoint::Error::Refused(why).into()
}

//! `restore --store`: a checkpoint's files into a directory that is nobody's yet.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::Path;

use nodus_checkpoint::choose;
use nodus_checkpoint::restore::{self, RestoreOptions, RestoreReport};
use nodus_checkpoint::root::Root;
use nodus_checkpoint::store::{JobStore, Stored};
use nodus_protocol::control::RestoreDone;

use super::{absent, open};
use crate::args::Restore;
use crate::commands::work::watched;
use crate::console::{Console, Surroundings};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::render;

pub(super) fn restore(
    args: &Restore,
    store: &Path,
    console: &Console,
    around: &Surroundings,
) -> Result<Exit> {
    let to = around.here.join(&args.to);
    refuse_occupied(&to)?;
    let store = open(store, &args.job.0)?;
    let (roots, seq) = (roots_of(&store, args.seq, &to)?, args.seq);
    let report = watched(console, &format!("restoring job/{}", store.job()), move |control| {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let options = RestoreOptions::for_job(None, threads);
        Ok(match seq {
            Some(seq) => restore::restore(&store, seq, &roots, &options, control)?,
            None => restore::restore_newest(&store, None, &roots, &options, control)?,
        })
    })?;
    let done = done(&report, &to);
    console.result(&done, || render::restored(&done))?;
    Ok(Exit::DONE)
}

/// A restore makes its target exactly what the checkpoint has, so what is already there would go.
pub(in crate::commands) fn refuse_occupied(to: &Path) -> Result<()> {
    let occupied = match std::fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) if error.kind() == ErrorKind::NotADirectory => true,
        Err(source) => return Err(Error::io("look into", to.display(), source)),
    };
    if occupied {
        let why = format!("--to {}: a new or empty directory is allowed", to.display());
        return Err(nodus_checkpoint::Error::Refused(why).into());
    }
    Ok(())
}

/// The paths of the chosen checkpoint, and where they go.
fn roots_of(store: &JobStore, seq: Option<u64>, to: &Path) -> Result<Vec<Root>> {
    let listing = store.list()?;
    let choice = choose::wanted(store.job().as_str(), &listing, seq)?;
    match listing.iter().find(|stored| stored.seq() == choice.seq) {
        Some(Stored::Good { record, .. }) => Ok(restore::roots_under(record, to)?),
        _ => Err(absent(store, Some(choice.seq))),
    }
}

fn done(report: &RestoreReport, to: &Path) -> RestoreDone {
    RestoreDone {
        seq: report.seq,
        reason: (!report.passed_over.is_empty()).then(|| report.explanation()),
        to: to.to_string_lossy().into_owned(),
        files: report.files,
        bytes: report.bytes,
        notes: report.warnings.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_files_is_not_restored_into() {
        let dir = tempfile::tempdir().unwrap();
        refuse_occupied(&dir.path().join("new")).unwrap();
        refuse_occupied(dir.path()).unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "all of it").unwrap();
        let error = refuse_occupied(dir.path()).unwrap_err();
        assert_eq!(error.exit(), Exit::REFUSED);
        refuse_occupied(&dir.path().join("thesis.tex")).unwrap_err();
    }
}

//! `restore --store`: a checkpoint's files into a directory that is nobody's yet.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use nodus_checkpoint::choose;
use nodus_checkpoint::format::text::{os_string, unescape};
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
    let paths = paths_of(&store, args.seq)?;
    let (target, seq) = (to.clone(), args.seq);
    let report = watched(console, &format!("restoring job/{}", store.job()), move |control| {
        let roots = below(&target, &paths);
        let options = RestoreOptions {
            credentials: None,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            only: None,
            strict: false,
            keep_privileges: false,
        };
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

/// The paths that the chosen checkpoint has, as the job names them.
fn paths_of(store: &JobStore, seq: Option<u64>) -> Result<Vec<PathBuf>> {
    let listing = store.list()?;
    let choice = match seq {
        Some(seq) => choose::requested(store.job().as_str(), &listing, seq)?,
        None => choose::newest(&listing).ok_or_else(|| absent(store, None))?,
    };
    let chosen = listing.into_iter().find(|stored| stored.seq() == choice.seq);
    let Some(Stored::Good { record, .. }) = chosen else { return Err(absent(store, seq)) };
    let path = |text: &String| unescape(text).map(|bytes| PathBuf::from(os_string(&bytes)));
    let paths: Option<Vec<PathBuf>> = record.roots.iter().map(path).collect();
    paths.ok_or_else(|| {
        let what = "a path in its record is not readable".to_owned();
        Error::from(nodus_checkpoint::Error::Damaged { seq: choice.seq, what })
    })
}

/// One path becomes the directory itself; several keep their names below it.
fn below(to: &Path, paths: &[PathBuf]) -> Vec<Root> {
    let dir = |path: &PathBuf| match paths {
        [_] => to.to_owned(),
        _ => to.join(path.strip_prefix("/").unwrap_or(path)),
    };
    paths.iter().map(|path| Root { path: path.clone(), dir: dir(path) }).collect()
}

fn done(report: &RestoreReport, to: &Path) -> RestoreDone {
    let reason = (!report.passed_over.is_empty()).then(|| {
        let over = report.passed_over.iter().map(|over| format!("{} is {}", over.seq, over.why));
        format!("{}; {}", report.reason, over.collect::<Vec<_>>().join("; "))
    });
    RestoreDone {
        seq: report.seq,
        reason,
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
    fn one_path_is_the_directory_and_several_are_below_it() {
        let dirs = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            below(Path::new("/to"), &paths).into_iter().map(|root| root.dir).collect::<Vec<_>>()
        };
        assert_eq!(dirs(&["/nodus/state"]), [Path::new("/to")]);
        let expected = [Path::new("/to/nodus/state"), Path::new("/to/data")];
        assert_eq!(dirs(&["/nodus/state", "/data"]), expected);
    }

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

//! Where a checkpoint's paths go when somebody wants them somewhere else than the job.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::CommitRecord;
use crate::format::text::{os_string, unescape};
use crate::root::Root;

/// One path becomes the directory itself; several keep their names below it.
///
/// # Errors
/// [`Error::Damaged`] where a path in the record is not text that this format writes.
pub fn roots_under(record: &CommitRecord, to: &Path) -> Result<Vec<Root>> {
    let path = |text: &String| unescape(text).map(|bytes| PathBuf::from(os_string(&bytes)));
    let paths: Option<Vec<PathBuf>> = record.roots.iter().map(path).collect();
    let paths = paths.ok_or_else(|| Error::Damaged {
        seq: record.seq,
        what: "a path in its record is not readable".to_owned(),
    })?;
    Ok(below(to, &paths))
}

fn below(to: &Path, paths: &[PathBuf]) -> Vec<Root> {
    let dir = |path: &PathBuf| match paths {
        [_] => to.to_owned(),
        _ => to.join(path.strip_prefix("/").unwrap_or(path)),
    };
    paths.iter().map(|path| Root { path: path.clone(), dir: dir(path) }).collect()
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
}

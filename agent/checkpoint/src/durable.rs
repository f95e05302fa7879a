//! The only way anything becomes visible in a store: whole, and on the disk before it is named.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use rustix::fs::{RenameFlags, renameat_with};
use tempfile::NamedTempFile;

use crate::error::{Context as _, Error, Result};

/// How the name of something begins that is being removed.
pub(crate) const GRAVE: &str = ".gone-";

/// Makes a file of this content appear at `path`, in place of what may be there.
///
/// # Errors
/// Where it cannot be written; then what was there stays.
pub fn publish(path: &Path, content: &[u8]) -> Result<()> {
    let staged = stage(path, content)?;
    staged.persist(path).map_err(|error| failed("replace", path, error.error))?;
    sync_dir(parent(path))
}

/// Makes a file of this content appear at `path` unless something is there; says whether it did.
pub(crate) fn publish_new(path: &Path, content: &[u8]) -> Result<bool> {
    match stage(path, content)?.persist_noclobber(path) {
        Ok(_) => sync_dir(parent(path)).map(|()| true),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("create", path, error.error)),
    }
}

/// Gives a directory, all of whose content is synced, its final name, which must be free.
pub(crate) fn publish_dir(staged: &Path, path: &Path) -> Result<()> {
    sync_dir(staged)?;
    let here = rustix::fs::CWD;
    renameat_with(here, staged, here, path, RenameFlags::NOREPLACE)
        .map_err(|error| failed("rename into place", path, error.into()))?;
    sync_dir(parent(path))
}

/// Makes `path` disappear at once, then removes what it held.
///
/// A crash in between leaves a name that begins with a dot, which the next sweep removes.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    let dir = parent(path);
    let grave = tempfile::Builder::new()
        .prefix(GRAVE)
        .tempdir_in(dir)
        .map_err(|error| failed("create a directory in", dir, error))?;
    std::fs::rename(path, grave.path()).context("remove", path)?;
    sync_dir(dir)?;
    let buried = grave.keep();
    std::fs::remove_dir_all(&buried).context("remove", &buried)
}

/// Makes the directory and its missing parents, durably and closed to others.
///
/// # Errors
/// Where one cannot be made.
pub fn make_dirs(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_dirs(above)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("create the directory", path, error)),
        Ok(()) => sync_dir(parent(path)),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    let dir = File::open(path).context("open", path)?;
    dir.sync_all().map_err(|error| failed("sync", path, error))
}

/// Wraps an error of writing to a store; a full file system is told apart, with its free space.
pub(crate) fn failed(action: &'static str, path: &Path, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    if !matches!(error.kind(), StorageFull | QuotaExceeded) {
        return Error::io(action, path, error);
    }
    let dir = path.ancestors().find(|dir| dir.is_dir()).unwrap_or(path);
    Error::NoSpace { path: dir.to_owned(), needed: 0, free: free_space(dir).unwrap_or(0) }
}

/// Bytes that this user may still write to the file system of `path`.
pub(crate) fn free_space(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn stage(path: &Path, content: &[u8]) -> Result<NamedTempFile> {
    let dir = parent(path);
    let staged = tempfile::Builder::new().prefix(".new-").tempfile_in(dir);
    let mut staged = staged.map_err(|error| failed("create a file in", dir, error))?;
    staged.write_all(content).map_err(|error| failed("write", path, error))?;
    staged.as_file().sync_all().map_err(|error| failed("sync", path, error))?;
    Ok(staged)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_that_create_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("3");
        assert!(publish_new(&path, b"one").unwrap());
        assert!(!publish_new(&path, b"two").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        publish(&path, b"three").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn a_directory_never_replaces_another() {
        let dir = tempfile::tempdir().unwrap();
        let (staged, taken) = (dir.path().join(".staged"), dir.path().join("7"));
        make_dirs(&staged).unwrap();
        make_dirs(&taken).unwrap();
        publish_dir(&staged, &taken).unwrap_err();
        remove_dir(&taken).unwrap();
        publish_dir(&staged, &taken).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

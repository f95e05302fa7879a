//! Emptying a directory of a job.

use std::path::Path;

use super::beneath::Beneath;
use super::remove::remove_tree;
use crate::error::{Context as _, Result};
use crate::identity::{self, Credentials};

/// Removes everything in a directory, as this user; the directory itself stays. One that does not
/// exist is empty. No link is followed, and other file systems mounted below are left.
///
/// # Errors
/// Where something in it cannot be removed.
pub fn empty(dir: &Path, credentials: Option<&Credentials>) -> Result<()> {
    let _as_user = identity::enter(credentials)?;
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context("list", dir)?,
    };
    let base = Beneath::open(dir)?;
    for entry in entries {
        let name = entry.context("list", dir)?.file_name();
        let name = name.as_encoded_bytes();
        remove_tree(&base, name).context("remove", base.show(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        std::fs::create_dir_all(own.join("a/b")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&other, own.join("a/link")).unwrap();
        empty(&own, None).unwrap();
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
        assert!(other.join("kept").exists());
        empty(&dir.path().join("none"), None).unwrap();
    }
}

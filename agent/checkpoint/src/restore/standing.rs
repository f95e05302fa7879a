//! What stands in a target without being the checkpoint's to replace: the store, the agent's own
//! directories, and other file systems mounted there. No capture takes these, so no restore may
//! take them away with the tree around them.

use std::collections::HashSet;
use std::io;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::beneath::{join, split};
use super::tree::Tree;
use crate::error::{Context as _, Error, Result};
use crate::format::{Entry, Kind};

/// The paths in one target that stay as they are, with all that is in them.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The store and directories of the agent.
    own: HashSet<Vec<u8>>,
    /// Mount points.
    mounts: HashSet<Vec<u8>>,
    /// The directories above those, the root among them.
    way: HashSet<Vec<u8>>,
}

impl Standing {
    /// Looks through the directories of a target, for those that are `own` or mount points.
    pub(super) fn find(tree: &Tree, own: &HashSet<(u64, u64)>) -> Result<Self> {
        let mut found = Self::default();
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            found.look(tree, &path, own, &mut open).context("list", tree.show(&path))?;
        }
        Ok(found)
    }

    fn look(
        &mut self,
        tree: &Tree,
        path: &[u8],
        own: &HashSet<(u64, u64)>,
        open: &mut Vec<Vec<u8>>,
    ) -> io::Result<()> {
        let listed = match tree.list(path) {
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                self.add_way(path);
                self.mounts.insert(path.to_vec());
                return Ok(());
            }
            // Nothing there; a file; or not this user's to look into, nor to take away.
            Err(error) if is_no_directory(&error) => return Ok(()),
            listed => listed?,
        };
        let mut dir = Dir::read_from(&listed)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if !may_be_dir || matches!(name, b"." | b"..") {
                continue;
            }
            let below = join(path, name);
            match rustix::fs::statat(&listed, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if own.contains(&(stat.st_dev, stat.st_ino)) => {
                    self.add_way(&below);
                    self.own.insert(below);
                }
                Ok(_) => open.push(below),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn add_way(&mut self, path: &[u8]) {
        let mut path = path;
        while !path.is_empty() {
            path = split(path).0;
            self.way.insert(path.to_vec());
        }
    }

    /// Whether there is nothing of the kind.
    pub(super) fn is_none(&self) -> bool {
        self.way.is_empty()
    }

    /// Whether the directory stays as it is.
    pub(super) fn keeps(&self, path: &[u8]) -> bool {
        self.own.contains(path) || self.mounts.contains(path)
    }

    /// Whether the directory is above one that stays, so that it stays itself and is filled anew.
    pub(super) fn leads(&self, path: &[u8]) -> bool {
        self.way.contains(path)
    }

    /// How many entries of the directory no checkpoint knows.
    pub(super) fn own_in(&self, dir: &[u8]) -> u64 {
        if !self.leads(dir) {
            return 0;
        }
        self.own.iter().filter(|path| split(path).0 == dir).count() as u64
    }

    /// Refuses an entry that would need the place of what stays.
    pub(super) fn check(&self, entry: &Entry, tree: &Tree) -> Result<()> {
        if self.is_none() {
            return Ok(());
        }
        let path = &entry.path;
        let is_dir = matches!(entry.kind, Kind::Dir);
        let mut in_the_way =
            self.own.contains(path) || (!is_dir && (self.keeps(path) || self.leads(path)));
        let mut above = split(path).0;
        while !above.is_empty() && !in_the_way {
            in_the_way = self.keeps(above);
            above = split(above).0;
        }
        if !in_the_way {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "cannot restore {}: the store, the agent's own files or another file system are there",
            tree.show(&entry.path).display()
        )))
    }
}

fn is_no_directory(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    // A link at the root's own name is not followed: it is replaced, and what it leads to stays.
    let is_link = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    is_link || matches!(error.kind(), NotADirectory | NotFound | PermissionDenied)
}

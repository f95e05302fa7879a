//! A tree of entries in some directory: the target as it is, or the new one beside it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::beneath::{Beneath, Spot, join, split};
use crate::format::text::os_string;

/// A root's entries, named by their paths in the manifest.
#[derive(Clone)]
pub(super) struct Tree {
    base: Arc<Beneath>,
    /// The root's own name in `base`; empty where `base` is the root.
    name: Vec<u8>,
    /// Where the root is once everything is done, for messages.
    shown: PathBuf,
}

impl Tree {
    /// The tree whose root is `name` in `base`.
    pub(super) fn new(base: &Arc<Beneath>, name: &[u8], shown: &Path) -> Self {
        Self { base: Arc::clone(base), name: name.to_vec(), shown: shown.to_owned() }
    }

    /// The directory that it is in, or is.
    pub(super) fn base(&self) -> &Beneath {
        &self.base
    }

    /// The path below [`Tree::base`].
    pub(super) fn below_base(&self, path: &[u8]) -> Vec<u8> {
        join(&self.name, path)
    }

    /// The directory that holds the entry, and its name there.
    pub(super) fn spot(&self, path: &[u8]) -> io::Result<Spot> {
        self.base.spot(&self.below_base(path))
    }

    /// A directory of the tree, opened for taking names in it.
    pub(super) fn handle(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.base.handle(&self.below_base(path))
    }

    /// A directory of the tree, opened for listing it, on the root's own mount only.
    pub(super) fn list(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let root = self.base.handle(&self.name)?;
        Beneath::from_fd(root, &self.shown).list(path)
    }

    /// Where the entry is once everything is done, for messages.
    pub(super) fn show(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.shown.clone() } else { self.shown.join(os_string(path)) }
    }
}

/// Takes spots in a tree, and keeps the last directory open: neighbours share it.
pub(super) struct Cursor<'a> {
    tree: &'a Tree,
    last: Option<(Vec<u8>, Spot)>,
}

impl<'a> Cursor<'a> {
    /// Opens nothing yet.
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self { tree, last: None }
    }

    /// The tree.
    pub(super) fn tree(&self) -> &'a Tree {
        self.tree
    }

    /// The entry's place. The reference is good until the next call.
    pub(super) fn spot(&mut self, path: &[u8]) -> io::Result<&Spot> {
        let whole = self.tree.below_base(path);
        let (parent, name) = split(&whole);
        let spot = match self.last.take() {
            Some((at, mut spot)) if at == parent => {
                name.clone_into(&mut spot.name);
                spot
            }
            _ => self.tree.base.spot(&whole)?,
        };
        Ok(&self.last.insert((parent.to_vec(), spot)).1)
    }
}

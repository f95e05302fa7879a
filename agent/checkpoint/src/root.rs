//! Where the paths of a job are on this node.

use std::path::{Path, PathBuf};

/// A path of the job, and the directory or file on this node that stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The path as the job names it; checkpoints record this one.
    pub path: PathBuf,
    /// Where its files are on this node.
    pub dir: PathBuf,
}

impl Root {
    /// A path that is used as it is.
    #[must_use]
    pub fn plain(path: &Path) -> Self {
        Self { path: path.to_owned(), dir: path.to_owned() }
    }
}

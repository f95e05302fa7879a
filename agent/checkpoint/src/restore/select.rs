//! Which part of a root a restore of one path is about; pure.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::beneath::split;
use crate::format::{Entry, Kind};

/// The part of a root that is restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of it.
    All,
    /// What is at or below this path, and the directories above it.
    Below(Vec<u8>),
    /// The root is left as it is.
    Nothing,
}

impl Selection {
    /// The part of `root` that is at or below `only`.
    pub(super) fn of(root: &Path, only: Option<&Path>) -> Self {
        let Some(only) = only else { return Self::All };
        if root.starts_with(only) {
            return Self::All;
        }
        match only.strip_prefix(root) {
            Ok(below) => Self::Below(below.as_os_str().as_bytes().to_vec()),
            Err(_) => Self::Nothing,
        }
    }

    /// Whether the entry is restored.
    pub(super) fn takes(&self, entry: &Entry) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Below(wanted) => {
                is_at_or_below(&entry.path, wanted)
                    || (matches!(entry.kind, Kind::Dir) && is_at_or_below(wanted, &entry.path))
            }
        }
    }

    /// Whether the entry is what was asked for, not only on the way to it.
    pub(super) fn wants(&self, path: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Below(wanted) => is_at_or_below(path, wanted),
        }
    }
}

fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path == above || (path.starts_with(above) && path[above.len()] == b'/')
}

/// The directories that end before `next`, of those that `open` holds: the innermost first.
pub(super) fn closed_by(open: &mut Vec<Entry>, next: Option<&Entry>) -> Vec<Entry> {
    let mut closed = Vec::new();
    let stays = |dir: &Entry| {
        next.is_some_and(|next| {
            let (parent, _) = split(&next.path);
            dir.root == next.root && !next.path.is_empty() && is_at_or_below(parent, &dir.path)
        })
    };
    while open.last().is_some_and(|dir| !stays(dir)) {
        closed.extend(open.pop());
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FileData, Time, Xattrs};

    fn entry(path: &str, kind: Kind) -> Entry {
        let path = path.as_bytes().to_vec();
        let mtime = Time(0, 0);
        Entry { root: 0, path, kind, mode: 0o755, uid: 0, gid: 0, mtime, xattrs: Xattrs::default() }
    }

    #[test]
    fn by_component_and_with_the_directories_above() {
        let check = |only: &str, expected: &Selection| {
            assert_eq!(&Selection::of(Path::new("/a/state"), Some(Path::new(only))), expected);
        };
        check("/a/state/y", &Selection::Below(b"y".to_vec()));
        check("/a/state", &Selection::All);
        check("/", &Selection::All);
        check("/a/stat", &Selection::Nothing);
        let y = Selection::Below(b"x/y".to_vec());
        let file = || Kind::File(FileData::default());
        for (path, kind, taken) in [
            ("", Kind::Dir, true),
            ("x", Kind::Dir, true),
            ("x/a", file(), false),
            ("x/y", Kind::Dir, true),
            ("x/y/b", file(), true),
            ("x/y.c", file(), false),
            ("z", Kind::Dir, false),
        ] {
            assert_eq!(y.takes(&entry(path, kind)), taken, "{path}");
        }
    }

    #[test]
    fn directories_close_innermost_first() {
        let mut open = ["", "a", "a/b"].map(|path| entry(path, Kind::Dir)).to_vec();
        let paths = |dirs: Vec<Entry>| {
            dirs.iter().map(|dir| String::from_utf8(dir.path.clone()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(paths(closed_by(&mut open, Some(&entry("a/b/c", Kind::Dir)))), [""; 0]);
        assert_eq!(paths(closed_by(&mut open, Some(&entry("ab", Kind::Dir)))), ["a/b", "a"]);
        assert_eq!(paths(closed_by(&mut open, None)), [""]);
    }
}

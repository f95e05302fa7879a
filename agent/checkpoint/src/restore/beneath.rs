//! Names taken below one directory, so that nothing in a manifest or in the target can lead out of
//! it: no symbolic link is followed, and no component leads up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};

use crate::error::{Context as _, Result};
use crate::format::text::os_string;

/// A directory; all its methods stay below it.
pub(super) struct Beneath {
    dir: OwnedFd,
    /// Where it is, for messages.
    path: PathBuf,
}

/// The directory that holds an entry, and the entry's own name in it.
pub(super) struct Spot {
    /// The directory.
    pub(super) dir: OwnedFd,
    /// One component.
    pub(super) name: Vec<u8>,
}

/// The kernel takes paths below this length at once; longer ones are walked in parts.
const LONGEST_PART: usize = 2048;

const STAY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

impl Beneath {
    /// Opens the directory. The path is the operator's: links in it are followed.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Searching a directory is enough to work below it; only syncing needs to read it.
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::ACCESS) => {
                rustix::fs::open(path, flags | OFlags::PATH, Mode::empty())
            }
            opened => opened,
        };
        Ok(Self { dir: dir.context("open", path)?, path: path.to_owned() })
    }

    /// A directory that is open already; `path` is for messages.
    pub(super) fn from_fd(dir: OwnedFd, path: &Path) -> Self {
        Self { dir, path: path.to_owned() }
    }

    /// Where something below it is, for messages.
    pub(super) fn show(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.path.clone() } else { self.path.join(os_string(path)) }
    }

    /// The directory that holds `path`, which is not empty.
    pub(super) fn spot(&self, path: &[u8]) -> io::Result<Spot> {
        let (parent, name) = split(path);
        Ok(Spot { dir: self.handle(parent)?, name: name.to_vec() })
    }

    /// A directory below, or this one, opened for taking names in it.
    pub(super) fn handle(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.walk(path, OFlags::PATH | OFlags::DIRECTORY, STAY)
    }

    /// A directory below, or this one, opened for listing it, on the same mount only.
    pub(super) fn list(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.walk(path, OFlags::RDONLY | OFlags::DIRECTORY, STAY | ResolveFlags::NO_XDEV)
    }

    /// What is at `path`, which is not empty; a link is not followed.
    pub(super) fn stat(&self, path: &[u8]) -> io::Result<Stat> {
        self.spot(path)?.stat()
    }

    fn walk(&self, path: &[u8], flags: OFlags, resolve: ResolveFlags) -> io::Result<OwnedFd> {
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > LONGEST_PART {
            let cut = rest[..LONGEST_PART].iter().rposition(|&byte| byte == b'/');
            let cut = cut.ok_or(io::ErrorKind::InvalidFilename)?;
            let dir = at.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            at = Some(open_below(dir, &rest[..cut], OFlags::PATH | OFlags::DIRECTORY, resolve)?);
            rest = &rest[cut + 1..];
        }
        let dir = at.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
        open_below(dir, if rest.is_empty() { b"." } else { rest }, flags, resolve)
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Spot {
    /// Makes a file that was not there, for writing, for its owner only.
    pub(super) fn create_file(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat2(&self.dir, &*self.name, flags, mode, STAY)?)
    }

    /// Opens what is there; a link is refused.
    pub(super) fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        open_below(self.dir.as_fd(), &self.name, flags, STAY)
    }

    /// Makes a directory that was not there, for its owner only.
    pub(super) fn create_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.dir, &*self.name, Mode::RWXU)?)
    }

    /// What is there; a link is not followed.
    pub(super) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.dir, &*self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Makes `new` another name of what is there.
    pub(super) fn link_to(&self, new: &Self) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.dir, &*self.name, &new.dir, &*new.name, AtFlags::empty())?)
    }
}

/// The path of the directory that holds `path`, and the last component.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// The two with a `/` between them, where neither is empty.
pub(super) fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if above.is_empty() || below.is_empty() { b"" } else { b"/" };
    [above, slash, below].concat()
}

fn open_below(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            // A rename elsewhere raced with the look-up; the kernel asks to try again.
            Err(rustix::io::Errno::AGAIN) => {}
            opened => return Ok(opened?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("root/a/b")).unwrap();
        std::fs::create_dir(home.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", home.path().join("root/l")).unwrap();
        let root = Beneath::open(&home.path().join("root")).unwrap();
        assert!(root.handle(b"").is_ok());
        assert!(root.handle(b"a/b").is_ok());
        for path in [&b".."[..], b"a/../..", b"l", b"l/x", b"/", b"a/../../outside"] {
            assert!(root.handle(path).is_err(), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn paths_longer_than_the_kernel_takes() {
        let home = tempfile::tempdir().unwrap();
        let root = Beneath::open(home.path()).unwrap();
        let name = "d".repeat(200);
        let mut path = Vec::new();
        for _ in 0..40 {
            path = join(&path, name.as_bytes());
            root.spot(&path).unwrap().create_dir().unwrap();
        }
        assert!(path.len() > 8000);
        assert!(root.stat(&path).is_ok());
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(join(b"", b"a"), b"a");
        assert_eq!(join(b"a", b""), b"a");
        assert_eq!(join(b"a", b"b/c"), b"a/b/c");
    }
}

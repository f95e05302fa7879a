//! Building beside the target and swapping in, so that a target is either as before or complete.
//!
//! The new tree is made as `.<name>.nodus-restore-<random>` in the directory that holds the target,
//! and one exchange of the two names puts it in place. Where that directory is not the user's to
//! write, or the target is a mount point or holds what has to stay, the new tree is made inside the
//! target and its top-level names are exchanged one by one. A crash in between then leaves some of them new and some old;
//! the next restore, which comes before the next attempt, starts over. What a crash leaves is
//! removed by the next restore to the same target, and no capture takes it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, StatxFlags,
};
use rustix::io::Errno;

use super::beneath::{Beneath, Spot, join};
use super::remove::remove_tree;
use super::standing::Standing;
use super::tree::Tree;
use crate::error::{Context as _, Error, Result};
use crate::format::RESTORE_PREFIX;

/// Where a root is to be.
pub(super) struct Target {
    path: PathBuf,
    name: Vec<u8>,
    parent: Arc<Beneath>,
}

/// A new tree on its way into a target.
pub(super) struct Stage {
    new: Tree,
    place: Place,
    /// Tells other restores that the tree has a live owner.
    lock: Option<OwnedFd>,
}

/// Where the new tree is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the directory that holds the target: swapped in at once.
    Beside,
    /// In the target: swapped in name by name.
    Inside,
}

/// What the root is in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootKind {
    /// A directory.
    Dir,
    /// A file or a symbolic link.
    Leaf,
    /// It did not exist.
    Absent,
}

impl Target {
    /// Opens the directory that holds the target, and makes it where it is missing.
    pub(super) fn open(path: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            let path = path.display();
            return Err(Error::Refused(format!("cannot restore to {path}: it has no name")));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        std::fs::create_dir_all(parent).context("create the directory", parent)?;
        let parent = Arc::new(Beneath::open(parent)?);
        Ok(Self { path: path.to_owned(), name: name.as_bytes().to_vec(), parent })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The tree that is there now.
    pub(super) fn tree(&self) -> Tree {
        Tree::new(&self.parent, &self.name, &self.path)
    }

    /// What is there now.
    pub(super) fn stat(&self) -> Result<Option<Stat>> {
        match self.parent.stat(&self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            stat => stat.map(Some).context("look at", &self.path),
        }
    }

    /// Whether there is nothing in it that a restore would replace.
    pub(super) fn is_vacant(&self) -> Result<bool> {
        match self.stat()? {
            None => Ok(true),
            Some(stat) if is_dir(&stat) => {
                let dir = self.tree().list(b"").context("list", &self.path)?;
                Ok(names(&dir).context("list", &self.path)?.is_empty())
            }
            Some(_) => Ok(false),
        }
    }

    /// Removes what restores that are gone left at this target.
    pub(super) fn remove_leftovers(&self) -> Result<()> {
        let beside = staging_prefix(&self.name);
        remove_abandoned(&self.parent, &beside).context("clean up beside", &self.path)?;
        let stat = self.stat()?;
        if !stat.is_some_and(|stat| is_dir(&stat)) {
            return Ok(());
        }
        match Beneath::open(&self.path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                Ok(())
            }
            Err(error) => Err(error),
            Ok(inside) => remove_abandoned(&inside, RESTORE_PREFIX.as_bytes())
                .context("clean up in", &self.path),
        }
    }

    /// Begins a new tree; where the root is a directory it is there, empty, afterwards.
    pub(super) fn stage(&self, kind: RootKind, standing: &Standing) -> Result<Stage> {
        if !standing.is_none() && kind != RootKind::Dir {
            return Err(Error::Refused(format!(
                "cannot replace {}: the store, the agent's own files or another file system are in it",
                self.path.display()
            )));
        }
        if standing.is_none() && !self.is_mount_point() {
            match self.stage_beside(kind) {
                Err(error) if self.is_refusal(&error) && kind != RootKind::Leaf => {}
                staged => return staged.context("create a directory beside", &self.path),
            }
        }
        if kind == RootKind::Leaf {
            return Err(Error::Refused(format!(
                "cannot replace {}: it is a mount point, but a single file in the checkpoint",
                self.path.display()
            )));
        }
        self.stage_inside()
    }

    fn stage_beside(&self, kind: RootKind) -> io::Result<Stage> {
        let prefix = staging_prefix(&self.name);
        let (spot, random) = self.free_name(&prefix)?;
        let new = Tree::new(&self.parent, &random, &self.path);
        let lock = match kind {
            RootKind::Dir => Some(create_locked(&spot)?),
            RootKind::Leaf | RootKind::Absent => {
                // Whether a name can be made here has to be known now, not after all the work.
                rustix::fs::mkdirat(&spot.dir, &*spot.name, Mode::RWXU)?;
                rustix::fs::unlinkat(&spot.dir, &*spot.name, AtFlags::REMOVEDIR)?;
                None
            }
        };
        Ok(Stage { new, place: Place::Beside, lock })
    }

    fn free_name(&self, prefix: &[u8]) -> io::Result<(Spot, Vec<u8>)> {
        let name = [prefix, random_suffix()?.as_bytes()].concat();
        Ok((self.parent.spot(&name)?, name))
    }

    /// Whether the directory beside cannot be written, while there is a target to work in.
    fn is_refusal(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
            && self.stat().is_ok_and(|stat| stat.is_some_and(|stat| is_dir(&stat)))
    }

    fn stage_inside(&self) -> Result<Stage> {
        let inside = Arc::new(Beneath::open(&self.path)?);
        let name = [RESTORE_PREFIX, &random_suffix().context("name", &self.path)?].concat();
        let spot = inside.spot(name.as_bytes()).context("open", &self.path)?;
        let lock = match create_locked(&spot) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                rustix::fs::fchmod(&*inside, Mode::RWXU).context("open up", &self.path)?;
                create_locked(&spot)
            }
            made => made,
        };
        let lock = lock.context("create a directory in", &self.path)?;
        let new = Tree::new(&inside, name.as_bytes(), &self.path);
        Ok(Stage { new, place: Place::Inside, lock: Some(lock) })
    }

    fn is_mount_point(&self) -> bool {
        let mount = |name: &[u8], flags| {
            rustix::fs::statx(self.parent.as_fd(), name, flags, StatxFlags::MNT_ID)
                .map(|stat| (stat.stx_mnt_id, stat.stx_dev_major, stat.stx_dev_minor))
        };
        match (mount(&self.name, AtFlags::SYMLINK_NOFOLLOW), mount(b"", AtFlags::EMPTY_PATH)) {
            (Ok(target), Ok(parent)) => target != parent,
            _ => false,
        }
    }
}

impl Stage {
    /// The tree that is being made.
    pub(super) fn new_tree(&self) -> &Tree {
        &self.new
    }

    /// Where it is made.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Makes everything in the new tree durable.
    pub(super) fn sync(&self) -> Result<()> {
        let file_system = match &self.lock {
            Some(dir) => dir.as_fd(),
            None => self.new.base().as_fd(),
        };
        match rustix::fs::syncfs(file_system) {
            // Opened for its names only, because it may not be read: then nothing else is needed
            // of it either, and the parent's journal follows the file's.
            Err(Errno::BADF) => Ok(()),
            synced => synced.context("sync", self.new.show(b"")),
        }
    }

    /// Puts the new tree in the target's place; what was there is in the stage afterwards.
    pub(super) fn swap(&self, target: &Target, kind: RootKind, standing: &Standing) -> Result<()> {
        let (swapped, action) = match self.place {
            Place::Beside => (self.swap_at_once(target, kind), "put in place"),
            Place::Inside => (self.swap_names(standing), "put the files in place in"),
        };
        swapped.context(action, &target.path)?;
        match rustix::fs::fsync(self.new.base()) {
            Err(Errno::BADF | Errno::INVAL) => Ok(()),
            synced => synced.context("sync", self.new.base().show(b"")),
        }
    }

    /// Removes the stage, with whatever is in it.
    pub(super) fn remove(self) -> io::Result<()> {
        let name = self.new.below_base(b"");
        remove_tree(self.new.base(), &name)
    }

    fn swap_at_once(&self, target: &Target, kind: RootKind) -> io::Result<()> {
        let there = target.parent.spot(&target.name)?;
        let staged = self.new.spot(b"")?;
        let is_there = exists(&there)?;
        match (kind, is_there) {
            (RootKind::Absent, false) => Ok(()),
            (RootKind::Absent, true) => move_to(&there, &staged, RenameFlags::NOREPLACE),
            (_, false) => move_to(&staged, &there, RenameFlags::NOREPLACE),
            (_, true) => exchange(&staged, &there),
        }
    }

    fn swap_names(&self, standing: &Standing) -> io::Result<()> {
        let mut ways = vec![Vec::new()];
        while let Some(path) = ways.pop() {
            self.swap_level(&path, standing, &mut ways)?;
        }
        Ok(())
    }

    /// Exchanges the names in one directory; those on the way to what stays are put in `ways`.
    fn swap_level(
        &self,
        path: &[u8],
        standing: &Standing,
        ways: &mut Vec<Vec<u8>>,
    ) -> io::Result<()> {
        let stage = self.new.list(path)?;
        let target = self.new.base().list(path)?;
        let fresh: HashSet<Vec<u8>> = names(&stage)?.into_iter().collect();
        if !path.is_empty() {
            // It stays, and gets what the checkpoint has of it once the names are exchanged.
            open_up(&target)?;
        }
        let own = self.new.below_base(b"");
        let old = names(&target)?;
        let here = |dir: &OwnedFd, name: &[u8]| -> io::Result<Spot> {
            Ok(Spot { dir: dir.try_clone()?, name: name.to_vec() })
        };
        for name in &fresh {
            let (staged, there) = (here(&stage, name)?, here(&target, name)?);
            let below = join(path, name);
            if standing.leads(&below) {
                ways.push(below);
            } else if standing.keeps(&below) {
                // The empty directory that stands for it goes with the stage.
            } else if exists(&there)? {
                exchange(&staged, &there)?;
            } else {
                move_to(&staged, &there, RenameFlags::NOREPLACE)?;
            }
        }
        for name in old.iter().filter(|name| !fresh.contains(*name)) {
            let below = join(path, name);
            if below == own || standing.keeps(&below) {
                continue;
            }
            let staged = here(&stage, name)?;
            if standing.leads(&below) {
                // Nothing of it is in the checkpoint: all but what stays goes.
                staged.create_dir()?;
                ways.push(below);
            } else {
                move_to(&here(&target, name)?, &staged, RenameFlags::NOREPLACE)?;
            }
        }
        Ok(())
    }
}

/// Names that a target's restores use beside it.
fn staging_prefix(name: &[u8]) -> Vec<u8> {
    // With the dot, the word and the random part, a longer name would not fit into 255 bytes.
    const LONGEST: usize = 200;
    let hash;
    let stem = if name.len() <= LONGEST {
        name
    } else {
        hash = blake3::hash(name).to_hex();
        hash.as_bytes()
    };
    [b".", stem, RESTORE_PREFIX.as_bytes()].concat()
}

fn random_suffix() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn create_locked(spot: &Spot) -> io::Result<OwnedFd> {
    spot.create_dir()?;
    let dir = spot.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    lock(&dir)?;
    Ok(dir)
}

/// Takes the lock that shows a stage is in use; says whether it was free.
fn lock(dir: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        // A file system without locks: there, two restores to one target are not told apart.
        Err(Errno::NOSYS | Errno::NOTSUP | Errno::NOLCK | Errno::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn remove_abandoned(dir: &Beneath, prefix: &[u8]) -> io::Result<()> {
    let listed = match dir.list(b"") {
        // Not ours to list, so nothing of ours is in it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        listed => listed?,
    };
    for name in names(&listed)?.into_iter().filter(|name| name.starts_with(prefix)) {
        let stage = dir.spot(&name)?.open(OFlags::RDONLY | OFlags::DIRECTORY);
        let in_use = match &stage {
            Ok(stage) => !lock(stage)?,
            Err(_) => false, // A file, or a directory that only its removal can open.
        };
        if !in_use {
            let removed = remove_tree(dir, &name);
            if let Err(error) = removed {
                let path = dir.show(&name);
                tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished restore");
            }
        }
    }
    Ok(())
}

/// Exchanges two names at once; where the file system cannot, by way of a third name.
fn exchange(staged: &Spot, there: &Spot) -> io::Result<()> {
    match move_to(staged, there, RenameFlags::EXCHANGE) {
        Err(error) if cannot_exchange(&error) => {
            let aside = [staged.name.as_slice(), b"-old"].concat();
            let aside = Spot { dir: staged.dir.try_clone()?, name: aside };
            move_to(there, &aside, RenameFlags::empty())?;
            move_to(staged, there, RenameFlags::empty())?;
            move_to(&aside, staged, RenameFlags::empty())
        }
        exchanged => exchanged,
    }
}

/// Renames; a directory that its own mode keeps from moving is opened up first.
fn move_to(from: &Spot, to: &Spot, flags: RenameFlags) -> io::Result<()> {
    let rename = || rustix::fs::renameat_with(&from.dir, &*from.name, &to.dir, &*to.name, flags);
    match rename() {
        Err(Errno::ACCESS) => {
            for spot in [from, to] {
                if exists(spot)? && is_dir(&spot.stat()?) {
                    rustix::fs::chmodat(&spot.dir, &*spot.name, Mode::RWXU, AtFlags::empty())?;
                }
            }
            Ok(rename()?)
        }
        // Plain NFS and some others know no flags. Nothing was there a moment ago, and only this
        // user writes here, so an ordinary rename does the same.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if flags == RenameFlags::NOREPLACE => {
            Ok(rustix::fs::renameat(&from.dir, &*from.name, &to.dir, &*to.name)?)
        }
        renamed => Ok(renamed?),
    }
}

/// Makes a directory its owner's to change.
fn open_up(dir: &OwnedFd) -> io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(dir)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        rustix::fs::fchmod(dir, mode | Mode::RWXU)?;
    }
    Ok(())
}

fn cannot_exchange(error: &io::Error) -> bool {
    let no = [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP];
    no.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn exists(spot: &Spot) -> io::Result<bool> {
    match spot.stat() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut dir = Dir::read_from(dir)?;
    while let Some(entry) = dir.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

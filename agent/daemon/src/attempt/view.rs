//! A private view of the file system: the host's, with some directories of the attempt's own.
//!
//! Where all targets exist on the host, they are mounted over, in a mount namespace of our own. Where
//! one is missing, the host may not be changed (or cannot be), so a new root is made: a small tmpfs
//! with every entry of the old root bound into it, and likewise down to the parent of the missing
//! target. What the host adds later to a directory made anew this way is not seen, and the new
//! root is read-only, so that a file put there fails instead of getting lost.
//!
//! As root it takes a mount namespace; as anybody else a user namespace as well, in which the user
//! keeps the same numbers. All of it goes away with the last process inside.

use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use nix::sched::CloneFlags;
use rustix::fs::{CWD, Mode};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind_recursive, mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, geteuid, getgid, getuid, pivot_root, umask};

/// Where the new root is put together: any directory does, what it holds is not covered for long.
const BASES: [&str; 3] = ["/tmp", "/run", "/proc"];
const OLD: &str = "/old";
const NEW: &str = "/new";
/// Holds nothing but directories and links.
const TMPFS_OPTIONS: &std::ffi::CStr = c"mode=0755,size=4m";

/// Why a private view cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub(super) struct ViewError {
    pub(super) action: &'static str,
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

trait Context<T> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, ViewError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, ViewError> {
        let path = path.as_ref().to_owned();
        self.map_err(|error| ViewError { action, path, source: error.into() })
    }
}

/// Puts this process, which must be single-threaded, into a view with these (source, target) pairs.
///
/// After an error the process is in no usable state and should end.
pub(super) fn enter(binds: &[(PathBuf, PathBuf)]) -> Result<(), ViewError> {
    new_namespaces()?;
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", private).context("make a private copy of the mounts under", "/")?;
    // All sources are held before anything is covered: one may lie under another's target.
    let trees = binds.iter().map(|(source, _)| tree(source)).collect::<Result<Vec<_>, _>>()?;
    let targets = binds.iter().map(|(_, target)| resolve(target)).collect::<Result<Vec<_>, _>>()?;
    if !complete(Path::new("/"), Path::new("/"), &targets) {
        // Directories made here must be open to the program whatever our own habit is.
        let before = umask(Mode::WGRP | Mode::WOTH);
        rebuild(&targets)?;
        umask(before);
    }
    for (tree, target) in trees.iter().zip(&targets) {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(tree, "", CWD, target, flags).context("mount a directory at", target)?;
    }
    chdir("/").context("change to", "/")
}

/// Finds out by doing it whether [`enter`] works here.
pub(super) fn probe() -> Result<(), ViewError> {
    // Targets as every attempt has them; any directory serves as the source.
    let targets = ["/nodus/state", "/nodus/outputs", "/run/nodus"];
    enter(&targets.map(|target| (PathBuf::from("/dev"), PathBuf::from(target))))?;
    for target in targets {
        fs::metadata(Path::new(target).join("null")).context("find what was mounted at", target)?;
    }
    Ok(())
}

fn new_namespaces() -> Result<(), ViewError> {
    let what = "create a mount namespace for";
    if geteuid().is_root() {
        match nix::sched::unshare(CloneFlags::CLONE_NEWNS) {
            // A root without the capability, as in a container, is in the place of any user.
            Err(nix::errno::Errno::EPERM) => {}
            made => return made.context(what, "/"),
        }
    }
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let both = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    nix::sched::unshare(both).context("create a user namespace for", "/")?;
    let put = |path: &str, text: String| fs::write(path, text).context("write", path);
    put("/proc/self/setgroups", "deny".into())?;
    put("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    put("/proc/self/uid_map", format!("{uid} {uid} 1"))
}

/// A detached copy of the mounts at and below a directory.
fn tree(source: &Path) -> Result<OwnedFd, ViewError> {
    if !source.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory)).context("mount", source);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, source, flags).context("mount", source)
}

/// The path with every link in the part of it that exists followed.
fn resolve(target: &Path) -> Result<PathBuf, ViewError> {
    let plain = |part| matches!(part, Component::Normal(_) | Component::RootDir);
    if !target.is_absolute() || !target.components().all(plain) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput)).context("mount at", target);
    }
    let mut missing = PathBuf::new();
    for there in target.ancestors() {
        match there.canonicalize() {
            Ok(real) if missing.as_os_str().is_empty() => return Ok(real),
            Ok(real) => return Ok(real.join(missing)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = there.file_name().map_or(there, Path::new);
                missing =
                    if missing.as_os_str().is_empty() { name.into() } else { name.join(missing) };
            }
            Err(error) => return Err(error).context("look up", there),
        }
    }
    Ok(target.to_owned())
}

/// Whether every target at or below `at` exists under `root`.
fn complete(root: &Path, at: &Path, targets: &[PathBuf]) -> bool {
    targets
        .iter()
        .filter(|target| target.starts_with(at))
        .all(|target| below(root, target).is_dir())
}

/// `root` with the absolute `path` appended.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Replaces the root by one in which every target is a directory.
fn rebuild(targets: &[PathBuf]) -> Result<(), ViewError> {
    let base = BASES.iter().map(Path::new).find(|base| base.is_dir());
    let base =
        base.ok_or(io::ErrorKind::NotFound).map_err(io::Error::from).context("find", BASES[0])?;
    mount_tmpfs(base)?;
    for dir in [OLD, NEW] {
        let dir = below(base, Path::new(dir));
        fs::create_dir(&dir).context("create", &dir)?;
    }
    pivot_root(base, below(base, Path::new(OLD))).context("change the root to", base)?;
    chdir("/").context("change to", "/")?;
    mount_tmpfs(Path::new(NEW))?;
    fill(Path::new("/"), targets)?;
    for target in targets {
        let dir = below(Path::new(NEW), target);
        fs::create_dir_all(&dir).context("create", target)?;
    }
    let read_only = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount_remount(NEW, read_only, c"").context("make read-only", "/")?;
    unmount(OLD, UnmountFlags::DETACH).context("unmount", OLD)?;
    chdir(NEW).context("change to", NEW)?;
    // Over itself, so that the former root lies on top and can be taken away.
    pivot_root(".", ".").context("change the root to", NEW)?;
    unmount(".", UnmountFlags::DETACH).context("unmount", "the interim root")
}

fn mount_tmpfs(at: &Path) -> Result<(), ViewError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", at, "tmpfs", flags, TMPFS_OPTIONS).context("mount a tmpfs at", at)
}

/// Brings what the old root has in the directory `at` into the new one, but for the targets.
fn fill(at: &Path, targets: &[PathBuf]) -> Result<(), ViewError> {
    let from = below(Path::new(OLD), at);
    for entry in fs::read_dir(&from).context("list", at)? {
        let entry = entry.context("list", at)?;
        let path = at.join(entry.file_name());
        let kind = entry.file_type().context("look up", &path)?;
        if targets.contains(&path) {
            continue;
        }
        let new = below(Path::new(NEW), &path);
        if complete(Path::new(OLD), &path, targets) {
            graft(&entry.path(), &new, kind).context("bring into the private view", &path)?;
            continue;
        }
        fs::create_dir(&new).context("create", &path)?;
        if path == Path::new("/run") {
            mount_tmpfs(&new)?; // Writable: pid files and the like are made here at any time.
        }
        fill(&path, targets)?;
    }
    Ok(())
}

fn graft(old: &Path, new: &Path, kind: FileType) -> io::Result<()> {
    if kind.is_symlink() {
        return symlink(fs::read_link(old)?, new);
    }
    if kind.is_dir() {
        fs::create_dir(new)?;
    } else {
        File::create(new)?;
    }
    match mount_bind_recursive(old, new) {
        Err(rustix::io::Errno::NOENT) => Ok(()), // It has gone meanwhile.
        bound => Ok(bound?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_way_to_a_target_are_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir(root.join("run")).unwrap();
        symlink("run", root.join("var-run")).unwrap();
        assert_eq!(resolve(&root.join("var-run/a/b")).unwrap(), root.join("run/a/b"));
        assert_eq!(resolve(&root.join("run")).unwrap(), root.join("run"));
        assert!(resolve(Path::new("run")).is_err());
        assert!(resolve(&root.join("../run")).is_err());
    }

    #[test]
    fn a_directory_is_complete_when_all_targets_below_it_are_there() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("run/nodus")).unwrap();
        let targets = [PathBuf::from("/run/nodus"), PathBuf::from("/nodus/state")];
        assert!(complete(scratch.path(), Path::new("/run"), &targets));
        assert!(complete(scratch.path(), Path::new("/etc"), &targets));
        assert!(!complete(scratch.path(), Path::new("/"), &targets));
    }
}

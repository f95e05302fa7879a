//! Opening what the walk meets, without following links or leaving the mount.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens a directory or a regular file by its name in a directory.
///
/// The name is one component, so with `NOFOLLOW` alone it stays inside; `openat2` adds that it does
/// not cross into a mount, which shows as `EXDEV`.
pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &CStr, is_dir: bool) -> Result<OwnedFd, Errno> {
    // A FIFO or device that took the file's name in this moment must not block or become a terminal.
    let mut flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if is_dir {
        flags |= OFlags::DIRECTORY;
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match openat2(dir, name, flags, Mode::empty(), resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Kernels and sandboxes without openat2.
            Err(Errno::NOSYS | Errno::PERM) => return open_plainly(dir, name, flags, is_dir),
            opened => return opened,
        }
    }
}

/// The same without `openat2`: a directory of another device is one that is mounted.
fn open_plainly(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: OFlags,
    is_dir: bool,
) -> Result<OwnedFd, Errno> {
    let opened = openat(dir, name, flags, Mode::empty())?;
    // Of files this says nothing: an overlay gives them the device of their layer.
    if is_dir && fstat(&opened)?.st_dev != fstat(dir)?.st_dev {
        return Err(Errno::XDEV);
    }
    Ok(opened)
}

/// Whether a name that was listed is simply no longer what it was.
pub(crate) fn is_gone(error: Errno) -> bool {
    // A stale handle is no proof: the file may be there and the server not.
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO)
}

//! Opening what the walk meets, without following links or leaving the mount.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
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
            // Kernels and sandboxes without openat2; the caller still compares device numbers.
            Err(Errno::NOSYS | Errno::PERM) => return openat(dir, name, flags, Mode::empty()),
            opened => return opened,
        }
    }
}

/// Whether a name that was listed is simply no longer what it was.
pub(crate) fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::STALE)
}

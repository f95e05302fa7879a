//! The few system calls that no safe crate offers, and thin names for those that need a number.
#![expect(unsafe_code, reason = "system calls without a safe wrapper; each is argued below")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc;

/// Starts writing a range of a file to the disk; with `wait`, also waits until it is there.
pub(crate) fn write_back(file: &File, offset: u64, length: u64, wait: bool) -> io::Result<()> {
    let start = libc::SYNC_FILE_RANGE_WRITE;
    let around = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let flags = if wait { start | around } else { start };
    let (offset, length) = (offset.cast_signed(), length.cast_signed());
    // SAFETY: takes numbers only, and the descriptor is open for as long as `file` is borrowed.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts the calling thread behind everything else that wants the disk.
pub(crate) fn lower_io_priority() -> io::Result<()> {
    const WHO_THREAD: libc::c_int = 1;
    const CALLER: libc::c_int = 0;
    const BEST_EFFORT_LOWEST: libc::c_int = (2 << 13) | 7;
    // SAFETY: takes numbers only.
    let result =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, CALLER, BEST_EFFORT_LOWEST) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

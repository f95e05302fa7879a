//! What the file system says of an entry.

use rustix::fs::{FileType, Stat};

use crate::format::{Identity, Time};

/// A change within this time before a read may leave the same time stamp as one after it.
const CLOCK_STEP: i128 = 20_000_000;
/// The same where the time stamps are another machine's.
const NETWORK_CLOCK_STEP: i128 = 2_000_000_000;

/// The attributes of an entry at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) nlink: u64,
    pub(crate) size: u64,
}

impl Attr {
    pub(crate) fn of(stat: &Stat) -> Self {
        let time = |seconds, nanoseconds| {
            Time(seconds, u32::try_from(nanoseconds).expect("less than a second"))
        };
        Self {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: u64::from(u32::try_from(stat.st_nlink).unwrap_or(u32::MAX)),
            size: u64::try_from(stat.st_size).unwrap_or(0),
        }
    }

    /// Which object it is.
    pub(crate) fn object(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// By what an unchanged file is known, with size and mtime.
    pub(crate) fn identity(&self) -> Identity {
        Identity(self.dev, self.ino, self.ctime.0, self.ctime.1)
    }

    /// Whether the content may have been written between the two.
    pub(crate) fn is_moved_from(&self, earlier: &Self) -> bool {
        (self.size, self.mtime) != (earlier.size, earlier.mtime)
    }

    /// Whether a change after `read` could leave these time stamps as they are.
    pub(crate) fn is_racy(&self, read: Time, network: bool) -> bool {
        let step = if network { NETWORK_CLOCK_STEP } else { CLOCK_STEP };
        let since = |time| nanoseconds(read) - nanoseconds(time);
        // Another machine's clock may also be ahead.
        let near = |time| since(time) < step && since(time) > -NETWORK_CLOCK_STEP;
        near(self.mtime) || near(self.ctime)
    }
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.0) * 1_000_000_000 + i128::from(time.1)
}

/// The clock that file systems take their time stamps from, to compare with those.
pub(crate) fn file_clock() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time(now.tv_sec, u32::try_from(now.tv_nsec).expect("less than a second"))
}

/// Whether the time stamps of this file system are another machine's.
pub(crate) fn is_network(fd: impl std::os::fd::AsFd) -> bool {
    const NFS: i64 = 0x6969;
    const SMB2: i64 = 0xFE53_4D42;
    const CIFS: i64 = 0xFF53_4D42;
    const CEPH: i64 = 0x00C3_6400;
    const FUSE: i64 = 0x6573_5546;
    const NINE_P: i64 = 0x0102_1997;
    const LUSTRE: i64 = 0x0BD0_0BD0;
    const GPFS: i64 = 0x4750_4653;
    rustix::fs::fstatfs(fd).is_ok_and(|fs| {
        [NFS, SMB2, CIFS, CEPH, FUSE, NINE_P, LUSTRE, GPFS].contains(&{ fs.f_type })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_just_before_the_read_is_racy() {
        let attr = |mtime| Attr {
            kind: FileType::RegularFile,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime,
            ctime: Time(50, 0),
            dev: 0,
            ino: 0,
            nlink: 1,
            size: 0,
        };
        let read = Time(100, 0);
        assert!(!attr(Time(99, 979_000_000)).is_racy(read, false));
        assert!(attr(Time(99, 981_000_000)).is_racy(read, false));
        assert!(attr(Time(98, 500_000_000)).is_racy(read, true));
        assert!(attr(Time(101, 0)).is_racy(read, true), "a server that is ahead");
        assert!(!attr(Time(5_000, 0)).is_racy(read, true), "set by hand: the ctime tells");
    }
}

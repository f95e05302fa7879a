//! Owner, mode, extended attributes and times: which ones an entry gets, and giving them to it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use super::RestoreOptions;
use super::beneath::Spot;
use super::findings::{About, Findings};
use crate::format::text::escape;
use crate::format::{Entry, Kind, Time};

/// Set-uid and set-gid.
const SET_ID: u32 = 0o6000;

/// Lets a file act with more rights than its user has.
const CAPABILITY: &[u8] = b"security.capability";

/// Who restored entries belong to, and what they keep.
///
/// Everything belongs to the job's user. Its group is the recorded one where the user is a member
/// of that, otherwise the user's own. Only root without a user to restore for gives entries the
/// owners that were recorded. Directories keep set-gid and sticky bits, which grant nobody a right;
/// files lose set-uid and set-gid bits and capabilities unless privileges are kept.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// The job's user and its groups, the own one first; `None` gives recorded owners.
    pub(super) user: Option<(u32, Vec<u32>)>,
    /// Whether set-id bits and capabilities stay.
    pub(super) keep_privileges: bool,
}

impl Policy {
    /// What these options ask for in this process.
    pub(super) fn of(options: &RestoreOptions) -> Self {
        let with_own = |uid, gid: u32, others: Vec<u32>| {
            let groups = std::iter::once(gid).chain(others).collect();
            Some((uid, groups))
        };
        let user = match &options.credentials {
            Some(user) => with_own(user.uid, user.gid, user.groups.clone()),
            None if rustix::process::geteuid().is_root() => None,
            None => {
                let groups = rustix::process::getgroups().unwrap_or_default();
                let groups = groups.into_iter().map(Gid::as_raw).collect();
                let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
                with_own(uid.as_raw(), gid.as_raw(), groups)
            }
        };
        Self { user, keep_privileges: options.keep_privileges }
    }

    /// The owner and group that the entry gets.
    pub(super) fn owner(&self, entry: &Entry) -> (u32, u32) {
        match &self.user {
            None => (entry.uid, entry.gid),
            Some((uid, groups)) if groups.contains(&entry.gid) => (*uid, entry.gid),
            Some((uid, groups)) => (*uid, groups.first().copied().unwrap_or(entry.gid)),
        }
    }

    /// The mode that the entry gets.
    pub(super) fn mode(&self, entry: &Entry) -> u32 {
        match entry.kind {
            Kind::File(_) if !self.keep_privileges => entry.mode & !SET_ID,
            _ => entry.mode,
        }
    }

    /// Whether the entry gets this extended attribute.
    pub(super) fn takes_xattr(&self, name: &[u8]) -> bool {
        self.keep_privileges || name != CAPABILITY
    }
}

/// Gives attributes, and notes what cannot be given.
pub(super) struct Attributes<'a> {
    /// Which.
    pub(super) policy: &'a Policy,
    /// Where to note what could not be done.
    pub(super) findings: &'a Findings,
}

impl Attributes<'_> {
    /// Gives an open file or directory all that was recorded of it; times last.
    ///
    /// The owner comes first, because a change of owner takes set-id bits and capabilities away.
    /// Attributes of the user's own come before the mode, which may forbid writing.
    pub(super) fn apply(&self, fd: impl AsFd, entry: &Entry, shown: &Path) -> io::Result<()> {
        let fd = fd.as_fd();
        let now = rustix::fs::fstat(fd)?;
        let (uid, gid) = self.policy.owner(entry);
        if (now.st_uid, now.st_gid) != (uid, gid) {
            let (uid, gid) = (changed(now.st_uid, uid), changed(now.st_gid, gid));
            let set = rustix::fs::fchown(fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            self.owner_set(set, shown)?;
        }
        let set =
            |name: &[u8], value: &[u8]| rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty());
        self.xattrs(entry, shown, |name| name.starts_with(b"user."), set)?;
        let mode = self.policy.mode(entry);
        rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?;
        self.xattrs(entry, shown, |name| !name.starts_with(b"user."), set)?;
        self.note_left_off(entry, shown);
        Ok(rustix::fs::futimens(fd, &times(entry.mtime))?)
    }

    /// The same for a symbolic link, which cannot be opened and has no mode.
    pub(super) fn apply_to_link(&self, spot: &Spot, entry: &Entry, shown: &Path) -> io::Result<()> {
        let (dir, name, flags) = (&spot.dir, &*spot.name, AtFlags::SYMLINK_NOFOLLOW);
        let now = spot.stat()?;
        let (uid, gid) = self.policy.owner(entry);
        if (now.st_uid, now.st_gid) != (uid, gid) {
            let (uid, gid) = (changed(now.st_uid, uid), changed(now.st_gid, gid));
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            self.owner_set(rustix::fs::chownat(dir, name, uid, gid, flags), shown)?;
        }
        let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
        let set = |name: &[u8], value: &[u8]| {
            rustix::fs::lsetxattr(&*path, name, value, XattrFlags::empty())
        };
        self.xattrs(entry, shown, |_| true, set)?;
        Ok(rustix::fs::utimensat(dir, name, &times(entry.mtime), flags)?)
    }

    fn owner_set(&self, set: Result<(), Errno>, shown: &Path) -> io::Result<()> {
        match set {
            Err(error @ (Errno::PERM | Errno::INVAL | Errno::NOTSUP | Errno::OVERFLOW)) => {
                let cause = io::Error::from(error).to_string();
                self.findings.add(About::Owner { cause }, shown);
                Ok(())
            }
            set => Ok(set?),
        }
    }

    fn xattrs(
        &self,
        entry: &Entry,
        shown: &Path,
        wanted: impl Fn(&[u8]) -> bool,
        set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> io::Result<()> {
        for (name, value) in &entry.xattrs.0 {
            if !wanted(name) || !self.policy.takes_xattr(name) {
                continue;
            }
            match set(name, value) {
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
                Err(error) => {
                    let cause = io::Error::from(error).to_string();
                    self.findings.add(About::Xattr { name: escape(name), cause }, shown);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn note_left_off(&self, entry: &Entry, shown: &Path) {
        if self.policy.mode(entry) != entry.mode {
            self.findings.add(About::SetId, shown);
        }
        if !self.policy.takes_xattr(CAPABILITY) && entry.xattrs.0.contains_key(CAPABILITY) {
            self.findings.add(About::Capability, shown);
        }
    }
}

/// Opens what [`Attributes::apply`] takes.
pub(super) const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

fn changed(now: u32, wanted: u32) -> Option<u32> {
    (now != wanted).then_some(wanted)
}

fn times(mtime: Time) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
    Timestamps { last_access: omit, last_modification }
}

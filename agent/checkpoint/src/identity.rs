//! Touching files with the rights of the job's user only.

use std::marker::PhantomData;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::error::{Context as _, Error, Result};

/// A user and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// The other groups that it is a member of.
    pub groups: Vec<u32>,
}

/// As long as it lives, the thread that made it opens and changes files as the user.
///
/// Only that thread: the kernel keeps these identities a thread, and a thread that is started
/// meanwhile inherits them.
#[derive(Debug)]
#[must_use = "the thread is itself again as soon as this is dropped"]
pub struct Guard {
    before: Option<Before>,
    /// It must be dropped in the thread that it is about.
    _thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Before {
    uid: Uid,
    gid: Gid,
    groups: Vec<rustix::fs::Gid>,
}

/// Makes the calling thread touch files as this user; with `None` it stays what it is.
///
/// # Errors
/// [`Error::Refused`] where this process may not act as that user.
pub fn enter(credentials: Option<&Credentials>) -> Result<Guard> {
    let guard = |before| Guard { before, _thread: PhantomData };
    let Some(user) = credentials else { return Ok(guard(None)) };
    let own = nix::unistd::geteuid();
    if !own.is_root() {
        return if own.as_raw() == user.uid { Ok(guard(None)) } else { Err(refused(user.uid)) };
    }
    let groups = rustix::process::getgroups().context("read", "the groups of this process")?;
    let (gid, uid) = (current_gid(), current_uid());
    // From here on, dropping the guard undoes whatever has been done.
    let guard = guard(Some(Before { uid, gid, groups }));
    let groups: Vec<_> = user.groups.iter().map(|&gid| rustix::fs::Gid::from_raw(gid)).collect();
    rustix::thread::set_thread_groups(&groups).context("set", "the groups of this thread")?;
    // The user comes last: it takes away the right to change the rest.
    setfsgid(Gid::from_raw(user.gid));
    setfsuid(Uid::from_raw(user.uid));
    if current_uid().as_raw() != user.uid || current_gid().as_raw() != user.gid {
        return Err(refused(user.uid));
    }
    Ok(guard)
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        setfsuid(before.uid);
        setfsgid(before.gid);
        let groups = rustix::thread::set_thread_groups(&before.groups);
        let restored = groups.is_ok() && current_uid() == before.uid && current_gid() == before.gid;
        // Going on with more or other rights than before is worse than not going on.
        assert!(restored, "the thread cannot be itself again");
    }
}

/// These calls do not say whether they worked; an impossible identity changes nothing and tells.
fn current_uid() -> Uid {
    setfsuid(Uid::from_raw(u32::MAX))
}

fn current_gid() -> Gid {
    setfsgid(Gid::from_raw(u32::MAX))
}

fn refused(uid: u32) -> Error {
    let own = nix::unistd::geteuid();
    Error::Refused(format!("user {own} may not act as user {uid}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn files_belong_to_the_user_and_the_thread_is_itself_again() {
        let own = nix::unistd::geteuid().as_raw();
        // Only root can become somebody else; anybody may stay who they are.
        let uid = if own == 0 { 12345 } else { own };
        let gid = if own == 0 { 12345 } else { nix::unistd::getegid().as_raw() };
        let user = Credentials { uid, gid, groups: vec![gid] };
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).unwrap();
        let file = dir.path().join("file");
        {
            let _user = enter(Some(&user)).unwrap();
            std::fs::write(&file, "").unwrap();
            if own == 0 {
                std::fs::write("/etc/nodus-test-must-not-exist", "").unwrap_err();
            }
        }
        let found = std::fs::metadata(&file).unwrap();
        assert_eq!((found.uid(), found.gid()), (uid, gid));
        assert_eq!(current_uid().as_raw(), own);
    }

    #[test]
    fn only_root_becomes_another() {
        if !nix::unistd::geteuid().is_root() {
            let user = Credentials { uid: 0, gid: 0, groups: Vec::new() };
            assert!(matches!(enter(Some(&user)), Err(Error::Refused(_))));
        }
    }
}

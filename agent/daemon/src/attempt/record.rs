//! What an attempt leaves in its record directory, and how it is written.
//!
//! | file | by | holds |
//! | --- | --- | --- |
//! | `plan.json` | the agent, before anything runs | what to run |
//! | `shim.json` | the shim | which processes to look for; absent: nothing was started |
//! | `exit.json` | the shim, once nothing runs any more | how it ended |
//! | `frozen` | the agent | present while it holds the attempt still by signals |
//! | `output.log`, `shim.log` | the program, the shim | what they print |
//!
//! All but the logs appear whole or not at all. The directory is used by its descriptor, since the
//! shim changes what paths mean.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::process::{Identity, Pid};

pub(super) const PLAN: &str = "plan.json";
pub(super) const SHIM: &str = "shim.json";
pub(super) const EXIT: &str = "exit.json";
pub(super) const FROZEN: &str = "frozen";
/// The file in the record directory that holds what the program printed.
pub const LOG_FILE: &str = "output.log";
pub(super) const SHIM_LOG: &str = "shim.log";

/// Bytes that are kept for `exit.json` while the program runs, so that a full disk cannot take its
/// exit status; more than one ever needs.
const RESERVED: usize = 4096;

/// Longest record that is read; what is larger was not written by us.
const MAX_RECORD: u64 = 16 << 20;

/// `plan.json`: the plan and what was decided when it was started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Different for every attempt that ever was; marks its processes.
    pub(super) id: String,
    /// The cgroup made for it.
    pub(super) cgroup: Option<PathBuf>,
    pub(super) plan: Plan,
}

/// `shim.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShimRecord {
    pub(super) id: String,
    pub(super) boot: String,
    pub(super) shim: Identity,
    /// `None` until there is one.
    pub(super) program: Option<Identity>,
    pub(super) cgroup: Option<PathBuf>,
}

/// `exit.json`: how the program ended, written once everything it had started has ended as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// What ended it.
    pub status: ExitStatus,
    /// Whether the kernel ended a process of the attempt for want of memory, as far as cgroups
    /// tell; `false` where they do not.
    #[serde(default)]
    pub oom: bool,
    /// Whether the shim had told it to end, because whoever started it was gone: then a status of 0
    /// does not mean that it is done.
    #[serde(default)]
    pub told: bool,
    /// When the program, not yet all that it had started, ended.
    pub ended: Timestamp,
    /// Processes that could not be ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Pid>,
}

/// What ended a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitStatus {
    /// It returned this status, 0 to 255.
    Code(i32),
    /// A signal of this number.
    Signal(i32),
}

/// A record directory.
#[derive(Debug)]
pub(super) struct RecordDir {
    fd: OwnedFd,
}

impl RecordDir {
    /// Opens one, making it first where it is missing.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::set_permissions(path, Permissions::from_mode(0o700))?;
            }
            made => made?,
        }
        Self::open(path)
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Reads a record; `None` where there is none.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        let mut text = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut text)?;
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Whether a file of this name is there.
    pub(super) fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Makes a record appear, all at once and durably.
    pub(super) fn publish<T: Serialize>(&self, name: &str, record: &T) -> io::Result<()> {
        let staged = format!(".{name}");
        let mut file = self.create_file(&staged, OFlags::TRUNC)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        self.commit(&file, &staged, name)
    }

    /// Takes the disk space that [`publish_reserved`](Self::publish_reserved) will need.
    pub(super) fn reserve(&self, name: &str) -> io::Result<()> {
        let mut file = self.create_file(&format!(".{name}"), OFlags::TRUNC)?;
        file.write_all(&[b' '; RESERVED])?;
        file.sync_all()
    }

    /// As [`publish`](Self::publish), into the space that was reserved; blanks may follow.
    pub(super) fn publish_reserved<T: Serialize>(&self, name: &str, record: &T) -> io::Result<()> {
        let staged = format!(".{name}");
        let mut text = serde_json::to_vec(record)?;
        text.resize(text.len().max(RESERVED), b' ');
        let mut file = self.create_file(&staged, OFlags::empty())?;
        file.write_all(&text)?;
        self.commit(&file, &staged, name)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Opens a log at its end.
    pub(super) fn append(&self, name: &str) -> io::Result<File> {
        self.create_file(name, OFlags::APPEND)
    }

    fn create_file(&self, name: &str, extra: OFlags) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | extra;
        Ok(openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    fn commit(&self, file: &File, staged: &str, name: &str) -> io::Result<()> {
        file.sync_all()?;
        renameat(&self.fd, staged, &self.fd, name)?;
        rustix::fs::fsync(&self.fd)?; // The rename itself lives in the directory.
        Ok(())
    }
}

/// Names this run of the system; another after every boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A name that nothing else has or will have.
pub(super) fn unique_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_record_reads_back_and_leaves_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b");
        let dir = RecordDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        dir.reserve(EXIT).unwrap();
        assert_eq!(dir.read::<ExitRecord>(EXIT).unwrap(), None);
        let record = ExitRecord {
            status: ExitStatus::Signal(9),
            oom: true,
            told: false,
            ended: "2024-05-01T10:00:00Z".parse().unwrap(),
            left: vec![7],
        };
        dir.publish_reserved(EXIT, &record).unwrap();
        assert_eq!(dir.read(EXIT).unwrap(), Some(record));
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [EXIT]);
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_an_absent_one() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = RecordDir::create(scratch.path()).unwrap();
        fs::write(scratch.path().join(SHIM), "{\"id\":").unwrap();
        assert!(dir.read::<ShimRecord>(SHIM).is_err());
    }
}

//! A small file system of its own, in a file: for disks that are full.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system of a chosen size; unmounted when dropped.
#[derive(Debug)]
pub struct LoopFs {
    home: TempDir,
}

impl LoopFs {
    /// An ext4 of this many MiB.
    #[must_use]
    pub fn ext4(mib: u64) -> Self {
        Self::new(mib, &["mkfs.ext4", "-q", "-F", "-m", "0"])
    }

    /// An xfs of this many MiB; it needs at least 300.
    #[must_use]
    pub fn xfs(mib: u64) -> Self {
        Self::new(mib, &["mkfs.xfs", "-q", "-f"])
    }

    fn new(mib: u64, mkfs: &[&str]) -> Self {
        let home = TempDir::with_prefix("nodus-loop-").expect("a temporary directory");
        crate::ctl::readable_by_all(home.path());
        let file_system = Self { home };
        let image = file_system.home.path().join("image");
        File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("a sparse file");
        run(mkfs.iter().map(OsStr::new).chain([image.as_os_str()]));
        std::fs::create_dir(file_system.path()).expect("a new directory");
        let mount = ["mount", "-o", "loop"].map(OsStr::new);
        run(mount.into_iter().chain([image.as_os_str(), file_system.path().as_os_str()]));
        file_system
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.home.path().join("mnt")
    }

    /// Bytes that can still be written to it.
    #[must_use]
    pub fn free(&self) -> u64 {
        let now = rustix::fs::statvfs(self.path()).expect("a mounted file system");
        now.f_bavail * now.f_frsize
    }

    /// Takes it away from under whoever uses it, lazily.
    fn unmount(path: &Path) {
        let _ = Command::new("umount").arg("--lazy").arg(path).status();
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        Self::unmount(&self.path());
    }
}

fn run<'a>(words: impl Iterator<Item = &'a OsStr>) {
    let words: Vec<&OsStr> = words.collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {words:?}: {error}"));
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

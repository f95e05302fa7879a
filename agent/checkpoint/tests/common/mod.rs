//! A job with a state directory and a store, and how its checkpoints are read back.
#![allow(dead_code, reason = "not every test file needs all of it")]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nodus_checkpoint::Result;
use nodus_checkpoint::Root;
use nodus_checkpoint::archive::FrameReader;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::format::{CommitRecord, Entry, Kind};
use nodus_checkpoint::snapshot::{self, Asked, CaptureOptions, Captured, CommitInput, Finished};
use nodus_checkpoint::store::{Epoch, JobStore};
use nodus_protocol::checkpoint::Cause;

pub(crate) const UNASKED: Asked = Asked::NotAcked { request_open_at_death: false };

pub(crate) struct Job {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: JobStore,
    pub(crate) epoch: Epoch,
    pub(crate) options: CaptureOptions,
    pub(crate) control: Control,
    pub(crate) next: u64,
}

impl Job {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let store =
            JobStore::create(&dir.path().join("store"), &"train".parse().unwrap(), 0, now).unwrap();
        let epoch = store.begin_epoch(1, 1, "node", now).unwrap();
        let physical = dir.path().join("state");
        fs::create_dir(&physical).unwrap();
        let options = CaptureOptions {
            roots: vec![Root { path: PathBuf::from("/nodus/state"), dir: physical }],
            credentials: None,
            max_size: 1 << 50,
            threads: 2.try_into().unwrap(),
            open_for_writing: HashSet::new(),
            exclude: HashSet::new(),
        };
        Self { dir, store, epoch, options, control: Control::new(), next: 1 }
    }

    pub(crate) fn state(&self) -> &Path {
        &self.options.roots[0].dir
    }

    /// Writes a file below the state directory.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.state().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn capture(&mut self) -> Result<Captured> {
        self.next += 1;
        snapshot::capture(&self.store, &self.epoch, self.next - 1, &self.options, &self.control)
    }

    pub(crate) fn snapshot(&mut self) -> Result<Finished> {
        self.capture().and_then(|captured| finish(captured, UNASKED))
    }

    pub(crate) fn commit(&mut self) -> CommitRecord {
        committed(self.snapshot().unwrap())
    }

    /// Nothing but checkpoints is in the store.
    pub(crate) fn assert_no_leftovers(&self) {
        let names = fs::read_dir(self.store.checkpoints_dir()).unwrap();
        let hidden = |name: &std::ffi::OsStr| name.as_bytes().starts_with(b".");
        let left: Vec<_> =
            names.map(|entry| entry.unwrap().file_name()).filter(|name| hidden(name)).collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }

    pub(crate) fn entries(&self, record: &CommitRecord) -> Vec<Entry> {
        self.store.manifest(record.seq, record).unwrap().map(|entry| entry.unwrap()).collect()
    }

    pub(crate) fn paths(&self, record: &CommitRecord) -> Vec<String> {
        let path = |entry: &Entry| String::from_utf8_lossy(&entry.path).into_owned();
        self.entries(record).iter().map(path).collect()
    }

    /// The content of every regular file.
    pub(crate) fn contents(&self, record: &CommitRecord) -> BTreeMap<Vec<u8>, Vec<u8>> {
        contents_in(&self.store, record)
    }

    /// The checkpoint has exactly what the state directory has now.
    pub(crate) fn assert_same(&self, record: &CommitRecord) {
        let contents = self.contents(record);
        let entries = self.entries(record);
        let found: Vec<Vec<u8>> = entries.iter().map(|entry| entry.path.clone()).collect();
        let mut there = walkdir::WalkDir::new(self.state())
            .into_iter()
            .map(|entry| entry.unwrap().path().strip_prefix(self.state()).unwrap().to_owned())
            .map(|path| path.as_os_str().as_bytes().to_vec())
            .collect::<Vec<_>>();
        there.sort_by_key(|path| {
            path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        assert_eq!(found, there);
        for entry in &entries {
            self.assert_same_entry(entry, &contents);
        }
        assert_eq!(record.files, entries.len() as u64);
    }

    fn assert_same_entry(&self, entry: &Entry, contents: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let path = match entry.path.as_slice() {
            b"" => self.state().to_owned(),
            path => self.state().join(std::ffi::OsStr::from_bytes(path)),
        };
        let meta = fs::symlink_metadata(&path).unwrap();
        let stated = (entry.mode, entry.uid, entry.gid, entry.mtime.0, i64::from(entry.mtime.1));
        let real = (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec());
        assert_eq!(stated, real, "{}", path.display());
        match &entry.kind {
            Kind::File(file) => {
                assert_eq!(file.size, meta.len(), "{}", path.display());
                let same = contents[&entry.path] == fs::read(&path).unwrap();
                assert!(same, "the content of {}", path.display());
            }
            Kind::Symlink { target } => {
                assert_eq!(fs::read_link(&path).unwrap().as_os_str().as_bytes(), target);
            }
            Kind::Dir => assert!(meta.is_dir()),
            _ => assert!(!meta.is_file() && !meta.is_dir()),
        }
    }

    /// Unpacks the archive of a checkpoint with the system's tar; gives where its root is then.
    pub(crate) fn untar(&self, record: &CommitRecord) -> (tempfile::TempDir, PathBuf) {
        let (target, message) = self.run_tar(record);
        assert_eq!(message, "", "tar complains");
        let root = target.path().join("nodus/state");
        (target, root)
    }

    /// The same for any archive: where another name of a file in a base is new, only that is missed.
    pub(crate) fn untar_any(&self, record: &CommitRecord) -> (tempfile::TempDir, PathBuf) {
        if !self.store.archive_path(record.seq).exists() {
            let target = tempfile::tempdir().unwrap();
            let root = target.path().to_owned();
            return (target, root);
        }
        let (target, message) = self.run_tar(record);
        let known = |line: &str| {
            line.contains("Cannot hard link to") || line.contains("Exiting with failure status")
        };
        let expected = !record.bases.is_empty() && message.lines().all(known);
        assert!(message.is_empty() || expected, "tar: {message}");
        let root = target.path().join("nodus/state");
        (target, root)
    }

    fn run_tar(&self, record: &CommitRecord) -> (tempfile::TempDir, String) {
        let target = tempfile::tempdir().unwrap();
        let output = std::process::Command::new("tar")
            .args(["--zstd", "--xattrs", "--xattrs-include=*", "--warning=no-timestamp", "-xpf"])
            .arg(self.store.archive_path(record.seq))
            .arg("-C")
            .arg(target.path())
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        (target, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The content of every regular file, by path; those with several names under each.
pub(crate) fn contents_in(store: &JobStore, record: &CommitRecord) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let reader = FrameReader::new(store);
    let mut contents: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for entry in store.manifest(record.seq, record).unwrap() {
        let entry = entry.unwrap();
        let Kind::File(file) = &entry.kind else { continue };
        let at = |number: u64| usize::try_from(number).unwrap();
        let mut content = vec![0; at(file.size)];
        for chunk in &file.chunks {
            let frame = reader.read(&chunk.frame).unwrap();
            content[at(chunk.offset)..at(chunk.offset + chunk.len)]
                .copy_from_slice(&frame[at(chunk.skip)..at(chunk.skip + chunk.len)]);
        }
        if let Some(first) = &file.hardlink {
            content.clone_from(&contents[&first.1]);
        }
        contents.insert(entry.path, content);
    }
    contents
}

pub(crate) fn finish(captured: Captured, asked: Asked) -> Result<Finished> {
    let now = Timestamp::UNIX_EPOCH;
    captured.finish(&CommitInput {
        attempt: 1,
        cause: Cause::Interval,
        started: now,
        captured: now,
        asked,
        now: &|| Timestamp::UNIX_EPOCH,
    })
}

pub(crate) fn committed(finished: Finished) -> CommitRecord {
    match finished {
        Finished::Committed(record) => *record,
        Finished::Skipped(reason) => panic!("skipped: {reason}"),
    }
}

/// Bytes that do not compress, different for each seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A clock tick of the file system goes by, so that a file is no longer too fresh to be known.
pub(crate) fn age(path: &Path) {
    let changed = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
    let before = changed(&fs::metadata(path).unwrap());
    let scratch =
        tempfile::NamedTempFile::new_in(path.parent().unwrap().parent().unwrap()).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        fs::write(scratch.path(), b"x").unwrap();
        let now = changed(&fs::metadata(scratch.path()).unwrap());
        let nanoseconds = |(s, n): (i64, i64)| i128::from(s) * 1_000_000_000 + i128::from(n);
        if nanoseconds(now) - nanoseconds(before) > 30_000_000 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "the clock of the file system stands");
        std::thread::yield_now();
    }
}

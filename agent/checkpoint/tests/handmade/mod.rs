//! Checkpoints put together by hand, as no capture would make them.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use nodus_checkpoint::format::{CommitRecord, FORMAT, Hash};
use nodus_checkpoint::restore::RestoreOptions;
use nodus_checkpoint::store::JobStore;
use nodus_checkpoint::{Control, Root};
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{Cause, Consistency};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const JOB: &str = "train";

/// A store, a directory for targets, and a canary beside them.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
    pub(crate) store: JobStore,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let job: JobName = JOB.parse().unwrap();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let uid = rustix::process::geteuid().as_raw();
        let store = JobStore::create(&dir.path().join("store"), &job, uid, now).unwrap();
        fs::create_dir(dir.path().join("job")).unwrap();
        Self { dir, store }
    }

    /// Where the job's state is.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("job/state")
    }

    pub(crate) fn roots(&self) -> Vec<Root> {
        vec![Root { path: "/nodus/state".into(), dir: self.state() }]
    }

    pub(crate) fn restore(
        &self,
        seq: u64,
    ) -> nodus_checkpoint::Result<nodus_checkpoint::restore::RestoreReport> {
        self.restore_with(seq, &options())
    }

    pub(crate) fn restore_with(
        &self,
        seq: u64,
        options: &RestoreOptions,
    ) -> nodus_checkpoint::Result<nodus_checkpoint::restore::RestoreReport> {
        nodus_checkpoint::restore::restore(
            &self.store,
            seq,
            &self.roots(),
            options,
            &Control::new(),
        )
    }
}

pub(crate) fn options() -> RestoreOptions {
    RestoreOptions {
        credentials: None,
        threads: 2.try_into().unwrap(),
        only: None,
        strict: false,
        keep_privileges: false,
        standing: std::collections::HashSet::new(),
    }
}

/// A checkpoint in the making.
pub(crate) struct Handmade {
    pub(crate) seq: u64,
    pub(crate) roots: Vec<String>,
    pub(crate) bases: Vec<u64>,
    pub(crate) consistency: Consistency,
    archive: Vec<u8>,
    lines: Vec<Value>,
}

impl Handmade {
    /// With one root, which is a directory.
    pub(crate) fn new(seq: u64) -> Self {
        let mut made = Self::without_root(seq);
        made.add("", json!({"type": "dir", "mode": 0o755}));
        made
    }

    pub(crate) fn without_root(seq: u64) -> Self {
        Self {
            seq,
            roots: vec!["/nodus/state".to_owned()],
            bases: Vec::new(),
            consistency: Consistency::Acked,
            archive: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Adds an entry; what `fields` leaves out is filled in.
    pub(crate) fn add(&mut self, path: &str, fields: Value) -> &mut Self {
        let mut line = json!({
            "root": 0, "path": path, "mode": 0o644, "mtime": [1_700_000_000, 123_456_789],
            "uid": rustix::process::geteuid().as_raw(), "gid": rustix::process::getegid().as_raw(),
        });
        let Value::Object(fields) = fields else { panic!("fields are an object") };
        line.as_object_mut().unwrap().extend(fields);
        self.lines.push(line);
        self
    }

    pub(crate) fn dir(&mut self, path: &str) -> &mut Self {
        self.add(path, json!({"type": "dir", "mode": 0o755}))
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.add(path, json!({"type": "symlink", "mode": 0o777, "target": target}))
    }

    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> &mut Self {
        self.file_with(path, content, json!({}))
    }

    pub(crate) fn file_with(&mut self, path: &str, content: &[u8], fields: Value) -> &mut Self {
        let mut all = json!({"type": "file", "size": content.len()});
        if !content.is_empty() {
            let frame = self.frame(content);
            all["chunks"] = json!([chunk(0, content.len(), 0, &frame)]);
        }
        let Value::Object(fields) = fields else { panic!("fields are an object") };
        all.as_object_mut().unwrap().extend(fields);
        self.add(path, all)
    }

    /// Stores a frame; gives `[seq, at, stored, length, hash]`.
    pub(crate) fn frame(&mut self, content: &[u8]) -> Vec<Value> {
        let stored = zstd::bulk::compress(content, 1).unwrap();
        let at = self.archive.len();
        self.archive.extend_from_slice(&stored);
        let hash = Hash::of(content).to_string();
        [json!(self.seq), json!(at), json!(stored.len()), json!(content.len()), json!(hash)].into()
    }

    /// Puts it into the store.
    pub(crate) fn commit(&self, store: &JobStore) -> PathBuf {
        let header = json!({"format": 1, "seq": self.seq, "roots": self.roots});
        let lines = std::iter::once(&header).chain(&self.lines);
        let text: String = lines.map(line_text).collect();
        let manifest = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let record = CommitRecord {
            format: FORMAT,
            job: JOB.parse().unwrap(),
            seq: self.seq,
            attempt: 1,
            epoch: 1,
            cause: Cause::Interval,
            consistency: self.consistency,
            acked: self.consistency == Consistency::Acked,
            started: now,
            captured: now,
            committed: now,
            roots: self.roots.clone(),
            files: self.lines.len() as u64,
            bytes: self.lines.iter().filter_map(|line| line["size"].as_u64()).sum(),
            stored_bytes: (self.archive.len() + manifest.len()) as u64,
            archive_bytes: self.archive.len() as u64,
            bases: self.bases.clone(),
            manifest_bytes: manifest.len() as u64,
            manifest_blake3: Hash::of(&manifest),
            torn: Vec::new(),
            torn_count: 0,
            notes: Vec::new(),
        };
        let dir = store.checkpoint_dir(self.seq);
        fs::create_dir_all(&dir).unwrap();
        fs::write(store.archive_path(self.seq), &self.archive).unwrap();
        fs::write(store.manifest_path(self.seq), &manifest).unwrap();
        fs::write(dir.join("checkpoint.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        dir
    }
}

/// An entry's line begins with its root: one that begins with chunks continues the line before.
fn line_text(line: &Value) -> String {
    let mut fields = line.as_object().unwrap().clone();
    match fields.remove("root") {
        None => format!("{line}\n"),
        Some(root) => format!("{{\"root\":{root},{}\n", &Value::Object(fields).to_string()[1..]),
    }
}

/// A chunk of a file.
pub(crate) fn chunk(offset: usize, length: usize, skip: usize, frame: &[Value]) -> Value {
    let place = [json!(offset), json!(length), json!(skip)];
    Value::Array(place.into_iter().chain(frame.iter().cloned()).collect())
}

/// Every path below a directory with what it is, to see whether anything changed.
pub(crate) fn picture(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut all: Vec<String> = walkdir::WalkDir::new(dir)
        .sort_by_file_name()
        .into_iter()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.path().symlink_metadata().unwrap();
            let content = match meta.file_type() {
                kind if kind.is_file() => format!("{:?}", fs::read(entry.path()).unwrap()),
                kind if kind.is_symlink() => format!("{:?}", fs::read_link(entry.path()).unwrap()),
                _ => String::new(),
            };
            format!("{:?} {:o} {} {content}", entry.path(), meta.mode(), meta.ino())
        })
        .collect();
    all.sort();
    all
}

//! The measured process: one snapshot or one restore, and what it has to say of itself.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use jiff::Timestamp;
use nodus_checkpoint::restore::{RestoreOptions, restore};
use nodus_checkpoint::snapshot::{Asked, CaptureOptions, CommitInput, Finished, capture};
use nodus_checkpoint::store::JobStore;
use nodus_checkpoint::{Control, Root};
use nodus_protocol::checkpoint::Cause;

/// `snapshot STORE DIR SEQ` or `restore STORE DIR TO`.
pub(crate) fn main(arguments: &[String]) {
    match arguments {
        [verb, store, dir, seq] if verb == "snapshot" => {
            snapshot(Path::new(store), Path::new(dir), seq.parse().unwrap());
        }
        [verb, store, dir, to] if verb == "restore" => {
            back(Path::new(store), Path::new(dir), Path::new(to));
        }
        other => panic!("unknown arguments {other:?}"),
    }
    println!("memory_mib={:.1}", peak_memory("/proc/self/status"));
}

fn threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap()
}

fn snapshot(store: &Path, dir: &Path, seq: u64) {
    let now = Timestamp::now;
    let store = JobStore::create(store, &"bench".parse().unwrap(), 0, now()).unwrap();
    let epoch = match store.epochs().unwrap().last() {
        Some(record) => store.resume_epoch(record.epoch).unwrap(),
        None => store.begin_epoch(1, 1, "bench", now()).unwrap(),
    };
    let options = CaptureOptions {
        roots: vec![Root::plain(dir)],
        credentials: None,
        max_size: u64::MAX,
        threads: threads(),
        open_for_writing: Default::default(),
        exclude: Default::default(),
    };
    let (started, start) = (now(), Instant::now());
    let captured = capture(&store, &epoch, seq, &options, &Control::new()).unwrap();
    println!("captured_ms={:.3}", start.elapsed().as_secs_f64() * 1e3);
    let input = CommitInput {
        attempt: 1,
        cause: Cause::Request,
        started,
        captured: now(),
        asked: Asked::Acked,
        now: &now,
    };
    if let Finished::Committed(record) = captured.finish(&input).unwrap() {
        #[allow(clippy::cast_precision_loss)]
        let stored = record.stored_bytes as f64 / f64::from(1 << 20);
        println!("stored_mib={stored:.2}");
    }
}

fn back(store: &Path, dir: &Path, to: &Path) {
    let store = JobStore::open(store, &"bench".parse().unwrap()).unwrap().unwrap();
    let newest = store.list().unwrap().last().unwrap().seq();
    let roots = [Root { path: dir.to_owned(), dir: to.to_owned() }];
    let options = RestoreOptions::for_job(None, threads());
    restore(&store, newest, &roots, &options, &Control::new()).unwrap();
}

/// `VmHWM` of a process in MiB.
pub(crate) fn peak_memory(status: &str) -> f64 {
    field(status, "VmHWM:")
}

/// A field of `/proc/PID/status` that is in KiB, in MiB.
pub(crate) fn field(status: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(status).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

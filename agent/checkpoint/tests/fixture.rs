//! A store that an earlier build wrote, which every later one has to read.
//!
//! `fixtures/v1` has two checkpoints of job `train`: a full one, and an increment after seven bytes
//! of `model.bin` and the content of `step.json` had changed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::contents_in;
use nodus_checkpoint::format::{CommitRecord, Kind};
use nodus_checkpoint::store::{JobStore, Stored};

fn fixture() -> (JobStore, Vec<CommitRecord>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let store = JobStore::open(&root, &"train".parse().unwrap()).unwrap().unwrap();
    let good = |stored| match stored {
        Stored::Good { record, .. } => *record,
        Stored::Damaged { why, .. } => panic!("{why}"),
    };
    let records = store.list().unwrap().into_iter().map(good).collect();
    (store, records)
}

#[test]
fn version_1_stays_readable() {
    let (store, records) = fixture();
    let seqs: Vec<u64> = records.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, [1, 2]);
    assert_eq!(records[1].bases, [1]);
    let model: Vec<u8> = (0..9_000_000_u32).map(|at| (at / 1000).to_le_bytes()[0]).collect();
    let mut patched = model.clone();
    patched[5_000_000..5_000_007].copy_from_slice(b"patched");
    for (record, model, step) in [(&records[0], model, "1"), (&records[1], patched, "2")] {
        store.verify_manifest(record.seq, record).unwrap();
        let contents = contents_in(&store, record);
        assert!(contents[b"model.bin".as_slice()] == model, "seq {}", record.seq);
        assert!(contents[b"model.link".as_slice()] == model);
        assert_eq!(contents[b"bad\xFF".as_slice()], b"not text");
        assert_eq!(contents[b"step.json".as_slice()], format!("{{\"step\":{step}}}").as_bytes());
        let sparse = &contents[b"sparse".as_slice()];
        assert_eq!((sparse.len(), &sparse[5 << 20..][..4]), (8 << 20, b"data".as_slice()));
        let entries: Vec<_> =
            store.manifest(record.seq, record).unwrap().map(Result::unwrap).collect();
        let kind = |name: &[u8]| &entries.iter().find(|entry| entry.path == name).unwrap().kind;
        assert_eq!(*kind(b"empty"), Kind::Dir);
        assert_eq!(*kind(b"last"), Kind::Symlink { target: b"step.json".to_vec() });
    }
}

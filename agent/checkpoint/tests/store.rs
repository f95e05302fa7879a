//! The store through its public interface: jobs, epochs, numbers and leftovers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use nodus_checkpoint::Error;
use nodus_checkpoint::store::{JobStore, Stored};
use nodus_protocol::JobName;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn job(name: &str) -> JobName {
    name.parse().unwrap()
}

fn store(root: &Path) -> JobStore {
    JobStore::create(root, &job("train"), 1000, NOW).unwrap()
}

/// A commit record of `seq` as another process would have left it.
fn plant(store: &JobStore, seq: u64, epoch: u64) {
    let dir = store.checkpoint_dir(seq);
    fs::create_dir_all(&dir).unwrap();
    let zeros = "0".repeat(64);
    let record = format!(
        r#"{{"format":1,"job":"train","seq":{seq},"attempt":1,"epoch":{epoch},"cause":"Interval",
        "consistency":"Quiet","acked":false,"started":"{NOW}","captured":"{NOW}","committed":"{NOW}",
        "roots":["/s"],"files":1,"bytes":1,"storedBytes":1,"archiveBytes":1,"manifestBytes":1,
        "manifestBlake3":"{zeros}"}}"#
    );
    fs::write(dir.join("checkpoint.json"), record).unwrap();
}

fn seqs(store: &JobStore) -> Vec<u64> {
    store.list().unwrap().iter().map(Stored::seq).collect()
}

/// C11: the listing is in the order of numbers, whatever order the directory gives.
#[test]
fn c11_checkpoints_are_in_number_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for seq in [100_000, 9, 99_999, 10, 100, 99] {
        plant(&store, seq, 1);
    }
    fs::create_dir(store.checkpoint_dir(200_000)).unwrap();
    fs::create_dir(store.checkpoints_dir().join("0300000")).unwrap();
    assert_eq!(seqs(&store), [9, 10, 99, 100, 99_999, 100_000]);
    assert_eq!(store.highest_seq().unwrap(), 200_000, "an unfinished one uses its number up");
}

/// C13: numbers of a store that cannot be listed are never guessed.
#[test]
fn c13_an_unreadable_store_has_no_next_number() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, 3, 1);
    store.begin_epoch(1, 8, "n", NOW).unwrap();
    assert_eq!(store.highest_seq().unwrap(), 7, "an epoch that wrote nothing yet counts");
    fs::rename(store.checkpoints_dir(), dir.path().join("away")).unwrap();
    assert!(matches!(store.highest_seq(), Err(Error::Io { .. })));
    assert!(matches!(store.list(), Err(Error::Io { .. })));
}

/// C102: what an attempt writes after it was replaced does not exist, and it is told so.
#[test]
fn c102_a_replaced_attempt_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let old = store.begin_epoch(1, 1, "a", NOW).unwrap();
    plant(&store, 1, old.number());
    let new = store.begin_epoch(2, 2, "b", NOW).unwrap();
    plant(&store, 2, old.number());
    assert_eq!(seqs(&store), [1]);
    assert!(matches!(store.check_fence(&old), Err(Error::Fenced { ours: 1, current: 2 })));
    assert!(matches!(store.delete_checkpoint(&old, 1), Err(Error::Fenced { .. })));
    assert!(matches!(store.resume_epoch(1), Err(Error::Fenced { .. })));
    assert_eq!(store.resume_epoch(2).unwrap(), new);
    store.delete_checkpoint(&new, 1).unwrap();
    assert_eq!(seqs(&store), [0; 0]);
}

#[test]
fn a_record_that_does_not_fit_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, 1, 1);
    plant(&store, 2, 1);
    fs::write(store.checkpoint_dir(2).join("checkpoint.json"), "{").unwrap();
    fs::rename(store.checkpoint_dir(1), store.checkpoint_dir(4)).unwrap();
    let listed = store.list().unwrap();
    assert!(matches!(listed[..], [Stored::Damaged { seq: 2, .. }, Stored::Damaged { seq: 4, .. }]));
}

/// C16: a job's directory is nobody else's.
#[test]
fn c16_another_users_job_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    let error = JobStore::create(dir.path(), &job("train"), 1001, NOW).unwrap_err();
    assert!(error.to_string().contains("belong to user 1000, not to 1001"), "{error}");
    assert_eq!(JobStore::jobs(dir.path()).unwrap(), [job("train")]);
    assert!(JobStore::open(dir.path(), &job("other")).unwrap().is_none());
}

/// C49: the lock of a dead process is free, that of a live one is not; leftovers go.
#[test]
fn c49_leftovers_are_swept_by_the_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, 1, 1);
    fs::create_dir(store.checkpoints_dir().join(".2-abc")).unwrap();
    fs::write(store.checkpoints_dir().join(".2-abc/data-0.tar.zst"), "half").unwrap();
    fs::write(store.dir().join("epochs/.new-x"), "half").unwrap();
    let lock = store.lock().unwrap().unwrap();
    assert!(store.lock().unwrap().is_none(), "taken");
    assert_eq!(store.sweep(&lock).unwrap(), 2);
    assert_eq!(store.sweep(&lock).unwrap(), 0);
    assert_eq!(seqs(&store), [1]);
    drop(lock);
    assert!(store.lock().unwrap().is_some());
    store.delete_job().unwrap();
    fs::create_dir_all(dir.path().join("jobs/.gone-x/checkpoints/1")).unwrap();
    JobStore::sweep_deleted(dir.path()).unwrap();
    assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
}

//! Snapshots of files that do not stand still.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{Job, UNASKED, age, committed, finish, noise};
use nodus_checkpoint::Error;
use nodus_checkpoint::snapshot::Asked;
use nodus_protocol::checkpoint::Consistency;

const MIB: usize = 1 << 20;

/// Runs `disturb` over and over until the guard is dropped.
struct Disturbance<'scope> {
    stop: &'scope AtomicBool,
}

impl Drop for Disturbance<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn disturbed<T>(mut disturb: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (stop, started) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    thread::scope(|scope| {
        let _end = Disturbance { stop: &stop };
        scope.spawn(|| {
            disturb();
            started.wait();
            while !stop.load(Ordering::Relaxed) {
                disturb();
            }
        });
        started.wait();
        work()
    })
}

/// After the capture the program replaces, removes and rewrites: the checkpoint has what was.
#[test]
fn the_program_goes_on_after_the_capture() {
    let mut job = Job::new();
    job.write("small", "old");
    job.write("replaced", noise(1, 3 * MIB));
    job.write("removed", noise(2, 3 * MIB));
    let in_place = job.write("data.db", [b"SQLite format 3\0".as_slice(), &noise(3, MIB)].concat());
    let before = fs::read(&in_place).unwrap();
    let captured = job.capture().unwrap();
    job.write("small", "new");
    fs::rename(job.write("tmp", noise(9, 3 * MIB)), job.state().join("replaced")).unwrap();
    fs::remove_file(job.state().join("removed")).unwrap();
    File::options().write(true).open(&in_place).unwrap().write_all_at(&[0; 4096], 0).unwrap();
    let record = committed(finish(captured, Asked::Acked).unwrap());
    let contents = job.contents(&record);
    assert_eq!(contents[b"small".as_slice()], b"old");
    assert!(contents[b"replaced".as_slice()] == noise(1, 3 * MIB));
    assert!(contents[b"removed".as_slice()] == noise(2, 3 * MIB));
    assert!(contents[b"data.db".as_slice()] == before);
    assert_eq!(record.consistency, Consistency::Acked);
}

/// A file that was written in place before is copied inside the capture the next time.
#[test]
fn a_file_written_in_place_is_learned() {
    let mut job = Job::new();
    let path = job.write("log", vec![1; MIB]);
    job.commit();
    let append = || {
        File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[2; 1000]))
    };
    append().unwrap();
    let expected = fs::read(&path).unwrap();
    let captured = job.capture().unwrap();
    append().unwrap();
    let record = committed(finish(captured, Asked::Acked).unwrap());
    assert!(job.contents(&record)[b"log".as_slice()] == expected);
    assert_eq!(record.consistency, Consistency::Acked);
}

/// C06: a program that was killed in the middle of a save leaves a torn checkpoint.
#[test]
fn c06_killed_before_the_ack() {
    let mut job = Job::new();
    job.write("last.ckpt", noise(1, MIB / 2));
    let died = Asked::NotAcked { request_open_at_death: true };
    let captured = job.capture().unwrap();
    let record = committed(finish(captured, died).unwrap());
    assert_eq!((record.consistency, record.acked), (Consistency::Torn, false));
    // The same files, seen quiet, are stored again: a torn checkpoint does not stand for them.
    let record = committed(job.capture().and_then(|captured| finish(captured, UNASKED)).unwrap());
    assert_eq!(record.consistency, Consistency::Quiet);
}

/// C24 (2): a file that changed after the capture and then stands still is of one moment.
#[test]
fn c24_a_writer_that_stops() {
    let mut job = Job::new();
    let path = job.write("log.bin", vec![0; 8 * MIB]);
    let captured = job.capture().unwrap();
    fs::write(&path, vec![1; 8 * MIB]).unwrap();
    let record = committed(finish(captured, UNASKED).unwrap());
    let content = &job.contents(&record)[b"log.bin".as_slice()];
    assert!(content.iter().all(|&byte| byte == content[0]), "two kinds of bytes");
    assert_eq!(record.consistency, Consistency::Torn, "nobody said that it was complete");
    assert_eq!((record.torn, record.torn_count), (vec!["/nodus/state/log.bin".to_owned()], 1));
}

/// C24 (3): a file that never stands still ends, and is told apart, whoever acknowledged.
#[test]
fn c24_a_writer_that_never_stops() {
    const TRIES: usize = 50;
    let mut job = Job::new();
    let path = job.write("log.bin", vec![0; 16 * MIB]);
    job.write("other", noise(1, MIB));
    let file = File::options().write(true).open(&path).unwrap();
    let mut round = 0_u8;
    let write = || {
        round = round.wrapping_add(1);
        file.write_all_at(&[round; 512], 0).unwrap();
        file.write_all_at(&[round; 512], 15 << 20).unwrap();
    };
    // The writer may by chance not run during one pass, and then the file did stand still.
    let torn = disturbed(write, || {
        let snapshot = |_| {
            let captured = job.capture().unwrap();
            committed(finish(captured, Asked::Acked).unwrap())
        };
        (0..TRIES).map(snapshot).find(|record| record.consistency == Consistency::Torn)
    });
    let record = torn.unwrap();
    assert_eq!(
        (record.acked, record.torn.as_slice()),
        (true, ["/nodus/state/log.bin".to_owned()].as_slice())
    );
    let entries = job.entries(&record);
    let modified = |name: &str| {
        let entry = entries.iter().find(|entry| entry.path == name.as_bytes()).unwrap();
        entry.file().unwrap().modified_during_copy
    };
    assert!(modified("log.bin") && !modified("other"));
    assert!(job.contents(&record)[b"other".as_slice()] == noise(1, MIB));
}

/// C36: a file that becomes shorter and longer under the copy leaves a well-formed archive.
#[test]
fn c36_a_file_that_shrinks() {
    let mut job = Job::new();
    let path = job.write("a.bin", noise(1, 9 * MIB));
    job.write("b.bin", noise(2, 3 * MIB));
    let file = File::options().write(true).open(&path).unwrap();
    let mut long = true;
    let resize = || {
        long = !long;
        file.set_len(if long { 9 << 20 } else { 1 << 20 }).unwrap();
    };
    let captured = job.capture().unwrap();
    let record = disturbed(resize, || committed(finish(captured, Asked::Acked).unwrap()));
    let contents = job.contents(&record);
    assert!(contents[b"b.bin".as_slice()] == noise(2, 3 * MIB));
    let (_target, root) = job.untar(&record);
    assert_eq!(
        fs::metadata(root.join("a.bin")).unwrap().len(),
        contents[b"a.bin".as_slice()].len() as u64
    );
    assert!(fs::read(root.join("b.bin")).unwrap() == noise(2, 3 * MIB));
}

/// A checkpoint that has something new, whether or not the disturbance got to run.
fn commit_round(job: &mut Job, round: usize) -> nodus_checkpoint::format::CommitRecord {
    job.write("round", round.to_string());
    job.commit()
}

/// C25: files that come and go are counted, never an error, and never an entry without content.
#[test]
fn c25_files_that_vanish() {
    let mut job = Job::new();
    job.write("keep.bin", noise(1, 100_000));
    let state = job.state().to_owned();
    let mut round = 0_u64;
    let churn = || {
        let names: Vec<_> =
            (0..8).map(|name| state.join(format!("tmp-{round}-{name}.part"))).collect();
        round += 1;
        names.iter().for_each(|path| fs::write(path, "short-lived").unwrap());
        names.iter().for_each(|path| fs::remove_file(path).unwrap());
    };
    let records: Vec<_> =
        disturbed(churn, || (0..5).map(|round| commit_round(&mut job, round)).collect());
    for record in &records {
        assert_eq!(job.contents(record)[b"keep.bin".as_slice()], noise(1, 100_000));
        let vanished =
            record.notes.iter().any(|note| note.contains("vanished while they were listed"));
        let partly = record.torn.contains(&"/nodus/state".to_owned());
        assert!(!vanished || partly, "{:?}", record.torn);
    }
}

/// C02: a directory that the trainer removes during the walk does not fail the checkpoint.
#[test]
fn c02_a_directory_is_rotated_away() {
    let mut job = Job::new();
    let state = job.state().to_owned();
    (0..10).for_each(|file| drop(job.write(&format!("checkpoint-200/{file}"), noise(file, 5000))));
    let rotate = || {
        let old = state.join("checkpoint-100");
        fs::create_dir(&old).unwrap();
        (0..50).for_each(|file| fs::write(old.join(file.to_string()), "x").unwrap());
        fs::remove_dir_all(&old).unwrap();
    };
    let records: Vec<_> =
        disturbed(rotate, || (0..5).map(|round| commit_round(&mut job, round)).collect());
    for record in &records {
        let contents = job.contents(record);
        (0..10).for_each(|file| {
            let name = format!("checkpoint-200/{file}");
            assert!(contents[name.as_bytes()] == noise(file, 5000));
        });
    }
}

/// Somebody who holds a file open for writing makes an unasked checkpoint torn, an acked one not.
#[test]
fn open_for_writing_is_not_quiet() {
    let mut job = Job::new();
    let path = job.write("log", "x");
    let meta = fs::metadata(&path).unwrap();
    job.options.open_for_writing.insert((meta.dev(), meta.ino()));
    let record = job.commit();
    assert_eq!(
        (record.consistency, record.torn),
        (Consistency::Torn, vec!["/nodus/state/log".to_owned()])
    );
    let captured = job.capture().unwrap();
    let record = committed(finish(captured, Asked::Acked).unwrap());
    assert_eq!((record.consistency, record.torn_count), (Consistency::Acked, 0));
}

/// C51: on a full file system that checkpoint fails, its space comes back, and the next commits.
#[test]
fn c51_a_full_store() {
    let mut job = Job::new();
    let store_root = job.store.root().to_owned();
    let _mounted = match Mounted::tmpfs(&store_root, "size=24m") {
        Ok(mounted) => mounted,
        Err(error) => return eprintln!("skipped: no right to mount: {error}"),
    };
    let now = jiff::Timestamp::UNIX_EPOCH;
    job.store =
        nodus_checkpoint::store::JobStore::create(&store_root, job.store.job(), 0, now).unwrap();
    job.epoch = job.store.begin_epoch(1, 1, "node", now).unwrap();
    job.write("model", noise(1, 8 * MIB));
    let first = job.commit();
    let free = || rustix::fs::statvfs(&store_root).unwrap().f_bfree;
    let before = free();
    job.write("model", noise(2, 40 * MIB));
    let error = job.snapshot().unwrap_err();
    let Error::NoSpace { path, needed, .. } = &error else { panic!("{error}") };
    assert!(path.starts_with(&store_root) && *needed == 40 << 20, "{error}");
    assert_eq!(free(), before);
    job.assert_no_leftovers();
    assert!(job.contents(&first)[b"model".as_slice()] == noise(1, 8 * MIB));
    job.write("model", noise(3, 8 * MIB));
    let third = job.commit();
    assert!(job.contents(&third)[b"model".as_slice()] == noise(3, 8 * MIB));
}

struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(path: &Path, options: &str) -> rustix::io::Result<Self> {
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", path, "tmpfs", flags, options.as_c_str())?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// As the job's user, a capture reads what that user may read, and clones beside its files.
#[test]
fn c35_files_are_read_as_the_jobs_user() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root becomes another user");
    }
    let mut job = Job::new();
    job.write("private", noise(1, 300_000));
    for path in [job.dir.path(), job.state(), &job.state().join("private")] {
        std::os::unix::fs::chown(path, Some(4242), Some(4242)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(path, mode).unwrap();
    }
    let (uid, gid) = (4242, 4242);
    job.options.credentials = Some(nodus_checkpoint::Credentials { uid, gid, groups: vec![gid] });
    age(job.state());
    let record = job.commit();
    job.assert_same(&record);
    let entry = &job.entries(&record)[1];
    assert_eq!((entry.uid, entry.gid), (4242, 4242));
    // The store itself stays closed to that user, and is used all the same.
    job.write("step", "2");
    std::os::unix::fs::chown(job.state().join("step"), Some(4242), Some(4242)).unwrap();
    assert_eq!(job.commit().bases, [1]);
}

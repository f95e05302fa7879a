//! Capture, archive and commit through the public interface.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use common::{Job, UNASKED, age, committed, finish, noise};
use nodus_checkpoint::format::{CommitRecord, Kind};
use nodus_checkpoint::snapshot::{Asked, Finished, object_of};
use nodus_checkpoint::store::Stored;
use nodus_checkpoint::{Error, Root};
use nodus_protocol::checkpoint::{Consistency, Skipped};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};

const MIB: usize = 1 << 20;

fn set_mtime(path: &Path, tv_sec: i64, tv_nsec: i64) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn assert_skipped(finished: &Finished, expected: Skipped) {
    assert!(matches!(finished, Finished::Skipped(reason) if *reason == expected), "{finished:?}");
}

/// Bytes of new data that a checkpoint brought.
fn new_data(record: &CommitRecord) -> u64 {
    record.archive_bytes
}

#[test]
fn a_plain_tree_is_committed_whole() {
    let mut job = Job::new();
    job.write("step.json", b"{\"step\":1}");
    job.write("empty", b"");
    job.write("a/b/model.bin", noise(1, 9 * MIB + 77));
    job.write("a.b", vec![7; 200 << 10]);
    fs::create_dir(job.state().join("none")).unwrap();
    symlink("step.json", job.state().join("last")).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    job.assert_no_leftovers();
    assert_eq!((record.consistency, record.acked), (Consistency::Quiet, false));
    assert_eq!(record.bytes, 10 + 9 * (MIB as u64) + 77 + (200 << 10));
    assert_eq!(record.bases, [0; 0]);
}

/// What tar makes of the archive of a full checkpoint has the same attributes, links and holes.
#[test]
fn c38_tar_unpacks_a_full_checkpoint() {
    let mut job = Job::new();
    let long = "x".repeat(120);
    job.write(&format!("{long}/{long}/small"), b"deep");
    job.write(&format!("{long}/{long}/large"), noise(2, 5 * MIB));
    fs::hard_link(job.write("x/data", noise(3, MIB)), job.state().join("x.alias")).unwrap();
    symlink(&long, job.state().join("to-long")).unwrap();
    let sparse = fs::File::create(job.state().join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"start", 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", (8 << 30) - 1).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"y", 8 << 30).unwrap();
    fs::File::create(job.state().join("hole")).unwrap().set_len(3 << 20).unwrap();
    job.write("z-after", b"behind the large one");
    let ro = job.state().join("ro");
    job.write("ro/file", b"r");
    fs::set_permissions(ro.join("file"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(&ro, fs::Permissions::from_mode(0o555)).unwrap();
    set_mtime(&ro, 978_307_200, 5);
    let record = job.commit();
    let (_target, root) = job.untar(&record);
    for path in job.paths(&record) {
        compare(&job.state().join(&path), &root.join(&path));
    }
    let (a, b) = (root.join("x/data"), root.join("x.alias"));
    assert_eq!(fs::metadata(a).unwrap().ino(), fs::metadata(b).unwrap().ino());
    let unpacked = fs::metadata(root.join("sparse")).unwrap();
    assert_eq!(unpacked.len(), (8 << 30) + 1);
    assert!(unpacked.blocks() * 512 < 64 << 20, "{} blocks", unpacked.blocks());
    fs::set_permissions(&ro, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Two entries are alike in type, mode, time to the nanosecond, target, and content up to 32 MiB.
fn compare(expected: &Path, found: &Path) {
    let (a, b) = (fs::symlink_metadata(expected).unwrap(), fs::symlink_metadata(found).unwrap());
    let attributes = |m: &fs::Metadata| (m.mode(), m.mtime(), m.mtime_nsec(), m.uid(), m.gid());
    assert_eq!(attributes(&a), attributes(&b), "{}", found.display());
    if a.is_symlink() {
        assert_eq!(fs::read_link(expected).unwrap(), fs::read_link(found).unwrap());
    } else if a.is_file() && a.len() < 32 << 20 {
        assert!(fs::read(expected).unwrap() == fs::read(found).unwrap(), "{}", found.display());
    }
}

/// C11: the newest is the one with the highest number.
#[test]
fn c11_numbers_over_text() {
    let mut job = Job::new();
    for seq in [9, 10, 99, 100, 99_999, 100_000] {
        job.next = seq;
        job.write("step", seq.to_string());
        job.commit();
    }
    let listed: Vec<u64> = job.store.list().unwrap().iter().map(Stored::seq).collect();
    assert_eq!(listed, [9, 10, 99, 100, 99_999, 100_000]);
}

/// C13: an old number is never written again, and the old content stays.
#[test]
fn c13_a_number_that_exists_is_refused() {
    let mut job = Job::new();
    job.write("f", "one");
    let first = job.commit();
    job.write("f", "two");
    job.next = 1;
    assert!(matches!(job.snapshot(), Err(Error::Refused(_))));
    assert_eq!(job.contents(&first)[b"f".as_slice()], b"one");
    job.assert_no_leftovers();
    assert_eq!(job.store.highest_seq().unwrap(), 1);
}

#[test]
fn unchanged_is_skipped_and_leaves_nothing() {
    let mut job = Job::new();
    job.write("small", "s");
    job.write("large", noise(1, 5 * MIB));
    age(job.state());
    job.commit();
    assert_skipped(&job.snapshot().unwrap(), Skipped::Unchanged);
    // A new inode with the same attributes and bytes is no change either.
    let (old, new) = (job.state().join("large"), job.dir.path().join("new"));
    let mtime = fs::metadata(&old).unwrap();
    let dir = fs::metadata(job.state()).unwrap();
    fs::copy(&old, &new).unwrap();
    set_mtime(&new, mtime.mtime(), mtime.mtime_nsec());
    fs::rename(&new, &old).unwrap();
    set_mtime(job.state(), dir.mtime(), dir.mtime_nsec());
    assert_skipped(&job.snapshot().unwrap(), Skipped::Unchanged);
    job.assert_no_leftovers();
    fs::remove_file(job.state().join("small")).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    assert_eq!((new_data(&record) < 2048, record.bases), (true, vec![1]));
}

/// C22: the old mtime put back over new bytes of the same length hides nothing.
#[test]
fn c22_same_size_and_mtime() {
    let mut job = Job::new();
    for (name, size) in [("small", 4096), ("large", MIB)] {
        let path = job.write(name, vec![0; size]);
        set_mtime(&path, 1_700_000_000, 5);
    }
    age(&job.state().join("large"));
    job.commit();
    for (name, size) in [("small", 4096), ("large", MIB)] {
        let path = job.write(name, vec![1; size]);
        set_mtime(&path, 1_700_000_000, 5);
    }
    let record = job.commit();
    job.assert_same(&record);
}

/// C23: new modes and links of old content cost next to nothing.
#[test]
fn c23_only_attributes_changed() {
    let mut job = Job::new();
    for file in 0..20 {
        job.write(&format!("f{file}"), noise(file, MIB));
    }
    job.commit();
    for file in 0..20 {
        let path = job.state().join(format!("f{file}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, job.state().join(format!("link{file}"))).unwrap();
    }
    fs::rename(job.state().join("f7"), job.state().join("moved")).unwrap();
    let record = job.commit();
    assert!(new_data(&record) < MIB as u64, "{} bytes", new_data(&record));
    assert_eq!(record.bases, [1]);
    job.assert_same(&record);
}

/// An increment stores the frames that changed, and tar still unpacks it, as parts.
#[test]
fn an_increment_stores_changed_frames_only() {
    let mut job = Job::new();
    let mut content = noise(1, 40 * MIB);
    let path = job.write("model", &content);
    job.write("other", "same");
    let full = job.commit();
    content[9 * MIB] ^= 1;
    content[30 * MIB] ^= 1;
    fs::write(&path, &content).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    assert!((8 * MIB as u64..9 * MIB as u64).contains(&new_data(&record)), "{}", new_data(&record));
    let (_target, root) = job.untar(&full);
    let (_increment, parts) = job.untar(&record);
    let mut rescued = fs::read(root.join("model")).unwrap();
    for (offset, length) in [(8 * MIB, 4 * MIB), (28 * MIB, 4 * MIB)] {
        let part = fs::read(parts.join(format!("model.nodus-part.{offset:020}"))).unwrap();
        assert_eq!(part.len(), length);
        rescued[offset..offset + length].copy_from_slice(&part);
    }
    assert!(rescued == content, "put together by hand");
}

/// C31: neither a store inside the state directory nor another name of it gets into checkpoints.
#[test]
fn c31_the_store_inside_the_state() {
    let mut job = Job::new();
    job.options.roots[0].dir = job.dir.path().to_owned();
    job.write("state/f", noise(1, 300_000));
    symlink("store", job.state().join("way-in")).unwrap();
    for round in 0..5 {
        job.write("state/step", round.to_string());
        let record = job.commit();
        assert_eq!(job.paths(&record), ["", "state", "state/f", "state/step", "way-in"]);
        assert!(record.bytes < 301_000 && record.notes[0].contains("/nodus/state/store"));
    }
    job.options.roots[0].dir = job.store.root().to_owned();
    assert!(matches!(job.snapshot(), Err(Error::Refused(_))));
}

/// C32: directories of the agent's own are left out, by what they are and not by their name.
#[test]
fn c32_the_agents_own_files() {
    let mut job = Job::new();
    job.write("f", "x");
    job.write("agent/lock", "1");
    job.options.exclude.extend(object_of(&job.state().join("agent")));
    fs::rename(job.state().join("agent"), job.state().join("renamed")).unwrap();
    let record = job.commit();
    assert_eq!(job.paths(&record), ["", "f"]);
}

/// C34: an emptied directory never replaces what was there, nor is it ever good.
#[test]
fn c34_an_empty_state() {
    let mut job = Job::new();
    fs::create_dir(job.state().join("dir")).unwrap();
    job.write("zero", b"");
    assert_skipped(&job.snapshot().unwrap(), Skipped::Empty);
    job.write("f", "x");
    let good = job.commit();
    fs::remove_dir_all(job.state()).unwrap();
    assert_skipped(&job.snapshot().unwrap(), Skipped::Empty);
    fs::create_dir(job.state()).unwrap();
    for asked in [UNASKED, Asked::Acked] {
        let captured = job.capture().unwrap();
        assert!(captured.is_empty());
        assert_skipped(&finish(captured, asked).unwrap(), Skipped::Empty);
    }
    assert_eq!(job.store.list().unwrap().len(), 1);
    assert_eq!(job.contents(&good)[b"f".as_slice()], b"x");
    job.assert_no_leftovers();
}

/// C39: names, targets and values that are not text.
#[test]
fn c39_bytes_that_are_not_utf8() {
    let mut job = Job::new();
    for name in [b"bad\xFF.pt", b"bad\xFE.pt"] {
        let path = job.state().join(std::ffi::OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        let value = rustix::fs::setxattr(&path, "user.raw", b"a\0b\xFF", XattrFlags::empty());
        value.unwrap();
    }
    let target = std::ffi::OsStr::from_bytes(b"to\xFF");
    symlink(target, job.state().join("link")).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    let entries = job.entries(&record);
    let value = &entries[1].xattrs.0[b"user.raw".as_slice()];
    assert_eq!(value, b"a\0b\xFF");
    let (_target, root) = job.untar(&record);
    let unpacked = root.join(std::ffi::OsStr::from_bytes(b"bad\xFE.pt"));
    assert_eq!(fs::read(&unpacked).unwrap(), b"bad\xFE.pt");
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&unpacked, "user.raw", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"a\0b\xFF");
    assert_eq!(fs::read_link(root.join("link")).unwrap(), target);
}

/// C43: times before 1970, fractions, and far ahead; and none of them makes a file look changed.
#[test]
fn c43_times() {
    let mut job = Job::new();
    let times =
        [(-1, 0), (-2, 500_000_000), (0, 0), (1_700_000_000, 123_456_789), (7_258_118_400, 0)];
    for (index, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        set_mtime(&job.write(&format!("f{index}"), "x"), seconds, nanoseconds);
    }
    age(&job.state().join("f4"));
    let record = job.commit();
    job.assert_same(&record);
    let (_target, root) = job.untar(&record);
    (0..5).for_each(|index| {
        let name = format!("f{index}");
        compare(&job.state().join(&name), &root.join(&name));
    });
    assert_skipped(&job.snapshot().unwrap(), Skipped::Unchanged);
}

/// C27: nothing special is opened, so nothing blocks; each is listed.
#[test]
fn c27_fifos_sockets_and_devices() {
    let mut job = Job::new();
    job.write("f", "x");
    rustix::fs::mkfifoat(CWD, job.state().join("fifo"), Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(job.state().join("socket")).unwrap();
    let device = rustix::fs::FileType::CharacterDevice;
    let made = rustix::fs::mknodat(
        CWD,
        job.state().join("zero"),
        device,
        Mode::RWXU,
        rustix::fs::makedev(1, 5),
    );
    let record = job.commit();
    let kinds: Vec<Kind> =
        job.entries(&record).into_iter().skip(1).map(|entry| entry.kind).collect();
    assert!(matches!(kinds[..3], [Kind::File(_), Kind::Fifo, Kind::Socket]));
    assert_eq!(made.is_ok(), kinds.get(3) == Some(&Kind::CharDev));
    assert!(record.notes[0].contains("neither file, directory nor link: /nodus/state/fifo"));
}

/// C10, C28: links are links, wherever they lead.
#[test]
fn c28_links_are_never_followed() {
    let mut job = Job::new();
    job.write("a/f", "x");
    fs::create_dir(job.state().join("b")).unwrap();
    symlink("..", job.state().join("a/up")).unwrap();
    symlink(".", job.state().join("b/self")).unwrap();
    symlink("last.ckpt", job.state().join("last.ckpt")).unwrap();
    symlink("step_300", job.state().join("step_latest")).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    assert_eq!(record.files, 8);
}

/// C28: what is mounted below a path is not the job's.
#[test]
fn c28_mounts_are_not_crossed() {
    let mut job = Job::new();
    job.write("f", "x");
    let inner = job.state().join("c/m");
    fs::create_dir_all(&inner).unwrap();
    let bind = rustix::mount::mount_bind(job.state(), &inner);
    let Ok(()) = bind else { return eprintln!("skipped: no right to mount: {bind:?}") };
    let snapshot = job.snapshot();
    rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
    let record = committed(snapshot.unwrap());
    assert_eq!(job.paths(&record), ["", "c", "c/m", "f"]);
    assert!(record.notes[0].contains("/nodus/state/c/m"), "{:?}", record.notes);
}

/// C29: a file that may not be read fails the checkpoint, and names it.
#[test]
fn c29_an_unreadable_file() {
    let mut job = Job::new();
    job.write("good", "x");
    let bad = job.write("bad", "x");
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o000)).unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [job.dir.path(), job.state(), &job.state().join("good")] {
            std::os::unix::fs::chown(path, Some(4242), Some(4242)).unwrap();
        }
        let (uid, gid) = (4242, 4242);
        job.options.credentials =
            Some(nodus_checkpoint::Credentials { uid, gid, groups: Vec::new() });
    }
    let error = job.snapshot().unwrap_err();
    assert_eq!(error.chain(), "cannot open /nodus/state/bad: Permission denied (os error 13)");
    job.assert_no_leftovers();
    fs::remove_file(bad).unwrap();
    let record = job.commit();
    assert_eq!(job.paths(&record), ["", "good"]);
}

#[test]
fn larger_than_allowed_while_walking_and_while_copying() {
    let mut job = Job::new();
    job.options.max_size = 3 * MIB as u64;
    job.write("a", noise(1, 2 * MIB));
    job.commit();
    job.write("b", noise(2, 2 * MIB));
    assert!(matches!(job.snapshot(), Err(Error::TooLarge { limit: 3_145_728, .. })));
    fs::remove_file(job.state().join("b")).unwrap();
    let a = job.write("c", noise(3, 500_000));
    let captured = job.capture().unwrap();
    fs::File::options().append(true).open(a).unwrap().set_len(3 << 20).unwrap();
    assert!(matches!(finish(captured, UNASKED), Err(Error::TooLarge { .. })));
    job.assert_no_leftovers();
    assert_eq!(job.store.list().unwrap().len(), 1);
}

#[test]
fn cancelled_and_dropped_ones_leave_nothing() {
    let mut job = Job::new();
    job.write("a", noise(1, 2 * MIB));
    drop(job.capture().unwrap());
    job.assert_no_leftovers();
    let captured = job.capture().unwrap();
    job.control.cancel();
    assert!(matches!(finish(captured, UNASKED), Err(Error::Cancelled)));
    job.assert_no_leftovers();
    assert!(job.store.list().unwrap().is_empty());
}

/// C102: an attempt that was replaced while it copied cannot commit any more.
#[test]
fn c102_fenced_between_capture_and_commit() {
    let mut job = Job::new();
    job.write("a", noise(1, 2 * MIB));
    let captured = job.capture().unwrap();
    job.epoch = job.store.begin_epoch(2, 1, "other", jiff::Timestamp::UNIX_EPOCH).unwrap();
    assert!(matches!(finish(captured, UNASKED), Err(Error::Fenced { ours: 1, current: 2 })));
    job.assert_no_leftovers();
    // What a cut-off attempt left under a number gives way to its successor.
    fs::create_dir(job.store.checkpoint_dir(2)).unwrap();
    let record = job.commit();
    assert_eq!((record.seq, record.epoch), (2, 2));
    job.assert_same(&record);
}

/// C26: several names of one file are one file, also where the first is in another root.
#[test]
fn c26_hard_links() {
    let mut job = Job::new();
    let other = job.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    job.options.roots.push(Root { path: PathBuf::from("/nodus/other"), dir: other.clone() });
    fs::hard_link(job.write("x/data", noise(1, MIB)), other.join("alias")).unwrap();
    fs::hard_link(job.write("small", "s"), job.state().join("again")).unwrap();
    let record = job.commit();
    let names: Vec<(u16, String, bool)> = job
        .entries(&record)
        .iter()
        .map(|entry| {
            let linked = entry.file().is_some_and(|file| file.hardlink.is_some());
            (entry.root, String::from_utf8(entry.path.clone()).unwrap(), linked)
        })
        .collect();
    let expected = [
        (0, "", false),
        (0, "again", false),
        (0, "small", true),
        (0, "x", false),
        (0, "x/data", false),
        (1, "", false),
        (1, "alias", true),
    ];
    assert_eq!(names, expected.map(|(root, path, linked)| (root, path.to_owned(), linked)));
    assert_eq!(record.bytes, MIB as u64 + 1, "content counts once");
}

/// A checkpoint that is known to be damaged is not built upon.
#[test]
fn c46_damaged_archives_are_not_reused() {
    let mut job = Job::new();
    job.write("large", noise(1, 5 * MIB));
    job.write("small", "s");
    age(job.state());
    job.commit();
    job.write("step", "2");
    let second = job.commit();
    assert_eq!(second.bases, [1]);
    let outcomes = r#"{"format":1,"damaged":["frame at 0 of seq 1"]}"#;
    fs::write(job.store.checkpoint_dir(2).join("outcomes.json"), outcomes).unwrap();
    job.write("step", "3");
    let third = job.commit();
    assert_eq!(third.bases, [0; 0], "the archive of a damaged one and its bases are not used");
    job.assert_same(&third);
}

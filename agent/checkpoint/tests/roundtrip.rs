//! Trees as nobody would want them, through snapshots, retention, restore, export and verify.
#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Job;
use nodus_checkpoint::export::export;
use nodus_checkpoint::format::{Entry, Kind};
use nodus_checkpoint::outcomes::{Ended, record_attempt};
use nodus_checkpoint::restore::{RestoreOptions, restore, restore_newest};
use nodus_checkpoint::retention::{Contents, Policy, Situation, Step, execute, plan};
use nodus_checkpoint::snapshot::Finished;
use nodus_checkpoint::store::Stored;
use nodus_checkpoint::verify::verify;
use nodus_checkpoint::{Control, Root};
use nodus_protocol::checkpoint::Skipped;
use proptest::prelude::*;
use rustix::fs::{AtFlags, Timespec, Timestamps, XattrFlags};

const FRAME: u64 = 4 << 20;

/// Sizes around every boundary there is.
const SIZES: [u64; 13] = [
    0,
    1,
    511,
    512,
    513,
    5000,
    (128 << 10) - 1,
    128 << 10,
    (128 << 10) + 1,
    FRAME - 1,
    FRAME,
    FRAME + 1,
    2 * FRAME + 513,
];

/// Names as bytes; the last one is as long as a name may be.
const NAMES: [&[u8]; 9] = [
    b"a",
    b"b.c",
    b"b",
    b"with space",
    b"bad\xFF.pt",
    b"bad\xFE.pt",
    b"50%\n",
    "\u{dc}ber".as_bytes(),
    &[b'x'; 255],
];

const TIMES: [(i64, u32); 5] =
    [(-1, 0), (-2, 500_000_000), (0, 0), (1_700_000_000, 123_456_789), (7_258_118_400, 1)];

/// One thing that happens to the tree. `at` picks a directory or an entry among those there are.
#[derive(Clone, Debug)]
enum Change {
    File { at: usize, name: usize, size: usize, seed: u64 },
    Sparse { at: usize, name: usize, holes: Vec<bool> },
    Patch { at: usize, offset: u64, seed: u64 },
    Truncate { at: usize, size: usize },
    Dir { at: usize, name: usize },
    Symlink { at: usize, name: usize, target: usize },
    HardLink { at: usize, name: usize, to: usize },
    Fifo { at: usize, name: usize },
    Xattr { at: usize, value: Vec<u8> },
    Mode { at: usize, mode: usize },
    Time { at: usize, time: usize },
    Rename { at: usize, name: usize, to: usize },
    Remove { at: usize },
}

fn any_change() -> impl Strategy<Value = Change> {
    use Change::*;
    let at = || 0..1000_usize;
    let name = || 0..NAMES.len();
    prop_oneof![
        4 => (at(), name(), 0..SIZES.len(), any::<u64>())
            .prop_map(|(at, name, size, seed)| File { at, name, size, seed }),
        1 => (at(), name(), proptest::collection::vec(any::<bool>(), 0..12))
            .prop_map(|(at, name, holes)| Sparse { at, name, holes }),
        2 => (at(), 0..2 * FRAME, any::<u64>())
            .prop_map(|(at, offset, seed)| Patch { at, offset, seed }),
        1 => (at(), 0..SIZES.len()).prop_map(|(at, size)| Truncate { at, size }),
        3 => (at(), name()).prop_map(|(at, name)| Dir { at, name }),
        2 => (at(), name(), 0..6_usize).prop_map(|(at, name, target)| Symlink { at, name, target }),
        2 => (at(), name(), at()).prop_map(|(at, name, to)| HardLink { at, name, to }),
        1 => (at(), name()).prop_map(|(at, name)| Fifo { at, name }),
        2 => (at(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(at, value)| Xattr { at, value }),
        2 => (at(), 0..6_usize).prop_map(|(at, mode)| Mode { at, mode }),
        2 => (at(), 0..TIMES.len()).prop_map(|(at, time)| Time { at, time }),
        1 => (at(), name(), at()).prop_map(|(at, name, to)| Rename { at, name, to }),
        1 => at().prop_map(|at| Remove { at }),
    ]
}

/// Bytes that compress or do not, as the seed says.
fn content(length: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    match seed % 3 {
        0 => blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes),
        1 => bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 100 % 64) as u8),
        _ => {}
    }
    bytes
}

fn entries(state: &Path, wanted: impl Fn(&fs::FileType) -> bool) -> Vec<PathBuf> {
    let all = walkdir::WalkDir::new(state).sort_by_file_name().into_iter();
    // What may not be listed is not changed either.
    let all = all.filter_map(Result::ok).filter(|entry| wanted(&entry.file_type()));
    all.map(walkdir::DirEntry::into_path).collect()
}

/// Does what can be done; a change that does not fit what is there is none.
fn apply(state: &Path, change: &Change) -> std::io::Result<()> {
    let dirs = entries(state, fs::FileType::is_dir);
    let files = entries(state, fs::FileType::is_file);
    let all = entries(state, |kind| !kind.is_fifo());
    let none = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let pick = |of: &[PathBuf], at: usize| of.get(at % of.len().max(1)).cloned().ok_or_else(none);
    let new = |at: usize, name: usize| -> std::io::Result<PathBuf> {
        let path = pick(&dirs, at)?.join(OsString::from_vec(NAMES[name].to_vec()));
        // Opening a FIFO would wait for a reader, and a link may lead out of the tree.
        let kind = path.symlink_metadata().map(|meta| meta.file_type());
        let leads_away = kind.is_ok_and(|kind| kind.is_fifo() || kind.is_symlink());
        // The tests themselves use paths as a whole.
        if leads_away || path.as_os_str().len() > 2000 { Err(none()) } else { Ok(path) }
    };
    match change {
        Change::File { at, name, size, seed } => {
            fs::write(new(*at, *name)?, content(SIZES[*size], *seed))
        }
        Change::Sparse { at, name, holes } => {
            let file = File::create(new(*at, *name)?)?;
            for (number, _) in holes.iter().enumerate().filter(|(_, is_hole)| !**is_hole) {
                let bytes = content(300 << 10, 3 * number as u64);
                file.write_all_at(&bytes, number as u64 * (1 << 20) + 777)?;
            }
            file.set_len((holes.len() as u64) << 20)
        }
        Change::Patch { at, offset, seed } => {
            let file = File::options().write(true).open(pick(&files, *at)?)?;
            let length = file.metadata()?.len().max(1);
            file.write_all_at(&content(100, 3 * (seed % 1000)), offset % length)
        }
        Change::Truncate { at, size } => {
            File::options().write(true).open(pick(&files, *at)?)?.set_len(SIZES[*size])
        }
        Change::Dir { at, name } => fs::create_dir(new(*at, *name)?),
        Change::Symlink { at, name, target } => {
            let targets: [&[u8]; 6] =
                [b"a", b"../b", b"/nodus/state", b"missing\xFF", NAMES[*name], &[b'y'; 300]];
            symlink(OsString::from_vec(targets[*target].to_vec()), new(*at, *name)?)
        }
        Change::HardLink { at, name, to } => fs::hard_link(pick(&files, *to)?, new(*at, *name)?),
        Change::Fifo { at, name } => {
            let path = new(*at, *name)?;
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600))?;
            Ok(())
        }
        Change::Xattr { at, value } => {
            let path = pick(&all, *at)?;
            let name = if value.len() % 2 == 0 { "user.tag" } else { "user.a=b%\u{fc}" };
            Ok(rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())?)
        }
        Change::Mode { at, mode } => {
            let path = pick(&all, *at)?;
            let kind = path.symlink_metadata()?.file_type();
            // Nobody but root can capture what its owner may not read.
            let floor = if rustix::process::geteuid().is_root() { 0 } else { 0o500 };
            let modes = match kind.is_dir() {
                true => [0o755, 0o555, 0o700, 0o1777, 0o2775, 0],
                false => [0o644, 0o444, 0o600, 0o755, 0o1600, 0],
            };
            match kind.is_symlink() {
                true => Ok(()),
                false => fs::set_permissions(path, Permissions::from_mode(modes[*mode] | floor)),
            }
        }
        Change::Time { at, time } => {
            let (tv_sec, nanos) = TIMES[*time];
            let time = Timespec { tv_sec, tv_nsec: nanos.into() };
            let times = Timestamps { last_access: time, last_modification: time };
            let path = pick(&all, *at)?;
            Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        Change::Rename { at, name, to } => fs::rename(pick(&all, *at)?, new(*to, *name)?),
        Change::Remove { at } => {
            let path = pick(&all, *at)?;
            match path.symlink_metadata()?.is_dir() {
                true if path == state => Ok(()),
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            }
        }
    }
}

/// All that must come back of an entry.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    kind: char,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path that is the same file.
    same_as: Vec<u8>,
    size: u64,
    /// The hash of a file's content, or a link's target.
    content: Vec<u8>,
}

/// Every entry below a directory, by its path as bytes.
fn picture(root: &Path) -> BTreeMap<Vec<u8>, Facts> {
    let mut first: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry.unwrap();
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let meta = path.symlink_metadata().unwrap();
        let kind = match meta.file_type() {
            kind if kind.is_dir() => 'd',
            kind if kind.is_symlink() => 'l',
            kind if kind.is_file() => 'f',
            _ => continue, // Never made.
        };
        let content = match kind {
            'f' => {
                let mut hasher = blake3::Hasher::new();
                std::io::copy(&mut File::open(path).unwrap(), &mut hasher).unwrap();
                hasher.finalize().as_bytes().to_vec()
            }
            'l' => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let same_as = first.entry((meta.dev(), meta.ino())).or_insert_with(|| name.clone());
        let facts = Facts {
            kind,
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            xattrs: xattrs(path),
            same_as: same_as.clone(),
            size: if kind == 'f' { meta.len() } else { 0 },
            content,
        };
        all.insert(name, facts);
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn assert_same(found: &BTreeMap<Vec<u8>, Facts>, expected: &BTreeMap<Vec<u8>, Facts>, what: &str) {
    let paths = |picture: &BTreeMap<Vec<u8>, Facts>| picture.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(found), paths(expected), "{what}");
    for (path, facts) in found {
        assert_eq!(facts, &expected[path], "{what}: {}", path.escape_ascii());
    }
}

fn options() -> RestoreOptions {
    RestoreOptions {
        credentials: None,
        threads: 2.try_into().unwrap(),
        only: None,
        strict: true,
        keep_privileges: false,
        standing: std::collections::HashSet::new(),
    }
}

fn restore_to(job: &Job, seq: u64, to: &Path) {
    let roots = [Root { path: "/nodus/state".into(), dir: to.to_owned() }];
    let report = restore(&job.store, seq, &roots, &options(), &Control::new()).unwrap();
    assert_eq!(report.seq, seq);
}

/// Removes a tree whatever its modes are.
fn remove(dir: &Path) {
    for sub in entries(dir, fs::FileType::is_dir) {
        fs::set_permissions(&sub, Permissions::from_mode(0o755)).unwrap();
    }
    fs::remove_dir_all(dir).unwrap();
}

/// The checkpoint comes back as it was, by a restore and by GNU tar, and its hashes are right.
fn check(job: &Job, seq: u64, expected: &BTreeMap<Vec<u8>, Facts>) {
    let to = job.dir.path().join("restored");
    restore_to(job, seq, &to);
    assert_same(&picture(&to), expected, &format!("restore of {seq}"));
    remove(&to);

    let report = verify(&job.store, seq, None, 2.try_into().unwrap(), &Control::new()).unwrap();
    assert_eq!(report.problems, [], "verify of {seq}");

    let archive = job.dir.path().join("export.tar.zst");
    let file = File::create(&archive).unwrap();
    let written = export(&job.store, seq, &file, &Control::new()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), written);
    // Without root, GNU tar cannot give attributes to files that may not be written.
    if rustix::process::geteuid().is_root() {
        unpack(&archive, &to);
        assert_same(&picture(&to.join("nodus/state")), expected, &format!("export of {seq}"));
        remove(&to);
    }
}

fn unpack(archive: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--zstd", "--xattrs", "--xattrs-include=user.*", "--numeric-owner", "-xpf"]);
    let output = tar.arg(archive).arg("-C").arg(to).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
}

fn retain(job: &Job, keep_last: u32) -> Vec<Step> {
    let policy = Policy { keep_last, retain_after_finish: std::time::Duration::ZERO };
    let contents = Contents::read(&job.store).unwrap();
    let steps = plan(&contents, &policy, Situation::Running);
    for &step in &steps {
        execute(&job.store, &job.epoch, step).unwrap();
    }
    steps
}

fn story(rounds: &[Vec<Change>], keep_last: u32) {
    let mut job = Job::new();
    let mut pictures = BTreeMap::new();
    for changes in rounds {
        for change in changes {
            // One that does not fit is none; see `apply`.
            let _ = apply(job.state(), change);
        }
        match job.snapshot().unwrap() {
            Finished::Committed(record) => {
                pictures.insert(record.seq, picture(job.state()));
            }
            Finished::Skipped(Skipped::Empty) => {
                assert!(picture(job.state()).values().all(|facts| facts.size == 0));
            }
            Finished::Skipped(Skipped::Unchanged) => {
                let (seq, newest) = pictures.iter().next_back().unwrap();
                assert_same(&picture(job.state()), newest, &format!("unchanged since {seq}"));
            }
        }
        retain(&job, keep_last);
    }
    let kept: Vec<u64> = job.store.list().unwrap().iter().map(Stored::seq).collect();
    let newest: Vec<u64> = pictures.keys().rev().take(kept.len()).rev().copied().collect();
    assert_eq!(kept, newest);
    assert!(kept.len() >= pictures.len().min(keep_last as usize));
    for seq in &kept {
        check(&job, *seq, &pictures[seq]);
    }
    // In place, over what the program left there.
    for seq in &kept {
        restore_to(&job, *seq, job.state());
        assert_same(&picture(job.state()), &pictures[seq], &format!("{seq} in place"));
    }
    if let Some(Stored::Good { record, .. }) = job.store.list().unwrap().last() {
        let is_fifo = |entry: &Entry| matches!(entry.kind, Kind::Fifo);
        let had_fifos = job.entries(record).iter().any(is_fifo);
        match job.snapshot().unwrap() {
            Finished::Skipped(skipped) => assert_eq!(skipped, Skipped::Unchanged),
            // FIFOs are noted and never made, which is a difference.
            Finished::Committed(_) => assert!(had_fifos),
        }
    }
    remove(job.state());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_kept_checkpoint_comes_back_whole(
        first in proptest::collection::vec(any_change(), 1..40),
        later in proptest::collection::vec(proptest::collection::vec(any_change(), 0..12), 0..5),
        keep_last in 2..4_u32,
    ) {
        let mut rounds = vec![first];
        rounds.extend(later);
        story(&rounds, keep_last);
    }
}

#[test]
fn c43_after_a_restore_nothing_is_stored_again() {
    let mut job = Job::new();
    job.write("small", "small");
    job.write("large", content(2 * FRAME + 5, 3));
    let seq = job.commit().seq;
    let before = picture(job.state());
    let to = job.dir.path().join("elsewhere");
    restore_to(&job, seq, &to);
    fs::remove_dir_all(job.state()).unwrap();
    fs::rename(&to, job.state()).unwrap();
    assert_same(&picture(job.state()), &before, "restored");
    assert_eq!(job.snapshot().unwrap(), Finished::Skipped(Skipped::Unchanged));
}

#[test]
fn c45_the_base_of_a_kept_increment_stays_as_long_as_it_is_needed() {
    let mut job = Job::new();
    for number in 0..10 {
        job.write(&format!("f{number}"), content(300 << 10, 3 * number));
    }
    let mut pictures = BTreeMap::new();
    for round in 0..6_u64 {
        job.write("f3", format!("round {round}"));
        let record = job.commit();
        pictures.insert(record.seq, picture(job.state()));
        retain(&job, 2);
        let listed = job.store.list().unwrap();
        assert!(listed.len() <= 2);
        for stored in &listed {
            let to = job.dir.path().join("restored");
            restore_to(&job, stored.seq(), &to);
            assert_same(&picture(&to), &pictures[&stored.seq()], "kept");
            fs::remove_dir_all(&to).unwrap();
        }
        let needed = listed.iter().flat_map(|stored| stored.bases().iter().copied());
        let mut expected: Vec<u64> = needed.chain(listed.iter().map(Stored::seq)).collect();
        expected.sort_unstable();
        expected.dedup();
        let contents = Contents::read(&job.store).unwrap();
        let kept = listed.iter().map(Stored::seq);
        let mut found: Vec<u64> = contents.retired.iter().copied().chain(kept).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "nothing else is left");
    }
    assert_eq!(retain(&job, 2), [], "and nothing is left to do");
    for retired in Contents::read(&job.store).unwrap().retired {
        let names = fs::read_dir(job.store.checkpoint_dir(retired)).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["data-0.tar.zst"], "of a retired one only the archive stays");
    }
}

#[test]
fn c46_verify_names_what_is_bad_and_marks_all_that_share_it() {
    let mut job = Job::new();
    job.write("large", content(2 * FRAME, 3));
    job.write("small", "one");
    let first = job.commit();
    job.write("small", "two");
    let second = job.commit();
    assert_eq!(second.bases, [first.seq]);
    let threads = 2.try_into().unwrap();
    let look = |job: &Job, seq| verify(&job.store, seq, Some(&job.epoch), threads, &Control::new());
    let report = look(&job, second.seq).unwrap();
    assert_eq!((report.problems.len(), report.bytes), (0, second.bytes));

    let archive = job.store.archive_path(first.seq);
    let frame = job
        .entries(&first)
        .iter()
        .find(|entry| entry.path == b"large")
        .map(|entry| entry.chunks()[1].frame)
        .unwrap();
    let intact = fs::read(&archive).unwrap();
    let mut rotten = intact.clone();
    rotten[usize::try_from(frame.at + frame.stored / 2).unwrap()] ^= 4;
    fs::write(&archive, rotten).unwrap();
    let report = look(&job, second.seq).unwrap();
    let [problem] = report.problems.as_slice() else { panic!("{:?}", report.problems) };
    assert_eq!(problem.frame, Some(frame));
    assert_eq!(problem.paths, ["/nodus/state/large"]);
    let damaged = |job: &Job| {
        let listed = job.store.list().unwrap();
        listed
            .iter()
            .filter(|stored| {
                matches!(stored.standing(), nodus_checkpoint::stored::Standing::Damaged(_))
            })
            .map(Stored::seq)
            .collect::<Vec<_>>()
    };
    assert_eq!(damaged(&job), [first.seq, second.seq]);
    // The next one builds on neither.
    let third = job.commit();
    assert_eq!(third.bases, [0; 0]);
    assert_eq!(look(&job, third.seq).unwrap().problems, []);

    fs::write(&archive, intact).unwrap();
    for seq in [first.seq, second.seq] {
        assert_eq!(look(&job, seq).unwrap().problems, []);
    }
    assert_eq!(damaged(&job), [0; 0], "what is whole again loses the mark");
}

#[test]
fn c32_what_a_restore_left_in_the_target_is_not_captured() {
    let mut job = Job::new();
    job.write("kept", "kept");
    job.write(".nodus-restore-0123456789abcdef/half", "half");
    let record = job.commit();
    assert_eq!(job.paths(&record), ["", "kept"]);
    restore_to(&job, record.seq, job.state());
    assert_eq!(fs::read_dir(job.state()).unwrap().count(), 1, "and the next restore removes it");
}

#[test]
fn c12_after_two_failures_the_one_before_is_restored() {
    let mut job = Job::new();
    job.write("step", "11");
    let good = job.commit().seq;
    job.write("step", "12");
    let poison = job.commit().seq;
    let to = job.dir.path().join("restored");
    let roots = [Root { path: "/nodus/state".into(), dir: to.clone() }];
    let newest = |job: &Job| {
        restore_newest(&job.store, Some(&job.epoch), &roots, &options(), &Control::new()).unwrap()
    };
    for (attempt, is_suspect) in [(2, false), (3, true)] {
        assert_eq!(newest(&job).seq, poison);
        let found = record_attempt(&job.store, &job.epoch, poison, attempt, Ended::Failed).unwrap();
        assert_eq!(found, is_suspect, "after attempt {attempt}");
    }
    let report = newest(&job);
    assert_eq!((report.seq, report.passed_over[0].seq), (good, poison));
    assert_eq!(fs::read(to.join("step")).unwrap(), b"11");
    let listed: Vec<u64> = job.store.list().unwrap().iter().map(Stored::seq).collect();
    assert_eq!(listed, [good, poison], "being suspect deletes nothing");

    let later = job.store.begin_epoch(4, 3, "node", jiff::Timestamp::UNIX_EPOCH).unwrap();
    let late = record_attempt(&job.store, &job.epoch, good, 4, Ended::Failed);
    assert!(matches!(late, Err(nodus_checkpoint::Error::Fenced { .. })));
    let steps = execute(&job.store, &job.epoch, Step::Remove(good));
    assert!(matches!(steps, Err(nodus_checkpoint::Error::Fenced { .. })), "deleting is writing");
    record_attempt(&job.store, &later, good, 4, Ended::Progressed).unwrap();
}

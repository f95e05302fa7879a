//! Archives of every released format, kept for ever: each must restore to what it always did.
#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod common;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use common::Job;
use nodus_checkpoint::format::text::escape;
use nodus_checkpoint::restore::{RestoreOptions, restore};
use nodus_checkpoint::store::{JobStore, Stored};
use nodus_checkpoint::verify::verify_all;
use nodus_checkpoint::{Control, Root};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(format!("v{version}-restored"))
}

/// What a restore must give back, one line an entry.
fn listing(root: &Path) -> String {
    let mut text = String::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry.unwrap();
        let path = entry.path();
        let meta = path.symlink_metadata().unwrap();
        let what = match meta.file_type() {
            kind if kind.is_symlink() => {
                format!("-> {}", escape(fs::read_link(path).unwrap().as_os_str().as_bytes()))
            }
            kind if kind.is_dir() => "/".to_owned(),
            _ => {
                let mut hasher = blake3::Hasher::new();
                std::io::copy(&mut File::open(path).unwrap(), &mut hasher).unwrap();
                let hash = hasher.finalize().to_hex();
                format!("{} bytes {} links {}", meta.len(), &hash[..32], meta.nlink())
            }
        };
        let mut tag = [0; 100];
        let tag = rustix::fs::lgetxattr(path, "user.tag", &mut tag[..])
            .map_or_else(|_| String::new(), |length| format!(" tag {:?}", &tag[..length]));
        let name = escape(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
        let (mode, seconds, nanos) = (meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec());
        // The mode of a link is no more than a habit of the file system.
        let mode = if meta.is_symlink() { 0o777 } else { mode };
        writeln!(text, "{name:?} {mode:o} {seconds}+{nanos} {what}{tag}").unwrap();
    }
    text
}

fn options() -> RestoreOptions {
    RestoreOptions {
        credentials: None,
        threads: 2.try_into().unwrap(),
        only: None,
        strict: false, // The owners that were recorded may not be to give here.
        keep_privileges: false,
        standing: std::collections::HashSet::new(),
    }
}

fn restored(store: &JobStore, seq: u64) -> String {
    let home = tempfile::tempdir().unwrap();
    let to = home.path().join("state");
    let roots = [Root { path: "/nodus/state".into(), dir: to.clone() }];
    restore(store, seq, &roots, &options(), &Control::new()).unwrap();
    listing(&to)
}

#[test]
fn format_1_restores_as_it_always_did() {
    let dir = fixture(1);
    let store = JobStore::open(&dir.join("store"), &"train".parse().unwrap()).unwrap().unwrap();
    let seqs: Vec<u64> = store.list().unwrap().iter().map(Stored::seq).collect();
    assert_eq!(seqs, [1, 2]);
    for seq in seqs {
        let expected = fs::read_to_string(dir.join(format!("{seq}.txt"))).unwrap();
        assert_eq!(restored(&store, seq), expected, "checkpoint {seq}");
    }
    for report in verify_all(&store, None, 2.try_into().unwrap(), &Control::new()).unwrap() {
        assert_eq!(report.problems, []);
    }
}

/// Everything the format has a way to say, in a few kilobytes.
fn fill(job: &Job) {
    let state = job.state();
    job.write("small", "small\n");
    job.write("empty", "");
    job.write("sub/deep/large", (0..5 << 20).map(|n| (n / 4096) as u8).collect::<Vec<_>>());
    fs::hard_link(state.join("sub/deep/large"), state.join("sub/other name of large")).unwrap();
    for byte in [0xFE, 0xFF] {
        let name = OsString::from_vec([b"bad", &[byte][..], b".pt"].concat());
        fs::write(state.join(name), [byte]).unwrap();
    }
    let sparse = File::create(state.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 1000], 3 << 20).unwrap();
    sparse.write_all_at(&[8; 200_000], 9 << 20).unwrap();
    sparse.set_len((64 << 20) + 1).unwrap();
    symlink("sub/deep", state.join("link")).unwrap();
    symlink("missing\u{fc}", state.join("dangling")).unwrap();
    fs::create_dir(state.join("nothing in it")).unwrap();
    fs::set_permissions(state.join("small"), Permissions::from_mode(0o440)).unwrap();
    for path in ["small", "sub"] {
        let (name, value) = ("user.tag", [0, 255, b'=']);
        rustix::fs::setxattr(state.join(path), name, &value, XattrFlags::empty()).unwrap();
    }
}

fn set_times(state: &Path) {
    for (number, entry) in (0..).zip(walkdir::WalkDir::new(state).sort_by_file_name()) {
        let time = Timespec { tv_sec: number * 100_000_000 - 150_000_000, tv_nsec: number + 1 };
        let times = Timestamps { last_access: time, last_modification: time };
        let path = entry.unwrap().into_path();
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Makes the fixture of the format that is written now. Only for a format that has none yet.
#[test]
#[ignore = "writes into the source tree"]
fn make() {
    let dir = fixture(nodus_checkpoint::format::FORMAT);
    assert!(!dir.exists(), "a fixture is never made anew: {}", dir.display());
    let mut job = Job::new();
    fill(&job);
    set_times(job.state());
    let first = (job.commit().seq, listing(job.state()));
    let large = File::options().write(true).open(job.state().join("sub/deep/large")).unwrap();
    large.write_all_at(b"changed", (4 << 20) + 5).unwrap();
    job.write("small two", "two");
    fs::remove_dir(job.state().join("nothing in it")).unwrap();
    set_times(job.state());
    let second = (job.commit().seq, listing(job.state()));
    fs::create_dir_all(&dir).unwrap();
    let copied =
        std::process::Command::new("cp").arg("-r").arg(job.store.root()).arg(&dir).status();
    assert!(copied.unwrap().success());
    for (seq, text) in [first, second] {
        fs::write(dir.join(format!("{seq}.txt")), text).unwrap();
    }
}

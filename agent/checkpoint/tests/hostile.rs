//! Any tree at all: what a checkpoint and its increments hold is what was there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use common::{Job, noise};
use nodus_checkpoint::snapshot::Finished;
use proptest::prelude::*;

/// Something that is done to a tree; what is not possible is left.
#[derive(Clone, Debug)]
enum Act {
    File { path: PathBuf, size: usize, seed: u64 },
    Sparse { path: PathBuf, at: u64 },
    Patch { path: PathBuf, at: u64 },
    Dir { path: PathBuf },
    Symlink { path: PathBuf, target: PathBuf },
    Link { path: PathBuf, from: PathBuf },
    Rename { path: PathBuf, to: PathBuf },
    Mode { path: PathBuf, mode: u32 },
    Remove { path: PathBuf },
}

fn name() -> impl Strategy<Value = PathBuf> {
    let names: &[&[u8]] = &[
        b"a",
        b"b",
        b"a.b",
        b"bad\xFF",
        b"50%",
        b"new\nline",
        b" ",
        b"...",
        b"-wal",
        &[b'n'; 255],
    ];
    proptest::sample::select(names)
        .prop_map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

fn path() -> impl Strategy<Value = PathBuf> {
    proptest::collection::vec(name(), 1..4).prop_map(|names| names.into_iter().collect())
}

fn act() -> impl Strategy<Value = Act> {
    let size =
        prop_oneof![Just(0), 1usize..5000, Just(128 << 10), Just(4 << 20), 100_000usize..9_000_000];
    prop_oneof![
        4 => (path(), size, 0u64..4).prop_map(|(path, size, seed)| Act::File { path, size, seed }),
        1 => (path(), 0u64..30 << 20).prop_map(|(path, at)| Act::Sparse { path, at }),
        2 => (path(), 0u64..9_000_000).prop_map(|(path, at)| Act::Patch { path, at }),
        2 => path().prop_map(|path| Act::Dir { path }),
        1 => (path(), path()).prop_map(|(path, target)| Act::Symlink { path, target }),
        2 => (path(), path()).prop_map(|(path, from)| Act::Link { path, from }),
        2 => (path(), path()).prop_map(|(path, to)| Act::Rename { path, to }),
        1 => (path(), 0u32..0o1000).prop_map(|(path, mode)| Act::Mode { path, mode: mode | 0o600 }),
        1 => path().prop_map(|path| Act::Remove { path }),
    ]
}

fn perform(state: &Path, act: &Act) -> std::io::Result<()> {
    let prepare = |path: &Path| {
        let path = state.join(path);
        fs::create_dir_all(path.parent().unwrap()).map(|()| path)
    };
    match act {
        Act::File { path, size, seed } => fs::write(prepare(path)?, noise(*seed, *size)),
        Act::Sparse { path, at } => {
            let file = File::create(prepare(path)?)?;
            file.write_all_at(b"data", *at)?;
            file.set_len(at + 3_000_000)
        }
        Act::Patch { path, at } => {
            File::options().write(true).open(state.join(path))?.write_all_at(b"patched", *at)
        }
        Act::Dir { path } => fs::create_dir_all(state.join(path)),
        Act::Symlink { path, target } => symlink(target, prepare(path)?),
        Act::Link { path, from } => fs::hard_link(state.join(from), prepare(path)?),
        Act::Rename { path, to } => fs::rename(state.join(path), prepare(to)?),
        Act::Mode { path, mode } => {
            let path = state.join(path);
            if fs::symlink_metadata(&path)?.is_symlink() {
                return Ok(());
            }
            let mode = if path.is_dir() { mode | 0o100 } else { *mode };
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        }
        Act::Remove { path } => fs::remove_file(state.join(path)),
    }
}

/// Everything below a directory: type, mode, time, and content or target.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt as _;
    let entries = walkdir::WalkDir::new(dir).into_iter().map(|entry| entry.unwrap().into_path());
    let look = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = match meta.file_type() {
            kind if kind.is_file() => fs::read(&path).unwrap(),
            kind if kind.is_symlink() => {
                fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        let below = path.strip_prefix(dir).unwrap().to_owned();
        (below, (meta.mode(), meta.mtime(), meta.mtime_nsec(), content))
    };
    entries.map(look).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn checkpoints_are_the_tree(rounds in proptest::collection::vec(proptest::collection::vec(act(), 1..12), 1..5)) {
        let mut job = Job::new();
        let mut first = true;
        for acts in &rounds {
            for act in acts {
                // What cannot be done to this tree is simply not done.
                let _ = perform(job.state(), act);
            }
            let Finished::Committed(record) = job.snapshot().unwrap() else { continue };
            job.assert_same(&record);
            let (_target, root) = job.untar_any(&record);
            if std::mem::take(&mut first) {
                let same = picture(&root) == picture(job.state());
                prop_assert!(same, "what tar unpacks differs");
            }
        }
        job.assert_no_leftovers();
    }
}

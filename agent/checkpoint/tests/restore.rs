//! Restoring: what comes back, what stays, and what is left when it cannot be done.
#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod handmade;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use handmade::{Handmade, Home, chunk, options, picture};
use nodus_checkpoint::restore::{About, RestoreOptions, RestoreReport, restore, restore_newest};
use nodus_checkpoint::snapshot::object_of;
use nodus_checkpoint::{Control, Credentials, Error, Root};
use nodus_protocol::checkpoint::Consistency;
use rustix::fs::XattrFlags;
use serde_json::{Value, json};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn mtime(path: &Path) -> (i64, i64) {
    let meta = path.symlink_metadata().unwrap();
    (meta.mtime(), meta.mtime_nsec())
}

/// Bytes that do not compress.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn newest(home: &Home) -> nodus_checkpoint::Result<RestoreReport> {
    restore_newest(&home.store, None, &home.roots(), &options(), &Control::new())
}

/// Restores for a user that is not root: this one, or as root another one.
fn as_user(home: &Home) -> RestoreOptions {
    if !is_root() {
        return options();
    }
    let job = home.dir.path().join("job");
    fs::set_permissions(home.dir.path(), Permissions::from_mode(0o755)).unwrap();
    chown(&job, Some(12345), Some(12345)).unwrap();
    RestoreOptions { credentials: Some(user(12345)), ..options() }
}

fn user(id: u32) -> Credentials {
    Credentials { uid: id, gid: id, groups: Vec::new() }
}

fn warned(report: &RestoreReport, about: &About) -> Option<(u64, Vec<String>)> {
    let found = report.warnings.iter().find(|warning| warning.about == *about)?;
    Some((found.paths, found.examples.clone()))
}

#[test]
fn everything_comes_back_and_nothing_else_stays() {
    let home = Home::new();
    let mut made = Handmade::new(3);
    made.dir("empty").dir("sub").file("sub/small", b"content").symlink("sub/up", "../sub/small");
    made.file("zero", b"").commit(&home.store);
    fs::create_dir_all(home.state().join("extra/deep")).unwrap();
    fs::write(home.state().join("zero"), "not zero").unwrap();

    let report = home.restore(3).unwrap();
    assert_eq!((report.seq, report.files, report.bytes, report.kept), (3, 6, 7, 0));
    assert_eq!(report.reason, "checkpoint 3 was asked for");
    assert_eq!(report.warnings, []);
    assert!(!report.unchanged);
    assert_eq!(names(&home.state()), ["empty", "sub", "zero"]);
    assert_eq!(fs::read(home.state().join("sub/small")).unwrap(), b"content");
    assert_eq!(fs::read(home.state().join("zero")).unwrap(), b"");
    assert_eq!(fs::read_link(home.state().join("sub/up")).unwrap(), Path::new("../sub/small"));
    for path in ["", "empty", "sub", "sub/small", "sub/up", "zero"] {
        assert_eq!(mtime(&home.state().join(path)), (1_700_000_000, 123_456_789), "{path}");
    }
    assert_eq!(names(&home.dir.path().join("job")), ["state"], "nothing stays beside it");
}

#[test]
fn parents_that_are_missing_are_made() {
    let home = Home::new();
    Handmade::new(1).file("f", b"f").commit(&home.store);
    let to = home.dir.path().join("new/er/place");
    let roots = [Root { path: "/nodus/state".into(), dir: to.clone() }];
    restore(&home.store, 1, &roots, &options(), &Control::new()).unwrap();
    assert_eq!(names(&to), ["f"]);
}

#[test]
fn large_files_small_files_and_holes() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    let pieces = [noise(4 << 20, 1), noise(4 << 20, 2), noise(777, 3)];
    let frames: Vec<_> = pieces.iter().map(|piece| made.frame(piece)).collect();
    let chunks: Vec<Value> =
        (0..3).map(|n| chunk(n * (4 << 20), pieces[n].len(), 0, &frames[n])).collect();
    made.add("large", json!({"type": "file", "size": pieces.concat().len(), "chunks": chunks}));
    let shared = made.frame(&noise(3000, 4));
    for n in 0..300 {
        let chunks = [chunk(0, 10, n * 10, &shared)];
        made.add(&format!("s{n:03}"), json!({"type": "file", "size": 10, "chunks": chunks}));
    }
    let far = made.frame(b"at the end");
    let sparse = json!([chunk((1 << 40) - 10, 10, 0, &far)]);
    made.add("sparse", json!({"type": "file", "size": 1_u64 << 40, "chunks": sparse}));
    made.add("void", json!({"type": "file", "size": 1 << 20}));
    made.commit(&home.store);

    home.restore(1).unwrap();
    assert!(fs::read(home.state().join("large")).unwrap() == pieces.concat());
    let all = noise(3000, 4);
    for n in 0..300 {
        let found = fs::read(home.state().join(format!("s{n:03}"))).unwrap();
        assert_eq!(found, &all[n * 10..n * 10 + 10], "{n}");
    }
    let sparse = home.state().join("sparse");
    let meta = sparse.metadata().unwrap();
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 1 << 20, "C37: holes stay holes");
    let mut end = [0; 12];
    std::os::unix::fs::FileExt::read_exact_at(
        &File::open(&sparse).unwrap(),
        &mut end,
        (1 << 40) - 12,
    )
    .unwrap();
    assert_eq!(&end, b"\0\0at the end");
    assert_eq!(fs::read(home.state().join("void")).unwrap(), vec![0; 1 << 20]);
}

/// What the state has as it is, as a checkpoint would record it.
fn record_as_is(made: &mut Handmade, path: &str, at: &Path) {
    let meta = at.symlink_metadata().unwrap();
    let fields = json!({
        "mode": meta.mode() & 0o7777, "uid": meta.uid(), "gid": meta.gid(),
        "mtime": [meta.mtime(), meta.mtime_nsec()],
    });
    let with = |mut all: Value| {
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    if meta.is_dir() {
        made.add(path, with(json!({"type": "dir"})));
    } else {
        let id = json!([meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()]);
        let content = fs::read(at).unwrap();
        made.file_with(path, &content, with(json!({"id": id})));
    }
}

fn recorded(home: &Home) -> Handmade {
    let state = home.state();
    fs::create_dir_all(state.join("dir")).unwrap();
    fs::write(state.join("a"), "first").unwrap();
    fs::write(state.join("dir/b"), "second").unwrap();
    let mut made = Handmade::without_root(1);
    for path in ["", "a", "dir", "dir/b"] {
        record_as_is(&mut made, path, &state.join(path));
    }
    made
}

#[test]
fn what_is_there_already_costs_a_walk() {
    let home = Home::new();
    recorded(&home).commit(&home.store);
    let before = picture(&home.dir.path().join("job"));
    let report = home.restore(1).unwrap();
    assert!(report.unchanged);
    assert_eq!((report.files, report.kept), (4, 2));
    assert_eq!(picture(&home.dir.path().join("job")), before, "the very same inodes");
}

#[test]
fn files_that_are_identical_are_kept_where_others_are_not() {
    let home = Home::new();
    recorded(&home).commit(&home.store);
    let inode = |path: &str| home.state().join(path).metadata().unwrap().ino();
    let (a, b) = (inode("a"), inode("dir/b"));
    fs::write(home.state().join("dir/b"), "SECOND").unwrap();
    fs::write(home.state().join("extra"), "extra").unwrap();
    let report = home.restore(1).unwrap();
    assert!(!report.unchanged);
    assert_eq!(report.kept, 1);
    assert_eq!(inode("a"), a);
    assert_ne!(inode("dir/b"), b);
    assert_eq!(fs::read(home.state().join("dir/b")).unwrap(), b"second");
    assert_eq!(names(&home.state()), ["a", "dir"]);
}

#[test]
fn a_file_that_only_looks_the_same_is_not_kept() {
    for (what, change) in [
        ("racy", json!({"racy": true})),
        ("of several moments", json!({"modifiedDuringCopy": true})),
    ] {
        let home = Home::new();
        let mut made = Handmade::without_root(1);
        fs::create_dir(home.state()).unwrap();
        fs::write(home.state().join("a"), "target").unwrap();
        let meta = home.state().join("a").metadata().unwrap();
        record_as_is(&mut made, "", &home.state());
        let mut fields = change;
        fields["id"] = json!([meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()]);
        fields["mtime"] = json!([meta.mtime(), meta.mtime_nsec()]);
        made.file_with("a", b"stored", fields).commit(&home.store);
        home.restore(1).unwrap();
        assert_eq!(fs::read(home.state().join("a")).unwrap(), b"stored", "{what}");
    }
}

#[test]
fn c10_links_that_lead_nowhere_are_restored_and_reported() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    made.symlink("best", "checkpoint-100").dir("checkpoint-100").symlink("last.ckpt", "last.ckpt");
    made.symlink("out", "../../somewhere").symlink("step_latest", "step_300");
    made.symlink("whole", "/nodus/state/missing").symlink("whole2", "/nodus/state/best");
    made.commit(&home.store);
    let report = home.restore(1).unwrap();
    let state = home.state();
    for (link, target) in
        [("last.ckpt", "last.ckpt"), ("step_latest", "step_300"), ("best", "checkpoint-100")]
    {
        assert_eq!(fs::read_link(state.join(link)).unwrap(), Path::new(target));
    }
    let expected: Vec<_> =
        ["last.ckpt", "step_latest", "whole"].map(|l| state.join(l).display().to_string()).into();
    assert_eq!(warned(&report, &About::DanglingLink), Some((3, expected)));
}

#[test]
fn c26_hard_links_whole_and_in_part() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    let alias = json!({"type": "file", "size": 7, "nlink": 3, "hardlink": [0, "x/data"]});
    made.dir("x").file_with("x/data", b"content", json!({"nlink": 3}));
    made.dir("y").add("y/alias", alias.clone()).add("y/other", alias).file("z", b"z");
    made.commit(&home.store);
    home.restore(1).unwrap();
    let inode = |path: &str| home.state().join(path).metadata().unwrap().ino();
    assert_eq!(inode("x/data"), inode("y/alias"));
    assert_eq!(inode("x/data"), inode("y/other"));

    let only = |path: &str| RestoreOptions { only: Some(path.into()), ..options() };
    let refused = home.restore_with(1, &only("/nodus/state/y")).unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "it would take x and z away: {refused}");
    fs::remove_dir_all(home.state()).unwrap();
    let report = home.restore_with(1, &only("/nodus/state/y")).unwrap();
    assert_eq!(report.files, 4, "the root, y, and what is in it");
    assert_eq!(names(&home.state()), ["y"]);
    assert_eq!(fs::read(home.state().join("y/alias")).unwrap(), b"content");
    assert_eq!(inode("y/alias"), inode("y/other"));
    assert_eq!(mtime(&home.state().join("y")), (1_700_000_000, 123_456_789));
    fs::remove_dir_all(home.state()).unwrap();
    let nothing = home.restore_with(1, &only("/nodus/state/w")).unwrap_err();
    assert!(nothing.to_string().contains("nothing at /nodus/state/w"), "{nothing}");
}

#[test]
fn c41_attributes_that_may_not_be_set_are_warnings() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    let xattrs = json!({"xattrs": {"nonsense.x": "AA==", "user.y": "AQI="}});
    made.file_with("a", b"a", xattrs.clone()).file_with("b", b"b", xattrs);
    made.commit(&home.store);
    let strict = RestoreOptions { strict: true, ..options() };
    let error = home.restore_with(1, &strict).unwrap_err();
    assert!(error.to_string().contains("nonsense.x"), "{error}");
    assert!(!home.state().exists());
    assert_eq!(names(&home.dir.path().join("job")), [""; 0]);

    let report = home.restore(1).unwrap();
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(matches!(&warning.about, About::Xattr { name, .. } if name == "nonsense.x"));
    assert_eq!(warning.paths, 2);
    assert!(warning.to_string().starts_with("attribute nonsense.x could not be set ("));
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(home.state().join("a"), "user.y", &mut value[..]).unwrap();
    assert_eq!(value[..length], [1, 2]);
}

#[test]
fn c42_read_only_directories_twice_and_the_staging_is_gone() {
    let home = Home::new();
    let options = as_user(&home);
    let mut made = Handmade::without_root(1);
    made.add("", json!({"type": "dir", "mode": 0o555}));
    let old = json!({"type": "dir", "mode": 0o555, "mtime": [978_307_200, 0],
        "xattrs": {"user.tag": "AQ=="}});
    made.add("closed", json!({"type": "dir", "mode": 0}));
    made.file("closed/in", b"in").add("ro", old);
    made.file_with("ro/f", b"f", json!({"mode": 0o444, "xattrs": {"user.tag": "AQ=="}}));
    made.commit(&home.store);
    for _ in 0..2 {
        let report = home.restore_with(1, &options).unwrap();
        assert_eq!(report.warnings, []);
        assert_eq!(mode(&home.state()), 0o555);
        assert_eq!(mode(&home.state().join("closed")), 0);
        let (dir, file) = (home.state().join("ro"), home.state().join("ro/f"));
        assert_eq!((mode(&dir), mode(&file)), (0o555, 0o444));
        assert_eq!(mtime(&dir), (978_307_200, 0));
        assert_eq!(names(&home.dir.path().join("job")), ["state"]);
    }
    open_up(&home.state());
}

/// So that the temporary directory can be removed.
fn open_up(state: &Path) {
    for dir in [state.to_owned(), state.join("closed"), state.join("ro")] {
        let _ = fs::set_permissions(dir, Permissions::from_mode(0o755));
    }
}

#[test]
fn c43_times_to_the_nanosecond() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    let times =
        [(-1, 0), (-2, 500_000_000), (0, 0), (1_700_000_000, 123_456_789), (7_258_118_400, 9)];
    for (number, time) in times.iter().enumerate() {
        made.file_with(&format!("f{number}"), b"", json!({"mtime": [time.0, time.1]}));
    }
    made.commit(&home.store);
    home.restore(1).unwrap();
    for (number, time) in times.into_iter().enumerate() {
        assert_eq!(mtime(&home.state().join(format!("f{number}"))), time);
    }
}

#[test]
fn c44_a_cut_archive_is_an_error_and_the_one_before_is_restored() {
    for cut in [1, 100, 3000, 0] {
        let home = Home::new();
        Handmade::new(1).file("f", b"first").commit(&home.store);
        let mut second = Handmade::new(2);
        let noise = noise(6000, 1);
        second.file("f", &noise).file("g", &noise[1..]).commit(&home.store);
        let path = home.store.archive_path(2);
        let length = path.metadata().unwrap().len();
        // 0 stands for a cut exactly where the last frame begins.
        let last = zstd::bulk::compress(&noise[1..], 1).unwrap().len() as u64;
        let shorter = length - if cut == 0 { last } else { cut };
        File::options().write(true).open(&path).unwrap().set_len(shorter).unwrap();
        let before = picture(&home.dir.path().join("job"));
        assert!(matches!(home.restore(2), Err(Error::Damaged { seq: 2, .. })), "{cut}");
        assert_eq!(picture(&home.dir.path().join("job")), before);
        let report = newest(&home).unwrap();
        assert_eq!((report.seq, report.passed_over[0].seq), (1, 2));
        assert!(report.passed_over[0].why.starts_with("damaged: "), "{:?}", report.passed_over);
        assert_eq!(names(&home.state()), ["f"]);
        assert_eq!(fs::read(home.state().join("f")).unwrap(), b"first");
    }
}

fn flip(path: PathBuf, at: usize) {
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn c46_bit_rot_is_found_marked_and_passed_over() {
    let home = Home::new();
    Handmade::new(1).file("f", b"first, intact").commit(&home.store);
    let mut second = Handmade::new(2);
    let shared = second.frame(b"shared by two and three");
    let file = json!({"type": "file", "size": 23, "chunks": [chunk(0, 23, 0, &shared)]});
    second.add("f", file.clone()).commit(&home.store);
    let mut third = Handmade::new(3);
    third.bases = vec![2];
    third.add("f", file).commit(&home.store);
    let epoch = home.store.begin_epoch(1, 4, "node", jiff::Timestamp::UNIX_EPOCH).unwrap();
    flip(home.store.archive_path(2), 15);

    let report =
        restore_newest(&home.store, Some(&epoch), &home.roots(), &options(), &Control::new())
            .unwrap();
    assert_eq!(report.seq, 1);
    let passed: Vec<_> = report.passed_over.iter().map(|over| over.seq).collect();
    assert_eq!(passed, [3, 2]);
    let marked: Vec<_> = home
        .store
        .list()
        .unwrap()
        .into_iter()
        .filter(|stored| {
            matches!(stored.standing(), nodus_checkpoint::stored::Standing::Damaged(_))
        })
        .map(|stored| stored.seq())
        .collect();
    assert_eq!(marked, [2, 3], "both are marked, though only one was tried");

    let mut fourth = Handmade::new(4);
    fourth.file("f", b"fourth").commit(&home.store);
    flip(home.store.manifest_path(4), 20);
    assert_eq!(newest(&home).unwrap().seq, 1, "a damaged manifest");
}

#[test]
fn a_torn_one_only_where_there_is_no_other() {
    let home = Home::new();
    let mut torn = Handmade::new(1);
    torn.consistency = Consistency::Torn;
    torn.file("f", b"torn").commit(&home.store);
    let report = newest(&home).unwrap();
    assert!(report.reason.contains("torn"), "{}", report.reason);
    assert_eq!(fs::read(home.state().join("f")).unwrap(), b"torn");
    let nobody = Home::new();
    assert!(matches!(newest(&nobody), Err(Error::NotFound { seq: None, .. })));
    let all_bad = Home::new();
    for seq in [1, 2] {
        Handmade::new(seq).file("f", b"content").commit(&all_bad.store);
        flip(all_bad.store.archive_path(seq), 15);
    }
    match newest(&all_bad) {
        Err(Error::Damaged { seq: 2, what }) => assert!(what.contains("no other"), "{what}"),
        other => panic!("it is damaged, and is said to be: {other:?}"),
    }
}

#[test]
fn c58_set_id_bits_are_left_off_unless_privileges_are_kept() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    made.add("d", json!({"type": "dir", "mode": 0o2775}));
    made.add("dev", json!({"type": "chardev", "mode": 0o666}));
    made.file_with("g", b"g", json!({"mode": 0o2755})).file_with(
        "s",
        b"s",
        json!({"mode": 0o4755}),
    );
    made.add("t", json!({"type": "dir", "mode": 0o1777})).commit(&home.store);
    let report = home.restore_with(1, &as_user(&home)).unwrap();
    let modes = || ["d", "g", "s", "t"].map(|name| mode(&home.state().join(name)));
    assert_eq!(modes(), [0o2775, 0o755, 0o755, 0o1777]);
    let at = |name: &str| home.state().join(name).display().to_string();
    assert_eq!(warned(&report, &About::SetId), Some((2, vec![at("g"), at("s")])));
    assert_eq!(warned(&report, &About::Special), Some((1, vec![at("dev")])));
    assert!(!home.state().join("dev").exists());

    let keep = RestoreOptions { keep_privileges: true, ..options() };
    let report = home.restore_with(1, &keep).unwrap();
    assert_eq!(modes(), [0o2775, 0o2755, 0o4755, 0o1777]);
    assert_eq!(warned(&report, &About::SetId), None);
}

#[test]
fn c40_capabilities_come_back_only_with_privileges() {
    if !is_root() {
        return; // Nobody else may set one.
    }
    let home = Home::new();
    // VFS_CAP_REVISION_2 with CAP_NET_BIND_SERVICE permitted.
    let capability = "AAAAAgAEAAAAAAAAAAAAAAAAAAA=";
    let xattrs = json!({"security.capability": capability, "user.tag": "AQ=="});
    Handmade::new(1).file_with("f", b"f", json!({"xattrs": xattrs})).commit(&home.store);
    let file = home.state().join("f");
    let has = |name: &str| rustix::fs::getxattr(&file, name, &mut [0; 64][..]).is_ok();
    let report = home.restore(1).unwrap();
    assert!(has("user.tag") && !has("security.capability"));
    assert_eq!(warned(&report, &About::Capability).map(|(count, _)| count), Some(1));
    let keep = RestoreOptions { keep_privileges: true, ..as_user(&home) };
    home.restore_with(1, &keep).unwrap();
    assert!(has("user.tag") && has("security.capability"));
}

#[test]
fn c59_the_jobs_user_owns_everything() {
    if !is_root() {
        return; // Only root restores for others.
    }
    for uid in [1000, 2000] {
        let home = Home::new();
        let recorded = json!({"uid": 1000, "gid": 1000});
        let mut made = Handmade::without_root(1);
        made.add("", json!({"type": "dir", "mode": 0o755, "uid": 0, "gid": 0}));
        made.file_with("f", b"f", recorded.clone());
        made.add("l", json!({"type": "symlink", "mode": 0o777, "target": "f", "uid": 7, "gid": 7}));
        made.commit(&home.store);
        let _ = as_user(&home);
        chown(home.dir.path().join("job"), Some(uid), Some(uid)).unwrap();
        let options = RestoreOptions { credentials: Some(user(uid)), ..options() };
        let report = home.restore_with(1, &options).unwrap();
        assert_eq!(report.warnings, []);
        for path in ["", "f", "l"] {
            let meta = home.state().join(path).symlink_metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (uid, uid), "{path:?}");
        }
    }
    let home = Home::new();
    Handmade::new(1).file_with("f", b"f", json!({"uid": 77, "gid": 78})).commit(&home.store);
    home.restore(1).unwrap();
    let meta = home.state().join("f").metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid()), (77, 78), "root by itself restores owners");
}

#[test]
fn inside_the_target_where_beside_it_is_not_writable() {
    let home = Home::new();
    let options = as_user(&home);
    let job = home.dir.path().join("job");
    fs::create_dir_all(home.state().join("old/deep")).unwrap();
    fs::write(home.state().join("both"), "old").unwrap();
    for path in ["", "old", "old/deep", "both"] {
        if let Some(user) = &options.credentials {
            chown(home.state().join(path), Some(user.uid), Some(user.gid)).unwrap();
        }
    }
    fs::set_permissions(home.state().join("old"), Permissions::from_mode(0o555)).unwrap();
    if is_root() {
        chown(&job, Some(0), Some(0)).unwrap();
    }
    fs::set_permissions(&job, Permissions::from_mode(0o555)).unwrap();
    let target = home.state().metadata().unwrap().ino();
    let mut made = Handmade::new(1);
    made.file("both", b"new").add("ro", json!({"type": "dir", "mode": 0o555}));
    made.file("ro/f", b"f").commit(&home.store);
    for _ in 0..2 {
        home.restore_with(1, &options).unwrap();
        assert_eq!(names(&home.state()), ["both", "ro"]);
        assert_eq!(
            home.state().metadata().unwrap().ino(),
            target,
            "it is still the same directory"
        );
        assert_eq!(fs::read(home.state().join("both")).unwrap(), b"new");
        assert_eq!(mode(&home.state().join("ro")), 0o555);
        for path in ["", "ro"] {
            assert_eq!(mtime(&home.state().join(path)), (1_700_000_000, 123_456_789), "{path:?}");
        }
    }
    fs::set_permissions(&job, Permissions::from_mode(0o755)).unwrap();
    open_up(&home.state());
}

#[test]
fn what_a_crash_left_is_removed_and_what_is_in_use_is_not() {
    let home = Home::new();
    Handmade::new(1).file("f", b"f").commit(&home.store);
    let job = home.dir.path().join("job");
    for dir in [".state.nodus-restore-dead", ".state.nodus-restore-live", ".other.nodus-restore-1"]
    {
        fs::create_dir_all(job.join(dir).join("half")).unwrap();
    }
    fs::create_dir_all(home.state().join(".nodus-restore-dead/half")).unwrap();
    let live = File::open(job.join(".state.nodus-restore-live")).unwrap();
    rustix::fs::flock(&live, rustix::fs::FlockOperation::LockExclusive).unwrap();
    home.restore(1).unwrap();
    assert_eq!(names(&job), [".other.nodus-restore-1", ".state.nodus-restore-live", "state"]);
    assert_eq!(names(&home.state()), ["f"]);
}

#[test]
fn a_root_that_is_a_file_and_one_that_did_not_exist() {
    let home = Home::new();
    let mut made = Handmade::without_root(1);
    made.roots = ["/nodus/state", "/data/one.bin", "/data/none"].map(str::to_owned).into();
    made.add("", json!({"type": "dir", "mode": 0o755})).file_with("", b"one", json!({"root": 1}));
    made.commit(&home.store);
    let at = |name: &str| home.dir.path().join("job").join(name);
    fs::create_dir_all(at("none/extra")).unwrap();
    fs::create_dir(at("one.bin")).unwrap();
    let root = |path: &str, name: &str| Root { path: path.into(), dir: at(name) };
    let roots = [
        root("/data/one.bin", "one.bin"),
        root("/data/none", "none"),
        root("/nodus/state", "state"),
    ];
    for _ in 0..2 {
        restore(&home.store, 1, &roots, &options(), &Control::new()).unwrap();
        assert_eq!(names(&home.dir.path().join("job")), ["one.bin", "state"]);
        assert_eq!(fs::read(at("one.bin")).unwrap(), b"one");
    }
}

#[test]
fn hard_links_across_roots_stay_links() {
    let home = Home::new();
    let mut made = Handmade::new(1);
    made.roots = ["/nodus/state", "/nodus/more"].map(str::to_owned).into();
    made.file("data", b"content").add("", json!({"root": 1, "type": "dir", "mode": 0o755}));
    made.add("alias", json!({"root": 1, "type": "file", "size": 7, "hardlink": [0, "data"]}));
    made.commit(&home.store);
    let more = home.dir.path().join("job/more");
    let mut roots = home.roots();
    roots.push(Root { path: "/nodus/more".into(), dir: more.clone() });
    restore(&home.store, 1, &roots, &options(), &Control::new()).unwrap();
    let inode = |path: PathBuf| path.metadata().unwrap().ino();
    assert_eq!(inode(more.join("alias")), inode(home.state().join("data")));
}

#[test]
fn one_that_is_cancelled_changes_nothing() {
    let home = Home::new();
    Handmade::new(1).file("f", b"f").commit(&home.store);
    fs::create_dir(home.state()).unwrap();
    let before = picture(&home.dir.path().join("job"));
    let control = Control::new();
    control.cancel();
    let error = restore(&home.store, 1, &home.roots(), &options(), &control).unwrap_err();
    assert!(matches!(error, Error::Cancelled));
    assert_eq!(picture(&home.dir.path().join("job")), before);
}

/// Mounts are private to the thread, and to the threads that the restore starts from it.
fn with_small_file_system(test: impl FnOnce(&Home) + Send) {
    use nix::mount::{MsFlags, mount};
    if !is_root() {
        return; // Nobody else may mount.
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let home = Home::new();
            fs::create_dir(home.state()).unwrap();
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
            mount(none, "/", none, private, none).unwrap();
            let size = Some("size=8m");
            mount(Some("small"), &home.state(), Some("tmpfs"), MsFlags::empty(), size).unwrap();
            test(&home);
            nix::mount::umount(&home.state()).unwrap();
        });
    });
}

#[test]
fn a_mount_point_stays_mounted_and_holes_need_no_room() {
    with_small_file_system(|home| {
        let mut made = Handmade::new(1);
        let end = made.frame(b"end");
        let chunks = json!([chunk((1 << 40) - 3, 3, 0, &end)]);
        made.add("sparse", json!({"type": "file", "size": 1_u64 << 40, "chunks": chunks}));
        made.commit(&home.store);
        fs::write(home.state().join("extra"), "extra").unwrap();
        let device = home.state().metadata().unwrap().dev();
        home.restore(1).unwrap();
        assert_eq!(home.state().metadata().unwrap().dev(), device);
        assert_eq!(names(&home.state()), ["sparse"]);
        assert_eq!(home.state().join("sparse").metadata().unwrap().len(), 1 << 40);
    });
}

#[test]
fn too_little_room_is_known_before_anything_is_written() {
    with_small_file_system(|home| {
        let mut made = Handmade::new(1);
        let frame = made.frame(&vec![7; 4 << 20]);
        let chunks: Vec<_> = (0..4).map(|n| chunk(n * (4 << 20), 4 << 20, 0, &frame)).collect();
        made.add("large", json!({"type": "file", "size": 16 << 20, "chunks": chunks}));
        made.commit(&home.store);
        fs::write(home.state().join("before"), "as it was").unwrap();
        let error = home.restore(1).unwrap_err();
        assert!(matches!(error, Error::NoSpace { needed, .. } if needed == 16 << 20), "{error}");
        assert_eq!(names(&home.state()), ["before"]);
    });
}

#[test]
fn xattrs_of_directories_come_back() {
    let home = Home::new();
    fs::create_dir(home.state()).unwrap();
    rustix::fs::setxattr(home.state(), "user.old", b"x", XattrFlags::empty()).unwrap();
    symlink("nowhere", home.state().join("l")).unwrap();
    let mut made = Handmade::without_root(1);
    made.add("", json!({"type": "dir", "mode": 0o700, "xattrs": {"user.tag": "AAE="}}));
    made.commit(&home.store);
    home.restore(1).unwrap();
    let mut value = [9; 8];
    let length = rustix::fs::getxattr(home.state(), "user.tag", &mut value[..]).unwrap();
    assert_eq!(value[..length], [0, 1]);
    assert!(rustix::fs::getxattr(home.state(), "user.old", &mut value[..]).is_err());
}

/// What captures leave out, no restore takes away: it stays, and the tree around it is restored.
#[test]
fn c31_what_no_checkpoint_holds_stays() {
    let home = Home::new();
    let mut made = Handmade::new(3);
    made.dir("deep").dir("deep/er").file("deep/er/g", b"new").dir("deep/er/sub");
    made.file("deep/er/sub/h", b"new").file("f", b"new").commit(&home.store);
    let state = home.state();
    let (store, agent) = (state.join("deep/er/store"), state.join("only/agent"));
    for own in [&store, &agent] {
        fs::create_dir_all(own.join("below")).unwrap();
        fs::write(own.join("below/precious"), "the only copy").unwrap();
    }
    fs::write(state.join("only/other"), "old").unwrap();
    fs::write(state.join("deep/er/g"), "old").unwrap();
    fs::write(state.join("deep/old"), "old").unwrap();
    fs::set_permissions(state.join("deep/er"), Permissions::from_mode(0o500)).unwrap();
    let standing = [&store, &agent].into_iter().filter_map(|own| object_of(own)).collect();
    let options = RestoreOptions { standing, ..as_user(&home) };
    for own in ["", "deep", "deep/er", "deep/er/g", "only"].map(|name| state.join(name)) {
        if let Some(user) = &options.credentials {
            chown(own, Some(user.uid), Some(user.gid)).unwrap();
        }
    }
    for round in 0..3 {
        let report = home.restore_with(3, &options).unwrap();
        assert_eq!(names(&state), ["deep", "f", "only"], "round {round}");
        assert_eq!(names(&state.join("only")), ["agent"]);
        assert_eq!(names(&state.join("deep")), ["er"]);
        assert_eq!(names(&state.join("deep/er")), ["g", "store", "sub"]);
        assert_eq!(fs::read(state.join("deep/er/g")).unwrap(), b"new");
        assert_eq!(fs::read(state.join("deep/er/sub/h")).unwrap(), b"new");
        assert_eq!(mode(&state.join("deep/er")), 0o755);
        for own in [&store, &agent] {
            let kept = fs::read_to_string(own.join("below/precious")).unwrap();
            assert_eq!(kept, "the only copy");
        }
        assert_eq!(report.warnings, []);
    }
}

#[test]
fn c31_a_checkpoint_that_needs_the_place_of_the_store_is_refused() {
    let home = Home::new();
    for (seq, path) in [(1, "store/x"), (2, "store"), (3, "way")] {
        let mut made = Handmade::new(seq);
        if path == "store/x" {
            made.dir("store");
        }
        made.file(path, b"new").commit(&home.store);
    }
    let state = home.state();
    fs::create_dir_all(state.join("store")).unwrap();
    fs::create_dir_all(state.join("way/agent")).unwrap();
    let own = [state.join("store"), state.join("way/agent")];
    let standing = own.iter().filter_map(|own| object_of(own)).collect();
    let options = RestoreOptions { standing, ..options() };
    for seq in 1..=3 {
        assert!(matches!(home.restore_with(seq, &options), Err(Error::Refused(_))), "{seq}");
        assert_eq!(names(&state), ["store", "way"]);
    }
}

/// A file system that is mounted in the target stays mounted there.
#[test]
fn mounted_file_systems_stay() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    let mut made = Handmade::new(3);
    made.dir("data").dir("data/set").file("f", b"new").commit(&home.store);
    let mounted = home.state().join("data/set");
    fs::create_dir_all(&mounted).unwrap();
    let run = |command: &str, args: &[&str]| {
        let mut command = std::process::Command::new(command);
        assert!(command.args(args).arg(&mounted).status().unwrap().success());
    };
    run("mount", &["-t", "tmpfs", "-o", "size=64k", "none"]);
    fs::write(mounted.join("precious"), "x").unwrap();
    let restored: Vec<_> = (0..2)
        .map(|_| home.restore(3).map(|report| (mounted.join("precious").exists(), report)))
        .collect();
    run("umount", &["--lazy"]);
    for (round, restored) in restored.into_iter().enumerate() {
        let (is_there, report) = restored.unwrap();
        assert!(is_there, "round {round}");
        assert_eq!((report.unchanged, report.warnings), (false, Vec::new()));
    }
    assert_eq!(names(&home.state()), ["data", "f"]);
    assert_eq!(names(&mounted), [""; 0]);
}

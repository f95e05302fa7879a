//! What a reader of manifests must refuse.

use super::*;
use crate::format::manifest::walk_order;
use crate::format::{Chunk, FORMAT, FileData, FrameRef, MAX_FRAME, Time, Xattrs};
use proptest::prelude::*;

fn entry(path: &str, kind: Kind) -> Entry {
    let (root, path) = (0, path.as_bytes().to_vec());
    Entry {
        root,
        path,
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: Time(0, 0),
        xattrs: Xattrs::default(),
    }
}

fn file(chunks: Vec<Chunk>) -> Kind {
    Kind::File(FileData { size: 1 << 40, chunks, ..FileData::default() })
}

fn walk(entries: &[Entry]) -> std::result::Result<(), &'static str> {
    let mut walk = Walk::default();
    entries.iter().try_for_each(|entry| walk.step(entry))
}

/// C56: nothing but plain names below a directory of the manifest itself.
#[test]
fn c56_paths_that_are_not_plain() {
    for bad in ["../evil", "/evil", "a/../../evil", "a//b", ".", "a/.", "nul\0", "a/"] {
        check_entry(&entry(bad, Kind::Dir), 1).unwrap_err();
    }
    for good in ["", "a", "a/b", "..a", "...", ".hidden"] {
        check_entry(&entry(good, Kind::Dir), 1).unwrap();
    }
}

#[test]
fn every_entry_lies_in_a_directory() {
    let link = Kind::Symlink { target: b"..".to_vec() };
    let root = || entry("", Kind::Dir);
    walk(&[root(), entry("a", Kind::Dir), entry("a/b", file(vec![])), entry("a.b", Kind::Dir)])
        .unwrap();
    walk(&[root(), entry("l", link), entry("l/evil", Kind::Dir)]).unwrap_err();
    walk(&[root(), entry("a/b", Kind::Dir)]).unwrap_err();
    walk(&[root(), entry("a", Kind::Dir), entry("ab", Kind::Dir), entry("a/b", Kind::Dir)])
        .unwrap_err();
    walk(&[root(), entry("a", Kind::Dir), entry("a", Kind::Dir)]).unwrap_err();
    walk(&[entry("", file(vec![])), entry("a", Kind::Dir)]).unwrap_err();
    walk(&[entry("a", Kind::Dir)]).unwrap_err();
    walk(&[
        root(),
        entry("a", Kind::Dir),
        entry("a/x", Kind::Dir),
        entry("b", Kind::Dir),
        entry("b/x/y", Kind::Dir),
    ])
    .unwrap_err();
}

#[test]
fn chunks_stay_inside_their_file_and_frame() {
    let frame = FrameRef { seq: 1, at: 0, stored: 10, len: 100, hash: Hash([0; 32]) };
    let chunk = |offset, len, skip| Chunk { offset, len, skip, frame };
    let check = |chunks| check_entry(&entry("f", file(chunks)), 1);
    check(vec![chunk(0, 100, 0), chunk(100, 50, 50)]).unwrap();
    check(vec![chunk(0, 100, 1)]).unwrap_err();
    check(vec![chunk(0, 100, 0), chunk(99, 1, 0)]).unwrap_err();
    check(vec![chunk(1 << 40, 1, 0)]).unwrap_err();
    check(vec![chunk(u64::MAX, 1, 0)]).unwrap_err();
    let huge = FrameRef { len: MAX_FRAME + 1, ..frame };
    check(vec![Chunk { offset: 0, len: 1, skip: 0, frame: huge }]).unwrap_err();
}

/// A manifest in a temporary file, read back through the checks.
fn round_trip(entries: &[Entry]) -> Vec<Entry> {
    let header = Header { format: FORMAT, seq: 1, roots: vec!["/s".to_owned()] };
    let mut writer = ManifestWriter::new(tempfile::tempfile().unwrap(), &header).unwrap();
    entries.iter().for_each(|entry| writer.entry(entry).unwrap());
    let mut file = writer.finish().unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let mut lines = Lines::new(file).unwrap();
    lines.next(1).unwrap().unwrap();
    let walk = Walk::default();
    let expected = Hash::of(&bytes);
    ManifestReader { seq: 1, header, lines, expected, walk, done: false }
        .map(Result::unwrap)
        .collect()
}

#[test]
fn more_chunks_than_one_line_takes() {
    let frame = FrameRef { seq: 1, at: 0, stored: 10, len: 100, hash: Hash([7; 32]) };
    let chunks =
        |count: u64| (0..count).map(|at| Chunk { offset: at * 100, len: 100, skip: 0, frame });
    let many = 2 * CHUNKS_PER_LINE as u64 + 5;
    let entries = [
        entry("", Kind::Dir),
        entry("a", file(chunks(many).collect())),
        entry("b", file(chunks(3).collect())),
    ];
    assert_eq!(round_trip(&entries), entries);
}

/// Lines are found whole wherever the buffers that they are read through end.
#[test]
fn many_entries() {
    let files = (0..20_000).map(|number| entry(&format!("{number:06}"), file(vec![])));
    let entries: Vec<Entry> = std::iter::once(entry("", Kind::Dir)).chain(files).collect();
    assert!(round_trip(&entries) == entries);
}

proptest! {
    /// The order of entries is that of a walk that sorts the names of each directory.
    #[test]
    fn order_is_by_component(a in "[ab./!]{0,8}", b in "[ab./!]{0,8}") {
        let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        let plain = |path: &str| parts(path).iter().all(|part| !part.is_empty());
        prop_assume!(plain(&a) && plain(&b));
        let order = walk_order((0, a.as_bytes()), (0, b.as_bytes()));
        prop_assert_eq!(order, parts(&a).cmp(&parts(&b)));
    }
}

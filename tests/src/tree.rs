//! Comparing directories byte for byte and attribute for attribute.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{lgetxattr, llistxattr};
use walkdir::WalkDir;

/// Everything about one entry that a restore must bring back.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// What is in a file, or where a link points.
    pub content: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// The first path, in order, that is the same file.
    pub same_as: Option<PathBuf>,
}

impl std::fmt::Debug for Entry {
    /// Without the content of large files, which nobody reads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = String::from_utf8_lossy(&self.content[..self.content.len().min(40)]);
        write!(f, "{:o} {}:{} {:?} ", self.mode, self.uid, self.gid, self.mtime)?;
        write!(f, "{} bytes {shown:?} {:?} {:?}", self.content.len(), self.xattrs, self.same_as)
    }
}

/// The entries below `root`, and `root` itself under the empty path.
///
/// # Errors
/// Where something cannot be read.
pub fn read(root: &Path) -> io::Result<BTreeMap<PathBuf, Entry>> {
    let mut entries = BTreeMap::new();
    let mut first: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    for found in WalkDir::new(root).sort_by_file_name() {
        let found = found?;
        let path = found.path().strip_prefix(root).expect("the walk stays below").to_owned();
        let metadata = found.path().symlink_metadata()?;
        let several = metadata.is_file() && metadata.nlink() > 1;
        let inode = (metadata.dev(), metadata.ino());
        let same_as = several.then(|| first.entry(inode).or_insert_with(|| path.clone()).clone());
        let content = if metadata.is_symlink() {
            fs::read_link(found.path())?.as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            fs::read(found.path())?
        } else {
            Vec::new()
        };
        let entry = Entry {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            content,
            xattrs: xattrs(found.path())?,
            same_as,
        };
        entries.insert(path, entry);
    }
    Ok(entries)
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0_u8; 64 << 10];
    let count = match llistxattr(path, &mut names) {
        Ok(count) => count,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = std::ffi::OsStr::from_bytes(name);
            let mut value = vec![0_u8; 64 << 10];
            let count = lgetxattr(path, name, &mut value)?;
            value.truncate(count);
            Ok((name.to_owned(), value))
        })
        .collect()
}

/// Panics, naming the entries that differ, unless both directories are the same.
pub fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (read(expected), read(found));
    assert_same_entries(&expected.expect("the original can be read"), &found.expect("it exists"));
}

/// The same for trees that were read earlier.
pub fn assert_same_entries(expected: &BTreeMap<PathBuf, Entry>, found: &BTreeMap<PathBuf, Entry>) {
    let mut wrong = Vec::new();
    for path in expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path))) {
        match (expected.get(path), found.get(path)) {
            (Some(expected), Some(found)) if expected == found => {}
            (expected, found) => {
                wrong.push(format!("{path:?}\n  expected {expected:?}\n  found    {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} entries differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// A tree, and the same after `change`: whether the comparer sees it.
    fn sees(change: impl FnOnce(&Path)) -> bool {
        let home = TempDir::new().unwrap();
        fs::write(home.path().join("a"), "content").unwrap();
        fs::hard_link(home.path().join("a"), home.path().join("b")).unwrap();
        fs::write(home.path().join("c"), "content").unwrap();
        symlink("a", home.path().join("l")).unwrap();
        let before = read(home.path()).unwrap();
        change(home.path());
        before != read(home.path()).unwrap()
    }

    #[test]
    fn every_kind_of_difference_is_seen() {
        assert!(!sees(|_| {}));
        assert!(sees(|root| fs::write(root.join("a"), "Content").unwrap()));
        assert!(sees(|root| fs::remove_file(root.join("c")).unwrap()));
        assert!(sees(|root| {
            fs::set_permissions(root.join("c"), fs::Permissions::from_mode(0o600)).unwrap();
        }));
        assert!(sees(|root| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::new(5, 7);
            fs::File::open(root.join("c")).unwrap().set_modified(time).unwrap();
        }));
        assert!(sees(|root| {
            fs::remove_file(root.join("l")).unwrap();
            symlink("c", root.join("l")).unwrap();
        }));
        assert!(sees(|root| {
            let time = fs::metadata(root.join("a")).unwrap().modified().unwrap();
            fs::remove_file(root.join("b")).unwrap();
            fs::write(root.join("b"), "content").unwrap();
            fs::File::open(root.join("b")).unwrap().set_modified(time).unwrap();
        }));
    }
}

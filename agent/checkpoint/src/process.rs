//! What processes could be writing at this moment.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The regular files that a set of processes can write to without opening them first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// Device and inode of each.
    pub writable: HashSet<(u64, u64)>,
    /// Processes that exist and may not be looked into: what they hold is not known.
    pub unknown: Vec<u32>,
}

/// Looks at the open descriptors and the shared mappings of each process; one that ended has none.
#[must_use]
pub fn open_for_writing(pids: &[u32]) -> OpenFiles {
    let mut found = OpenFiles::default();
    for &pid in pids {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let looked = add_descriptors(&dir, &mut found.writable)
            .and_then(|()| add_mappings(&dir, &mut found.writable));
        match looked {
            Err(error) if !is_over(&error) => found.unknown.push(pid),
            _ => {}
        }
    }
    found
}

fn add_descriptors(process: &Path, writable: &mut HashSet<(u64, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(process.join("fd"))? {
        let name = entry?.file_name();
        let Ok(info) = fs::read_to_string(process.join("fdinfo").join(&name)) else { continue };
        if !is_writable(&info) {
            continue;
        }
        // Closed in between, or nothing that has attributes: then it is no open regular file.
        if let Ok(meta) = fs::metadata(process.join("fd").join(&name)) {
            add(&meta, writable);
        }
    }
    Ok(())
}

/// A mapping stays writable after the descriptor that it was made from is closed.
fn add_mappings(process: &Path, writable: &mut HashSet<(u64, u64)>) -> io::Result<()> {
    let mut maps = BufReader::new(fs::File::open(process.join("maps"))?);
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        if let Some(mapping) = Mapping::parse(line.trim_ascii_end()) {
            writable.insert(mapping.object());
        }
        line.clear();
    }
    Ok(())
}

fn add(meta: &fs::Metadata, writable: &mut HashSet<(u64, u64)>) {
    if meta.is_file() {
        writable.insert((meta.dev(), meta.ino()));
    }
}

/// Whether the `flags` line of a descriptor's information has an access mode that writes.
fn is_writable(info: &str) -> bool {
    const ACCESS_MODE: u32 = 0o3;
    info.lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & ACCESS_MODE != 0)
}

/// A shared, writable mapping of a file.
struct Mapping<'a> {
    device: u64,
    inode: u64,
    path: &'a Path,
}

impl<'a> Mapping<'a> {
    /// `address perms offset major:minor inode path`; `None` for all other mappings.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let (_address, perms, _offset) = (fields.next()?, fields.next()?, fields.next()?);
        if perms.get(1) != Some(&b'w') || perms.get(3) != Some(&b's') {
            return None;
        }
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let device = rustix::fs::makedev(number(major)?, number(minor)?);
        let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        (inode != 0).then_some(Self { device, inode, path })
    }

    /// As `stat` names it: on some file systems the device in `maps` is another one.
    fn object(&self) -> (u64, u64) {
        let by_path = fs::metadata(self.path).ok().filter(|meta| meta.ino() == self.inode);
        by_path.map_or((self.device, self.inode), |meta| (meta.dev(), meta.ino()))
    }
}

/// Whether the error means that the process has ended.
fn is_over(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_writes_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (read, written) = (dir.path().join("read"), dir.path().join("written"));
        fs::write(&read, "x").unwrap();
        let writer = fs::File::create(&written).unwrap();
        let _reader = fs::File::open(&read).unwrap();
        let object = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).unwrap();
        let (read, written) = (object(&read), object(&written));
        let found = open_for_writing(&[std::process::id()]);
        assert!(found.writable.contains(&written) && !found.writable.contains(&read));
        assert!(found.unknown.is_empty());
        drop(writer);
        assert!(!open_for_writing(&[std::process::id()]).writable.contains(&written));
    }

    #[test]
    fn a_process_that_ended_holds_nothing() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(open_for_writing(&[pid]), OpenFiles::default());
    }

    #[test]
    fn only_shared_writable_mappings_count() {
        let parse = |line: &'static str| Mapping::parse(line.as_bytes()).map(|found| found.inode);
        assert_eq!(parse("7f00-7f01 rw-s 00000000 fd:01 1234    /data/data.mdb"), Some(1234));
        assert_eq!(parse("7f00-7f01 rw-p 00000000 fd:01 1234    /data/data.mdb"), None);
        assert_eq!(parse("7f00-7f01 r--s 00000000 fd:01 1234    /data/data.mdb"), None);
        assert_eq!(parse("7f00-7f01 rw-s 00000000 00:01 0"), None);
    }
}

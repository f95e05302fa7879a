//! Removing a whole tree, however deep it is and whatever its modes are.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode};
use rustix::io::Errno;

use super::beneath::{Beneath, join};

/// Directories remembered at a time, so that one with very many of them needs no memory.
const SUBDIRECTORIES: usize = 1024;

/// Times a directory is emptied again because somebody put something into it.
const ATTEMPTS: u32 = 100;

/// Removes what is at `path`; nothing there is fine. Other file systems mounted below are left.
pub(super) fn remove_tree(base: &Beneath, path: &[u8]) -> io::Result<()> {
    match unlink(base, path) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(Errno::NOENT) | Ok(()) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    // Depth first, with paths in place of open directories: descriptors are few, trees are deep.
    let mut open = vec![(path.to_vec(), 0_u32)];
    while let Some((dir, tries)) = open.last_mut() {
        *tries += 1;
        if *tries > ATTEMPTS {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let below = empty(base, dir)?;
        if below.is_empty() {
            match remove_dir(base, dir) {
                Ok(()) | Err(Errno::NOENT) => drop(open.pop()),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            *tries = 0; // Every one of them is gone when it is looked at again, or has failed.
            open.extend(below.into_iter().map(|path| (path, 0)));
        }
    }
    Ok(())
}

/// Unlinks all that is not a directory, and says which directories are left.
fn empty(base: &Beneath, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut below = Vec::new();
    let listed = match open_up(base, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(below),
        listed => listed?,
    };
    let mut dir = Dir::read_from(&listed)?;
    while let Some(entry) = dir.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(&listed, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            known => known == FileType::Directory,
        };
        if !is_dir {
            rustix::fs::unlinkat(&listed, name, AtFlags::empty())?;
        } else if below.len() < SUBDIRECTORIES {
            below.push(join(path, name));
        }
    }
    Ok(below)
}

/// Opens a directory for emptying it, making it ours to change first where it is not.
fn open_up(base: &Beneath, path: &[u8]) -> io::Result<impl AsFd + use<>> {
    let writable = Mode::RWXU;
    match base.list(path) {
        Ok(dir) => {
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&dir)?.st_mode);
            if !mode.contains(writable) {
                rustix::fs::fchmod(&dir, writable)?;
            }
            Ok(dir)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let spot = base.spot(path)?;
            rustix::fs::chmodat(&spot.dir, &*spot.name, writable, AtFlags::empty())?;
            base.list(path)
        }
        Err(error) => Err(error),
    }
}

fn unlink(base: &Beneath, path: &[u8]) -> Result<(), Errno> {
    let spot = base.spot(path).map_err(|error| errno(&error))?;
    rustix::fs::unlinkat(&spot.dir, &*spot.name, AtFlags::empty())
}

fn remove_dir(base: &Beneath, path: &[u8]) -> Result<(), Errno> {
    let spot = base.spot(path).map_err(|error| errno(&error))?;
    rustix::fs::unlinkat(&spot.dir, &*spot.name, AtFlags::REMOVEDIR)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn c42_read_only_and_deep_trees_go() {
        let home = tempfile::tempdir().unwrap();
        let base = Beneath::open(home.path()).unwrap();
        let mut path = b"tree".to_vec();
        base.spot(&path).unwrap().create_dir().unwrap();
        for _ in 0..1500 {
            path = join(&path, b"directory");
            base.spot(&path).unwrap().create_dir().unwrap();
        }
        let closed = home.path().join("tree/closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "x").unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        std::os::unix::fs::symlink("../canary", home.path().join("tree/link")).unwrap();
        fs::create_dir(home.path().join("canary")).unwrap();
        remove_tree(&base, b"tree").unwrap();
        assert!(!home.path().join("tree").exists());
        assert!(home.path().join("canary").exists());
        remove_tree(&base, b"tree").unwrap();
    }
}

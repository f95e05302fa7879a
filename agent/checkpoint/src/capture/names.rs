//! The names in a directory, sorted, in one piece of memory whatever their number.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::RawDir;
use rustix::io::Errno;

/// Names by their bytes.
pub(crate) struct Names {
    /// All names, each with its NUL.
    arena: Vec<u8>,
    starts: Vec<u32>,
}

impl Names {
    /// No names at all.
    pub(crate) fn none() -> Self {
        Self { arena: Vec::new(), starts: Vec::new() }
    }

    /// Reads the whole directory. What a file system says of types and inodes there is not used.
    pub(crate) fn read(dir: impl AsFd) -> Result<Self, Errno> {
        let mut names = Self::none();
        let mut buffer = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry?,
            };
            let name = entry.file_name();
            if name != c"." && name != c".." {
                names.push(name)?;
            }
        }
        let Self { arena, starts } = &mut names;
        starts.sort_unstable_by(|&a, &b| name_at(arena, a).cmp(name_at(arena, b)));
        // Some file systems repeat a name that was renamed while they were read.
        starts.dedup_by(|a, b| name_at(arena, *a) == name_at(arena, *b));
        Ok(names)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&CStr> {
        self.starts.get(index).map(|&start| name_at(&self.arena, start))
    }

    fn push(&mut self, name: &CStr) -> Result<(), Errno> {
        self.starts.push(u32::try_from(self.arena.len()).map_err(|_| Errno::OVERFLOW)?);
        self.arena.extend_from_slice(name.to_bytes_with_nul());
        Ok(())
    }
}

fn name_at(arena: &[u8], start: u32) -> &CStr {
    let start = usize::try_from(start).expect("memory is addressed by more than 32 bits");
    CStr::from_bytes_until_nul(&arena[start..]).expect("every name was stored with its NUL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_byte_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a.b", "a", "ab", "Z", "é"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let names = Names::read(std::fs::File::open(dir.path()).unwrap()).unwrap();
        let found: Vec<_> = (0..).map_while(|at| names.get(at)?.to_str().ok()).collect();
        assert_eq!(found, ["Z", "a", "a.b", "ab", "b", "é"]);
    }
}

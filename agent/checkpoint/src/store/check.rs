//! What a reader of a manifest must check before it uses an entry. No IO.

use crate::format::manifest::walk_order;
use crate::format::text::unescape;
use crate::format::{Chunk, Entry, FORMAT, FileData, Header, Kind, MAX_FRAME};

/// The header of the manifest of this checkpoint.
pub(super) fn check_header(seq: u64, header: &Header) -> Result<(), String> {
    if header.format != FORMAT || header.seq != seq {
        return Err(format!("its manifest is format {} of seq {}", header.format, header.seq));
    }
    let is_sound = |root: &&String| {
        unescape(root).is_some_and(|path| path.strip_prefix(b"/").is_some_and(is_plain))
    };
    match header.roots.iter().find(|root| !is_sound(root)) {
        Some(root) => Err(format!("its manifest has the root {root:?}")),
        None => Ok(()),
    }
}

/// Components that can mean nothing but a name below the directory they are used in.
fn is_plain(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .all(|name| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0))
}

/// What can be checked of one entry by itself.
///
/// # Errors
/// What is wrong with it.
pub fn check_entry(entry: &Entry, roots: usize) -> Result<(), String> {
    if usize::from(entry.root) >= roots {
        return Err(format!("root {} of {roots}", entry.root));
    }
    if !entry.path.is_empty() && !is_plain(&entry.path) {
        return Err("a path that is not plain".to_owned());
    }
    if entry.mode > 0o7777 || entry.mtime.1 > 999_999_999 {
        return Err("a mode or a time out of range".to_owned());
    }
    if entry.xattrs.0.keys().any(|name| name.is_empty() || name.contains(&0)) {
        return Err("the name of an extended attribute is empty or has a NUL".to_owned());
    }
    match &entry.kind {
        Kind::Symlink { target } if target.is_empty() || target.contains(&0) => {
            Err("a link's target is empty or has a NUL".to_owned())
        }
        Kind::File(file) => check_file(entry, file),
        _ => Ok(()),
    }
}

fn check_file(entry: &Entry, file: &FileData) -> Result<(), String> {
    if let Some(first) = &file.hardlink {
        let plain = first.1.is_empty() || is_plain(&first.1);
        let earlier = walk_order((first.0, &first.1), (entry.root, &entry.path)).is_lt();
        if !plain || !earlier || !file.chunks.is_empty() {
            return Err("a hard link to what is no earlier entry, or with content".to_owned());
        }
    }
    let mut from = 0;
    for chunk in &file.chunks {
        let end = check_chunk(chunk).filter(|&end| chunk.offset >= from && end <= file.size);
        from = end.ok_or("chunks that overlap or exceed the file or their frame")?;
    }
    Ok(())
}

/// Where the chunk ends in the file, where it is possible at all.
fn check_chunk(chunk: &Chunk) -> Option<u64> {
    let frame = &chunk.frame;
    let inside = chunk.skip.checked_add(chunk.len)? <= frame.len;
    let bounded = frame.len <= MAX_FRAME && frame.stored <= MAX_FRAME && frame.stored > 0;
    let sound = inside && bounded && chunk.len > 0 && frame.at.checked_add(frame.stored).is_some();
    chunk.offset.checked_add(chunk.len).filter(|_| sound)
}

/// Where the walk is: the directories that contain the last entry.
#[derive(Default)]
pub(super) struct Walk {
    root: Option<u16>,
    last: Vec<u8>,
    /// Lengths of the prefixes of `last` that are directories, the root's own (0) first.
    dirs: Vec<usize>,
}

impl Walk {
    /// Goes on to the next entry, which must follow the last one and lie in a directory.
    pub(super) fn step(&mut self, entry: &Entry) -> Result<(), &'static str> {
        match self.root {
            Some(root) if root == entry.root => self.go_below(&entry.path)?,
            Some(root) if root > entry.root => return Err("an entry out of order"),
            _ if !entry.path.is_empty() => return Err("an entry whose root is missing"),
            _ => self.dirs.clear(),
        }
        self.root = Some(entry.root);
        self.last.clone_from(&entry.path);
        if matches!(entry.kind, Kind::Dir) {
            self.dirs.push(entry.path.len());
        }
        Ok(())
    }

    fn go_below(&mut self, path: &[u8]) -> Result<(), &'static str> {
        if walk_order((0, path), (0, &self.last)).is_le() {
            return Err("an entry out of order");
        }
        let parent = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        while self.dirs.last().is_some_and(|&length| length > parent) {
            self.dirs.pop();
        }
        let inside =
            self.dirs.last() == Some(&parent) && self.last.get(..parent) == path.get(..parent);
        if inside { Ok(()) } else { Err("an entry below what is not a directory") }
    }
}

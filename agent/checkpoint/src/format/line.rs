//! A line of the manifest as JSON: one flat object, whatever the kind of the entry.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::manifest::{Chunk, Entry, EntryRef, FileData, Hash, Identity, Kind, Time, Xattrs};
use super::text::{escape, unescape};

/// An entry, or the part of its chunks that one line takes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line<'a> {
    root: u16,
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: Type,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Time,
    #[serde(default, skip_serializing_if = "xattrs_are_empty")]
    xattrs: Cow<'a, Xattrs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nlink: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hardlink: Option<Cow<'a, EntryRef>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Identity>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    racy: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<Hash>,
    #[serde(default, skip_serializing_if = "<[Chunk]>::is_empty")]
    chunks: Cow<'a, [Chunk]>,
    #[serde(default, rename = "modifiedDuringCopy", skip_serializing_if = "std::ops::Not::not")]
    modified_during_copy: bool,
}

/// The chunks that did not fit into the line before.
#[derive(Serialize, Deserialize)]
pub(crate) struct More<'a> {
    pub(crate) chunks: Cow<'a, [Chunk]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDev,
    BlockDev,
}

fn xattrs_are_empty(xattrs: &Xattrs) -> bool {
    xattrs.is_empty()
}

impl<'a> Line<'a> {
    /// The line with the first of the entry's chunks, those that are given.
    pub(crate) fn with_chunks(entry: &'a Entry, chunks: &'a [Chunk]) -> Self {
        let mut line = Self {
            root: entry.root,
            path: Cow::Owned(escape(&entry.path)),
            kind: Type::of(&entry.kind),
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            xattrs: Cow::Borrowed(&entry.xattrs),
            target: None,
            size: None,
            nlink: None,
            hardlink: None,
            id: None,
            racy: false,
            hash: None,
            chunks: Cow::Borrowed(chunks),
            modified_during_copy: false,
        };
        match &entry.kind {
            Kind::Symlink { target } => line.target = Some(Cow::Owned(escape(target))),
            Kind::File(file) => line.set_file(file),
            _ => {}
        }
        line
    }

    fn set_file(&mut self, file: &'a FileData) {
        self.size = Some(file.size);
        self.nlink = file.nlink;
        self.hardlink = file.hardlink.as_ref().map(Cow::Borrowed);
        self.id = file.id;
        self.racy = file.racy;
        self.hash = file.hash;
        self.modified_during_copy = file.modified_during_copy;
    }

    fn into_kind(self) -> Result<Kind, String> {
        Ok(match self.kind {
            Type::Dir => Kind::Dir,
            Type::Fifo => Kind::Fifo,
            Type::Socket => Kind::Socket,
            Type::CharDev => Kind::CharDev,
            Type::BlockDev => Kind::BlockDev,
            Type::Symlink => {
                let target = self.target.ok_or("a symlink has no target")?;
                Kind::Symlink { target: unescape(&target).ok_or("a target is not escaped text")? }
            }
            Type::File => Kind::File(FileData {
                size: self.size.ok_or("a file has no size")?,
                nlink: self.nlink,
                hardlink: self.hardlink.map(Cow::into_owned),
                id: self.id,
                racy: self.racy,
                hash: self.hash,
                chunks: self.chunks.into_owned(),
                modified_during_copy: self.modified_during_copy,
            }),
        })
    }
}

impl Type {
    fn of(kind: &Kind) -> Self {
        match kind {
            Kind::File(_) => Self::File,
            Kind::Dir => Self::Dir,
            Kind::Symlink { .. } => Self::Symlink,
            Kind::Fifo => Self::Fifo,
            Kind::Socket => Self::Socket,
            Kind::CharDev => Self::CharDev,
            Kind::BlockDev => Self::BlockDev,
        }
    }
}

impl<'a> From<&'a Entry> for Line<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self::with_chunks(entry, entry.chunks())
    }
}

impl TryFrom<Line<'_>> for Entry {
    type Error = String;

    fn try_from(mut line: Line<'_>) -> Result<Self, String> {
        let path = unescape(&line.path).ok_or("a path is not escaped text")?;
        let xattrs = std::mem::take(&mut line.xattrs).into_owned();
        let Line { root, mode, uid, gid, mtime, .. } = line;
        Ok(Self { root, path, kind: line.into_kind()?, mode, uid, gid, mtime, xattrs })
    }
}

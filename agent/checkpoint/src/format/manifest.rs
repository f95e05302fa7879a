//! The manifest's lines.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::{escape, serde_bytes_text, unescape};

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The checkpoint that it belongs to.
    pub seq: u64,
    /// The job's paths, escaped; entries name them by index.
    pub roots: Vec<String>,
}

/// One entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index into [`Header::roots`].
    pub root: u16,
    /// The path below the root, components joined by `/`; empty for the root itself.
    pub path: Vec<u8>,
    /// What it is, with what only that kind has.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When the content last changed.
    pub mtime: Time,
    /// Extended attributes.
    pub xattrs: Xattrs,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File(FileData),
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink {
        /// Its text.
        target: Vec<u8>,
    },
    /// A named pipe: noted, never made.
    Fifo,
    /// A socket: noted, never made.
    Socket,
    /// A character device: noted, never made.
    CharDev,
    /// A block device: noted, never made.
    BlockDev,
}

/// What only a regular file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileData {
    /// Logical bytes.
    pub size: u64,
    /// Names the file system counts, where more than one.
    pub nlink: Option<u64>,
    /// The earlier entry that is the same file; then there are no chunks here.
    pub hardlink: Option<EntryRef>,
    /// By what an unchanged file is known, with size and mtime.
    pub id: Option<Identity>,
    /// The identity proves nothing: the clock could hide a change after the read.
    pub racy: bool,
    /// BLAKE3 of the content where it is one chunk of a shared frame.
    pub hash: Option<Hash>,
    /// Where the content is, in order of offset; what none covers is a hole.
    pub chunks: Vec<Chunk>,
    /// The content may be of several moments.
    pub modified_during_copy: bool,
}

impl Entry {
    /// Where its content is; empty where it has none.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        match &self.kind {
            Kind::File(file) => &file.chunks,
            _ => &[],
        }
    }

    /// What only a regular file has.
    #[must_use]
    pub fn file(&self) -> Option<&FileData> {
        match &self.kind {
            Kind::File(file) => Some(file),
            _ => None,
        }
    }
}

/// The order of the manifest: by root, then by path, component by component.
#[must_use]
pub fn walk_order(a: (u16, &[u8]), b: (u16, &[u8])) -> std::cmp::Ordering {
    // No component holds a NUL, so a separator that sorts as one ends every component first.
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    a.0.cmp(&b.0).then_with(|| a.1.iter().map(rank).cmp(b.1.iter().map(rank)))
}

/// Another entry: root index and path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRef(pub u16, #[serde(with = "serde_bytes_text")] pub Vec<u8>);

/// Seconds since 1970 and nanoseconds to add; so half a second before 1970 is `(-1, 500000000)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub i64, pub u32);

/// Device, inode, ctime seconds and ctime nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(pub u64, pub u64, pub i64, pub u32);

/// Where a piece of a file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it is in the file.
    pub offset: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Where it is in the decompressed frame.
    pub skip: u64,
    /// The frame.
    pub frame: FrameRef,
}

/// Where a frame is, and what must come out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef {
    /// The checkpoint in whose archive it is.
    pub seq: u64,
    /// Where it begins in that archive.
    pub at: u64,
    /// Bytes it takes there.
    pub stored: u64,
    /// Bytes when decompressed.
    pub len: u64,
    /// BLAKE3 of those.
    pub hash: Hash,
}

impl Serialize for Chunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FrameRef { seq, at, stored, len, hash } = self.frame;
        (self.offset, self.len, self.skip, seq, at, stored, len, hash).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (offset, len, skip, seq, at, stored, frame_len, hash) =
            Deserialize::deserialize(deserializer)?;
        Ok(Self { offset, len, skip, frame: FrameRef { seq, at, stored, len: frame_len, hash } })
    }
}

/// A BLAKE3 hash, as 64 lower-case hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl From<blake3::Hash> for Hash {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        blake3::Hash::from_hex(text.as_bytes())
            .map(Self::from)
            .map_err(|_| D::Error::custom("not 64 hex digits"))
    }
}

/// Extended attributes: names to values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattrs(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl Xattrs {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Values as base64 (RFC 4648, with padding), names escaped.
impl Serialize for Xattrs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        let encode = |value: &Vec<u8>| base64::engine::general_purpose::STANDARD.encode(value);
        serializer.collect_map(self.0.iter().map(|(name, value)| (escape(name), encode(value))))
    }
}

impl<'de> Deserialize<'de> for Xattrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        let texts = BTreeMap::<String, String>::deserialize(deserializer)?;
        let decode = |(name, value): (String, String)| {
            let name = unescape(&name).ok_or_else(|| D::Error::custom("a % without hex digits"))?;
            let value = base64::engine::general_purpose::STANDARD.decode(value);
            Ok((name, value.map_err(D::Error::custom)?))
        };
        texts.into_iter().map(decode).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::line::Line;

    #[test]
    fn lines_are_as_documented() {
        let frame = FrameRef { seq: 7, at: 1536, stored: 90, len: 100, hash: Hash([0xab; 32]) };
        let file = FileData {
            size: 100,
            id: Some(Identity(1, 2, 3, 4)),
            chunks: vec![Chunk { offset: 0, len: 100, skip: 0, frame }],
            ..FileData::default()
        };
        let entry = Entry {
            root: 0,
            path: b"bad\xFF.pt".to_vec(),
            kind: Kind::File(file),
            mode: 0o644,
            uid: 1,
            gid: 2,
            mtime: Time(-2, 500_000_000),
            xattrs: Xattrs([(b"user.a".to_vec(), vec![0])].into()),
        };
        let hash = "ab".repeat(32);
        let line = serde_json::to_string(&Line::from(&entry)).unwrap();
        let expected = format!(
            r#"{{"root":0,"path":"bad%FF.pt","type":"file","mode":420,"uid":1,"gid":2,"mtime":[-2,500000000],"xattrs":{{"user.a":"AA=="}},"size":100,"id":[1,2,3,4],"chunks":[[0,100,0,7,1536,90,100,"{hash}"]]}}"#
        );
        assert_eq!(line, expected);
        assert_eq!(
            Entry::try_from(serde_json::from_str::<Line<'_>>(&line).unwrap()).unwrap(),
            entry
        );
    }
}

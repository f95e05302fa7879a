//! Headers of tar members in the POSIX (pax) format, as `docs/format.md` wants them.

use std::fmt::Write as _;

use tar::{EntryType, Header};

use crate::format::{Entry, Kind, Time};

/// What a tar consists of.
pub(crate) const BLOCK: usize = 512;
/// The largest number that 11 octal digits hold.
const MAX_OCTAL_SIZE: u64 = (1 << 33) - 1;
/// The largest number that 7 octal digits hold.
const MAX_OCTAL_ID: u32 = (1 << 21) - 1;
/// Bytes of a name in the plain header.
const NAME: usize = 100;

/// A member that is to be written.
pub(crate) struct Member<'a> {
    /// Its name in the archive.
    pub(crate) name: &'a [u8],
    /// Where its attributes come from.
    pub(crate) entry: &'a Entry,
    /// What it is.
    pub(crate) content: Content<'a>,
}

/// What a member is, and how much follows its header.
#[derive(Clone, Copy)]
pub(crate) enum Content<'a> {
    /// A file with this many bytes.
    File(u64),
    /// A file with holes: the map and the data together have `stored` bytes.
    Sparse { stored: u64, real: u64 },
    /// Another name of an earlier member.
    Link(&'a [u8]),
    /// A symbolic link with this text.
    Symlink(&'a [u8]),
    /// A directory.
    Dir,
}

impl Content<'_> {
    fn stored(self) -> u64 {
        match self {
            Self::File(size) | Self::Sparse { stored: size, .. } => size,
            Self::Link(_) | Self::Symlink(_) | Self::Dir => 0,
        }
    }

    fn entry_type(self) -> EntryType {
        match self {
            Self::File(_) | Self::Sparse { .. } => EntryType::Regular,
            Self::Link(_) => EntryType::Link,
            Self::Symlink(_) => EntryType::Symlink,
            Self::Dir => EntryType::Directory,
        }
    }
}

/// The name of an entry's member: its root without the leading `/`, then its path.
pub(crate) fn member_name(root: &[u8], entry: &Entry) -> Vec<u8> {
    let mut name = root.strip_prefix(b"/").unwrap_or(root).to_vec();
    if !entry.path.is_empty() {
        name.push(b'/');
        name.extend_from_slice(&entry.path);
    }
    if matches!(entry.kind, Kind::Dir) {
        name.push(b'/');
    }
    name
}

/// The name of a piece of a large file.
pub(crate) fn part_name(name: &[u8], offset: u64) -> Vec<u8> {
    [name, format!(".nodus-part.{offset:020}").as_bytes()].concat()
}

/// The header, with a pax header before it where that is needed.
pub(crate) fn header(member: &Member<'_>) -> Vec<u8> {
    let records = records(member);
    if records.is_empty() {
        return plain_header(member).as_bytes().to_vec();
    }
    with_records(member, records)
}

/// The header filled up to `length`, a multiple of 512 that is at least [`header_room`].
pub(crate) fn header_of_length(member: &Member<'_>, length: usize) -> Vec<u8> {
    let needed = records(member);
    let missing = length.saturating_sub(2 * BLOCK + needed.len().max(1).next_multiple_of(BLOCK));
    // With no record at all there would be no block of records either.
    let filler = if needed.is_empty() { missing + BLOCK } else { missing };
    if filler == 0 {
        return with_records(member, needed);
    }
    let digits = filler.to_string();
    let spaces = " ".repeat(filler - digits.len() - " comment=\n".len());
    let mut records = format!("{digits} comment={spaces}\n").into_bytes();
    records.extend_from_slice(&needed);
    with_records(member, records)
}

/// The length that a header of this member may need at most in [`header_of_length`].
pub(crate) fn header_room(member: &Member<'_>) -> usize {
    2 * BLOCK + records(member).len().max(1).next_multiple_of(BLOCK)
}

/// Zeros that follow content of this length.
pub(crate) fn padding(length: u64) -> usize {
    let over = usize::try_from(length % BLOCK as u64).expect("less than a block");
    (BLOCK - over) % BLOCK
}

/// The map of a sparse member (GNU.sparse 1.0): how many pieces, then where and how long each is.
pub(crate) fn sparse_map(pieces: &[(u64, u64)]) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len());
    for (offset, length) in pieces {
        writeln!(map, "{offset}\n{length}").expect("a String takes everything");
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn with_records(member: &Member<'_>, mut records: Vec<u8>) -> Vec<u8> {
    let mut pax = Header::new_ustar();
    set_name(&mut pax, b"./PaxHeaders/entry");
    pax.set_mode(0o600);
    pax.set_uid(0);
    pax.set_gid(0);
    pax.set_mtime(0);
    pax.set_size(records.len() as u64);
    pax.set_entry_type(EntryType::XHeader);
    pax.set_cksum();
    records.resize(records.len().next_multiple_of(BLOCK), 0);
    [pax.as_bytes().as_slice(), &records, plain_header(member).as_bytes()].concat()
}

fn plain_header(member: &Member<'_>) -> Header {
    let entry = member.entry;
    let mut header = Header::new_ustar();
    set_name(&mut header, member.name);
    header.set_mode(entry.mode & 0o7777);
    header.set_uid(entry.uid.min(MAX_OCTAL_ID).into());
    header.set_gid(entry.gid.min(MAX_OCTAL_ID).into());
    header.set_mtime(u64::try_from(entry.mtime.0).unwrap_or(0).min(MAX_OCTAL_SIZE));
    header.set_size(member.content.stored().min(MAX_OCTAL_SIZE));
    header.set_entry_type(member.content.entry_type());
    if let Content::Link(target) | Content::Symlink(target) = member.content {
        let field = &mut header.as_ustar_mut().expect("made as ustar").linkname;
        copy_into(field, target);
    }
    header.set_cksum();
    header
}

fn set_name(header: &mut Header, name: &[u8]) {
    copy_into(&mut header.as_ustar_mut().expect("made as ustar").name, name);
}

/// What does not fit is cut; the pax record has the whole.
fn copy_into(field: &mut [u8; NAME], text: &[u8]) {
    let length = text.len().min(NAME);
    field[..length].copy_from_slice(&text[..length]);
}

/// What the plain header cannot say.
fn records(member: &Member<'_>) -> Vec<u8> {
    let entry = member.entry;
    let mut records = Records::default();
    if member.name.len() > NAME {
        records.add("path", member.name);
    }
    match member.content {
        Content::Link(target) | Content::Symlink(target) if target.len() > NAME => {
            records.add("linkpath", target);
        }
        Content::Sparse { real, .. } => {
            records.add("GNU.sparse.major", b"1");
            records.add("GNU.sparse.minor", b"0");
            records.add("GNU.sparse.name", member.name);
            records.add("GNU.sparse.realsize", real.to_string().as_bytes());
        }
        _ => {}
    }
    if member.content.stored() > MAX_OCTAL_SIZE {
        records.add("size", member.content.stored().to_string().as_bytes());
    }
    for (key, id) in [("uid", entry.uid), ("gid", entry.gid)] {
        if id > MAX_OCTAL_ID {
            records.add(key, id.to_string().as_bytes());
        }
    }
    let Time(seconds, nanoseconds) = entry.mtime;
    if nanoseconds != 0 || !(0..=MAX_OCTAL_SIZE.cast_signed()).contains(&seconds) {
        records.add("mtime", pax_time(entry.mtime).as_bytes());
    }
    for (name, value) in &entry.xattrs.0 {
        records.add_bytes(&[b"SCHILY.xattr.", xattr_key(name).as_slice()].concat(), value);
    }
    records.0
}

#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, key: &str, value: &[u8]) {
        self.add_bytes(key.as_bytes(), value);
    }

    /// Each record begins with its own length in decimal, that number included.
    fn add_bytes(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + " =\n".len();
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        self.0.extend_from_slice(length.to_string().as_bytes());
        self.0.push(b' ');
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }
}

/// GNU tar reads `%3D` and `%25` in these keys as the characters that would end them.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b'=' => b"%3D".to_vec(),
        b'%' => b"%25".to_vec(),
        _ => vec![byte],
    };
    name.iter().flat_map(escape).collect()
}

/// Decimal seconds; before 1970 the fraction counts away from zero, as in any decimal number.
fn pax_time(Time(seconds, nanoseconds): Time) -> String {
    if seconds >= 0 || nanoseconds == 0 {
        format!("{seconds}.{nanoseconds:09}")
    } else {
        format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Xattrs;

    /// C43: times before 1970, with fractions.
    #[test]
    fn c43_times_are_decimal() {
        assert_eq!(pax_time(Time(-1, 0)), "-1.000000000");
        assert_eq!(pax_time(Time(-2, 500_000_000)), "-1.500000000");
        assert_eq!(pax_time(Time(-1, 999_999_999)), "-0.000000001");
        assert_eq!(pax_time(Time(1_700_000_000, 123_456_789)), "1700000000.123456789");
    }

    #[test]
    fn records_count_their_own_length() {
        for value in [1, 5, 85, 86, 87, 88, 89, 90, 985, 9_985] {
            let mut records = Records::default();
            records.add("path", &vec![b'x'; value]);
            let length: usize =
                String::from_utf8_lossy(&records.0).split(' ').next().unwrap().parse().unwrap();
            assert_eq!(length, records.0.len(), "a value of {value} bytes");
        }
    }

    #[test]
    fn a_header_can_be_filled_up_to_any_larger_length() {
        let entry = Entry {
            root: 0,
            path: vec![b'x'; 300],
            kind: Kind::Dir,
            mode: 0o644,
            uid: 1,
            gid: 1,
            mtime: Time(5, 5),
            xattrs: Xattrs::default(),
        };
        let member = Member { name: &entry.path, entry: &entry, content: Content::File(7) };
        let room = header_room(&member);
        for extra in [0, 1, 2, 7, 700] {
            let bytes = header_of_length(&member, room + extra * BLOCK);
            assert_eq!(bytes.len(), room + extra * BLOCK);
            let archive = [bytes.as_slice(), &[b'c'; 7], &[0; 505 + 1024]].concat();
            let mut archive = tar::Archive::new(archive.as_slice());
            let found = archive.entries().unwrap().next().unwrap().unwrap();
            assert_eq!(found.path_bytes().as_ref(), entry.path);
            assert_eq!(found.size(), 7);
        }
    }
}

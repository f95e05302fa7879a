//! Where a file has data, and in which pieces it is stored.

use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::format::{FRAME_SIZE, MIN_HOLE};

/// More pieces than this are not worth a map: the smallest holes are stored as zeros.
const MAX_PIECES: usize = 64 << 10;

/// Offset and length of the data of a file, holes left out; `None` where it has no hole.
pub(crate) fn data(file: impl AsFd, size: u64) -> Result<Option<Vec<(u64, u64)>>, Errno> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => size,
            // Not every file system knows holes.
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error),
        };
        if start >= size {
            break;
        }
        let end = match seek(&file, SeekFrom::Hole(start)) {
            Ok(end) => end.clamp(start + 1, size),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error),
        };
        add(&mut pieces, start, end);
        at = end;
    }
    let tail = pieces.last().map_or(0, |(offset, length)| offset + length);
    if size - tail < MIN_HOLE && tail > 0 {
        let last = pieces.last_mut().expect("one ends at a place above 0");
        last.1 = size - last.0;
    }
    Ok(if pieces == [(0, size)] || size == 0 { None } else { Some(pieces) })
}

/// Adds a piece; a hole before it that is too short becomes data.
fn add(pieces: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    let many = pieces.len() >= MAX_PIECES;
    match pieces.last_mut() {
        Some(last) if many || start - (last.0 + last.1) < MIN_HOLE => last.1 = end - last.0,
        None if start < MIN_HOLE => pieces.push((0, end)),
        _ => pieces.push((start, end - start)),
    }
}

/// Cuts pieces at the multiples of the frame size: the windows that become frames.
pub(crate) fn windows(pieces: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> + '_ {
    pieces.iter().flat_map(|&(offset, length)| {
        let (mut at, end) = (offset, offset + length);
        std::iter::from_fn(move || {
            let next = (at / FRAME_SIZE as u64 + 1) * FRAME_SIZE as u64;
            let window = (at, next.min(end).checked_sub(at).filter(|&length| length > 0)?);
            at = next.min(end);
            Some(window)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_holes_are_data() {
        let mut pieces = Vec::new();
        add(&mut pieces, 10, 20);
        add(&mut pieces, 20 + MIN_HOLE - 1, 100 << 10);
        add(&mut pieces, 1 << 20, 2 << 20);
        assert_eq!(pieces, [(0, 100 << 10), (1 << 20, 1 << 20)]);
    }

    #[test]
    fn holes_of_a_real_file_are_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        assert_eq!(data(&file, 16 << 20).unwrap(), Some(vec![]));
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 8 << 20).unwrap();
        assert_eq!(data(&file, 16 << 20).unwrap(), Some(vec![(8 << 20, 4096)]));
        file.set_len((8 << 20) + 5000).unwrap();
        assert_eq!(data(&file, (8 << 20) + 5000).unwrap(), Some(vec![(8 << 20, 5000)]));
    }

    proptest! {
        #[test]
        fn windows_cover_every_piece(lengths in proptest::collection::vec((1u64..9 << 20, 1u64..20 << 20), 0..6)) {
            let mut at = 0;
            let pieces: Vec<_> = lengths.into_iter().map(|(hole, length)| {
                let piece = (at + hole, length);
                at += hole + length;
                piece
            }).collect();
            let frame = FRAME_SIZE as u64;
            let mut covered: Vec<(u64, u64)> = Vec::new();
            for (offset, length) in windows(&pieces) {
                prop_assert!(length > 0 && offset / frame == (offset + length - 1) / frame);
                match covered.last_mut() {
                    Some(last) if last.0 + last.1 == offset => last.1 += length,
                    _ => covered.push((offset, length)),
                }
            }
            prop_assert_eq!(covered, pieces);
        }
    }
}

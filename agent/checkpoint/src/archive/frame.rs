//! One zstd frame: compressed where that helps, else its content in raw blocks.

use std::io::{self, IoSlice};

use zstd::bulk::Compressor;

/// Fast enough to keep up with a disk, and close to what higher levels gain on weights.
const LEVEL: i32 = 1;
/// A gain of less than one part in this many is not worth the time to read it back.
const MIN_GAIN: usize = 12;
/// Bytes of each of the samples that tell whether compression helps.
const SAMPLE: usize = 16 << 10;
/// The most that a block of a frame may hold.
const MAX_BLOCK: usize = 128 << 10;
/// Magic number, descriptor (one segment, 4 bytes of length), length.
const RAW_HEADER: usize = 9;
const BLOCK_HEADER: usize = 3;

/// The content of a frame, ready to be written.
pub(crate) enum Body {
    /// A zstd frame.
    Compressed(Vec<u8>),
    /// Content that is to be put into raw blocks.
    Raw(Vec<u8>),
}

/// Compresses, or finds that it is no use; `spare` is a buffer that may be taken.
///
/// Gives back the buffer that is free afterwards.
pub(crate) fn encode(
    compressor: &mut Compressor<'_>,
    content: Vec<u8>,
    mut spare: Vec<u8>,
) -> io::Result<(Body, Vec<u8>)> {
    spare.clear();
    if !is_promising(compressor, &content, &mut spare)? {
        return Ok((Body::Raw(content), spare));
    }
    spare.clear();
    spare.reserve(zstd::zstd_safe::compress_bound(content.len()));
    compressor.compress_to_buffer(&content, &mut spare)?;
    if spare.len() < raw_len(content.len()) {
        Ok((Body::Compressed(spare), content))
    } else {
        Ok((Body::Raw(content), spare))
    }
}

/// A compressor as every frame uses it.
pub(crate) fn compressor() -> io::Result<Compressor<'static>> {
    Compressor::new(LEVEL)
}

/// Whether samples of the content get smaller by compression.
fn is_promising(
    compressor: &mut Compressor<'_>,
    content: &[u8],
    spare: &mut Vec<u8>,
) -> io::Result<bool> {
    if content.len() < 16 * SAMPLE {
        return Ok(true);
    }
    let middle = (content.len() - SAMPLE) / 2;
    let mut compressed = 0;
    let starts = [middle / 2, middle, middle + middle / 2];
    for start in starts {
        spare.clear();
        spare.reserve(zstd::zstd_safe::compress_bound(SAMPLE));
        compressed += compressor.compress_to_buffer(&content[start..start + SAMPLE], spare)?;
    }
    let sampled = starts.len() * SAMPLE;
    Ok(compressed + sampled / MIN_GAIN < sampled)
}

/// The length of a frame of raw blocks.
pub(crate) fn raw_len(content: usize) -> usize {
    RAW_HEADER + content + BLOCK_HEADER * content.div_ceil(MAX_BLOCK).max(1)
}

/// A frame of raw blocks, whose length depends on that of the content alone.
pub(crate) fn raw(content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(raw_len(content.len()));
    let (head, blocks) = raw_headers(content.len());
    frame.extend_from_slice(&head);
    for (header, block) in blocks.iter().zip(raw_blocks(content)) {
        frame.extend_from_slice(header);
        frame.extend_from_slice(block);
    }
    frame
}

/// Writes a frame of raw blocks without copying the content.
pub(crate) fn write_raw(
    content: &[u8],
    mut write: impl FnMut(&mut [IoSlice<'_>]) -> io::Result<()>,
) -> io::Result<()> {
    let (head, blocks) = raw_headers(content.len());
    let mut slices = vec![IoSlice::new(&head)];
    for (header, block) in blocks.iter().zip(raw_blocks(content)) {
        slices.push(IoSlice::new(header));
        slices.push(IoSlice::new(block));
    }
    write(&mut slices)
}

fn raw_blocks(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A frame has at least one block, be it an empty one.
    content.chunks(MAX_BLOCK).chain(content.is_empty().then_some(content))
}

fn raw_headers(length: usize) -> ([u8; RAW_HEADER], Vec<[u8; BLOCK_HEADER]>) {
    const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
    const ONE_SEGMENT_FOUR_BYTES: u8 = 0b1010_0000;
    let mut head = [0; RAW_HEADER];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = ONE_SEGMENT_FOUR_BYTES;
    let stated = u32::try_from(length).expect("a frame has at most a few MiB");
    head[5..].copy_from_slice(&stated.to_le_bytes());
    let count = length.div_ceil(MAX_BLOCK).max(1);
    let block = |index: usize| {
        let is_last = index + 1 == count;
        let size = (length - index * MAX_BLOCK).min(MAX_BLOCK);
        let header = u32::try_from(size << 3 | usize::from(is_last)).expect("21 bits");
        let [a, b, c, _] = header.to_le_bytes();
        [a, b, c]
    };
    (head, (0..count).map(block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn noise_is_stored_in_raw_blocks() {
        let content = noise(4 << 20);
        let mut compressor = compressor().unwrap();
        let (body, _) = encode(&mut compressor, content.clone(), Vec::new()).unwrap();
        assert!(matches!(&body, Body::Raw(same) if *same == content));
        let (body, _) = encode(&mut compressor, vec![7; 4 << 20], Vec::new()).unwrap();
        assert!(matches!(&body, Body::Compressed(small) if small.len() < 1000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn raw_blocks_are_a_zstd_frame(length in prop_oneof![0usize..300, 131_070usize..131_075, 262_140usize..400_000]) {
            let content = noise(length);
            let frame = raw(&content);
            prop_assert_eq!(frame.len(), raw_len(length));
            prop_assert_eq!(zstd::bulk::decompress(&frame, length).unwrap(), &content[..]);
            let mut written = Vec::new();
            write_raw(&content, |slices| {
                slices.iter().for_each(|slice| written.extend_from_slice(slice));
                Ok(())
            }).unwrap();
            prop_assert_eq!(written, frame);
        }
    }
}

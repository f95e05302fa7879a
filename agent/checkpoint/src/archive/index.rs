//! Which frames the job's good checkpoints hold already.

use std::collections::HashMap;

use crate::format::{Entry, FRAME_SIZE, FrameRef, Hash};

/// Frames that are remembered: 512 GiB in frames of 4 MiB, in about 12 MiB of memory.
const MAX_FRAMES: usize = 128 << 10;

/// Frames of large files by their hash.
#[derive(Default)]
pub(crate) struct FrameIndex {
    frames: HashMap<Hash, Place>,
}

/// A [`FrameRef`] without its hash; lengths are limited to a few MiB.
#[derive(Clone, Copy)]
struct Place {
    seq: u64,
    at: u64,
    stored: u32,
    len: u32,
}

impl FrameIndex {
    /// Adds the frames of an entry that hold nothing but its content; false once it is full.
    pub(crate) fn add(&mut self, entry: &Entry) -> bool {
        let whole = |frame: &FrameRef, len| frame.len == len && frame.len <= FRAME_SIZE as u64;
        let shared = entry.file().is_some_and(|file| file.hash.is_some());
        for chunk in entry.chunks().iter().filter(|chunk| !shared && whole(&chunk.frame, chunk.len))
        {
            if self.frames.len() >= MAX_FRAMES {
                return false;
            }
            let FrameRef { seq, at, stored, len, hash } = chunk.frame;
            let (Ok(stored), Ok(len)) = (stored.try_into(), len.try_into()) else { continue };
            self.frames.entry(hash).or_insert(Place { seq, at, stored, len });
        }
        true
    }

    /// Where a frame of this content is.
    pub(crate) fn get(&self, hash: &Hash) -> Option<FrameRef> {
        let &Place { seq, at, stored, len } = self.frames.get(hash)?;
        Some(FrameRef { seq, at, stored: stored.into(), len: len.into(), hash: *hash })
    }
}

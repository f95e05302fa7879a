//! The types of what is stored, as `docs/format.md` describes them; no IO.

pub mod manifest;
pub mod record;
pub mod text;

pub use manifest::{Chunk, Entry, FileData, Header, Identity, Kind, Time};
pub use record::{AttemptOutcome, CommitRecord, EpochRecord, JobRecord, Outcomes};

/// The version that is written, and the only one there is.
pub const FORMAT: u32 = 1;

/// Content of a frame of a large file, and the most that small files share one frame.
pub const FRAME_SIZE: usize = 4 << 20;

/// Files below this share frames.
pub const SMALL_FILE: u64 = 128 << 10;

/// Holes shorter than this are stored as zeros.
pub const MIN_HOLE: u64 = 64 << 10;

/// Most paths and sentences that a commit record lists.
pub const MAX_LISTED: usize = 64;

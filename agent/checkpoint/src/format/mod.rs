//! The types of what is stored, as `docs/format.md` describes them; no IO.

pub(crate) mod line;
pub mod manifest;
pub mod record;
pub mod text;

pub use manifest::{
    Chunk, Entry, EntryRef, FileData, FrameRef, Hash, Header, Identity, Kind, Time, Xattrs,
};
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

/// The largest frame that a reader takes, stored and decompressed.
pub const MAX_FRAME: u64 = 16 << 20;

/// Chunks on one line of the manifest; what is more goes on in the next lines.
pub const CHUNKS_PER_LINE: usize = 4096;

/// The longest line of a manifest that a reader takes: a path, the largest xattrs, the chunks.
pub const MAX_LINE: usize = 32 << 20;

/// How names begin that a restore uses in a target until it is complete; no capture takes them.
pub const RESTORE_PREFIX: &str = ".nodus-restore-";

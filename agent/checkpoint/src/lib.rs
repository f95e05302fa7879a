//! Directories to checkpoints and back.
//!
//! A synchronous library that knows no jobs' lives and no sockets: it captures directories, writes
//! them as verified, incremental checkpoints into a store, and restores, verifies, exports and
//! deletes those. The format is `docs/format.md`.

pub mod archive;
pub mod choose;
mod durable;
pub mod error;
pub mod format;
pub mod outcomes;
pub mod retention;
pub mod store;
pub mod stored;

pub use error::{Error, Result};

//! Directories to checkpoints and back.
//!
//! A synchronous library that knows no jobs' lives and no sockets: it captures directories, writes
//! them as verified, incremental checkpoints into a store, and restores, verifies, exports and
//! deletes those. The format is `docs/format.md`.

pub mod archive;
mod capture;
pub mod choose;
pub mod control;
pub mod durable;
pub mod error;
pub mod export;
pub mod format;
pub mod identity;
pub mod outcomes;
pub mod process;
pub mod restore;
pub mod retention;
pub mod root;
pub mod snapshot;
pub mod store;
pub mod stored;
mod sys;
pub mod verify;

pub use control::Control;
pub use error::{Error, Result};
pub use identity::Credentials;
pub use root::Root;

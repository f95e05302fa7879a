//! The short part of a snapshot: walk the job's paths, read what is small, hold on to what is large.

pub(crate) mod attr;
pub(crate) mod copy;
mod file;
pub(crate) mod findings;
mod names;
mod open;
mod pieces;
pub(crate) mod previous;
pub(crate) mod recorder;
pub(crate) mod spool;
pub(crate) mod walk;
mod xattr;

//! The data of a checkpoint: independent zstd frames whose whole is one tar.

pub(crate) mod frame;
pub(crate) mod index;
mod packer;
pub(crate) mod pipeline;
mod pool;
mod reader;
pub(crate) mod tar;
mod writer;

pub(crate) use packer::Packer;
pub(crate) use pipeline::{Pipeline, Reuse, Role, Ticket};
pub use reader::FrameReader;
pub(crate) use reader::decode;
pub(crate) use writer::{FileSpec, Written};

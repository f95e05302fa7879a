//! The data of a checkpoint: independent zstd frames whose whole is one tar.

mod reader;

pub use reader::FrameReader;

//! Everything that crosses a process boundary in Nodus, as types with their validation.
//!
//! The events a training program and the agent exchange ([`event`], framed by [`mod@line`]), the job a
//! user describes ([`spec`]), what the control API answers ([`control`]), and the words that every
//! surface shares ([`job`], [`checkpoint`], [`units`]). This crate does no IO and reads no clock.

pub mod checkpoint;
pub mod control;
pub mod event;
pub mod job;
pub mod line;
pub mod name;
pub mod spec;
pub mod units;

pub use name::{JobName, JobRef};

//! What people read, as pure functions of the protocol's types.

mod checkpoint;
mod describe;
mod event;
mod job;
mod table;
mod text;

#[cfg(test)]
pub(crate) mod samples;

pub use checkpoint::{checkpoint, checkpoint_list, restored, taken, verified};
pub use describe::describe;
pub use event::{event_line, is_trivial};
pub use job::{job_list, state};
pub use text::{Paint, Style};

//! Small members that share frames.

use super::pipeline::{Pipeline, Reuse, Role, Ticket};
use super::tar::{self, Member};
use crate::error::Result;
use crate::format::FRAME_SIZE;

/// Collects members until a frame is full.
#[derive(Default)]
pub(crate) struct Packer {
    frame: Option<(Ticket, Vec<u8>)>,
}

impl Packer {
    /// Adds a member; says in which frame its content is, and where in it.
    pub(crate) fn add(
        &mut self,
        pipeline: &mut Pipeline,
        member: &Member<'_>,
        content: &[u8],
    ) -> Result<(Ticket, u64)> {
        let header = tar::header(member);
        let padding = tar::padding(content.len() as u64);
        let length = header.len() + content.len() + padding;
        if self.frame.as_ref().is_some_and(|(_, frame)| frame.len() + length > FRAME_SIZE) {
            self.flush(pipeline)?;
        }
        let (ticket, frame) =
            self.frame.get_or_insert_with(|| (pipeline.ticket(), pipeline.buffer()));
        frame.extend_from_slice(&header);
        let skip = frame.len() as u64;
        frame.extend_from_slice(content);
        frame.resize(frame.len() + padding, 0);
        Ok((*ticket, skip))
    }

    /// Hands over what there is.
    pub(crate) fn flush(&mut self, pipeline: &mut Pipeline) -> Result<()> {
        match self.frame.take() {
            Some((ticket, frame)) => pipeline.frame(ticket, Role::Members, frame, Reuse::default()),
            None => Ok(()),
        }
    }
}

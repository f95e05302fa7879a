//! What arrives at a job's task: notes of its work, messages of programs, and its timers.

use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::Cause;
use nodus_protocol::control::JobEvent;
use nodus_protocol::event::ProgramMessage;

use super::lifecycle::{Intent, Stage};
use super::task::{JobTask, Note, take_due};
use super::{Ask, lifecycle, timestamp};
use crate::coordinator;
use crate::events::ClientEvent;

/// How often progress is written down at most; a cursor is a hint about where to go on.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

impl JobTask {
    pub(super) fn question(&mut self, question: Ask) {
        match question {
            Ask::Suspend(reply) => self.end("suspend", Intent::Suspend, reply),
            Ask::Stop(reply) => self.end("stop", Intent::Stop, reply),
            Ask::Delete(reply) => self.delete(reply),
            Ask::Resume(reply) => {
                let resumed = self.resume();
                self.publish();
                let answer = resumed.map(|()| self.view.borrow().detail.info.clone());
                let _ = reply.send(answer);
            }
            Ask::Checkpoint { urgent, reply } => {
                self.checkpoint(Cause::Request, urgent, None, reply);
            }
            Ask::Reclaim { reclaim, reply } => self.reclaim(reclaim, reply),
            Ask::DeleteCheckpoint { seq, reply } => {
                let _ = reply.send(self.delete_checkpoint(seq));
            }
            Ask::Epoch(reply) => {
                let _ = reply.send(self.some_epoch());
            }
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        match note {
            Note::Prepared(preparing) => self.preparing_over(*preparing),
            Note::Started(result) => self.started(*result),
            Note::Ended(end, at) => self.ended(end, at),
            Note::Epoch(opened) => self.epoch_found(*opened),
            Note::Captured { seq } => self.coordinate(coordinator::Event::Captured { seq }),
            Note::Copied(copied) => self.copied(*copied),
            Note::Restoring { seq, bytes } => self.emit(JobEvent::Restoring { seq, bytes }),
            Note::Printed(message, offset) => {
                if let Some(attempt) = self.record.attempts.last_mut() {
                    attempt.log_offset = offset;
                }
                self.printed(&message);
            }
            Note::Warning(message) => self.warn(message),
            Note::Removed(result) => self.traces_removed(result),
        }
    }

    pub(super) fn client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Left { client } => {
                self.coordinate(coordinator::Event::Left { client });
            }
            ClientEvent::Message { client, peer, message } => {
                let pid = coordinator::Pid(peer.pid);
                match message {
                    ProgramMessage::Subscribe(subscription) => {
                        self.coordinate(coordinator::Event::Subscribed {
                            client,
                            pid,
                            subscription,
                        });
                    }
                    ProgramMessage::Ack(ack) => {
                        self.coordinate(coordinator::Event::Ack { pid, ack });
                    }
                    other => self.printed(&other),
                }
            }
        }
    }

    /// What a program can also say without a socket, by printing it.
    pub(super) fn printed(&mut self, message: &ProgramMessage) {
        match message {
            ProgramMessage::Progress(progress) => self.progress(*progress),
            ProgramMessage::Now if self.can_checkpoint().is_ok() => {
                self.trigger(Cause::Request, false, None, None);
            }
            _ => {}
        }
    }

    pub(super) fn progress(&mut self, progress: nodus_protocol::event::Progress) {
        self.record.progress = Some(progress);
        self.cadence.progress(self.record.wall_time_at(timestamp()), progress);
        self.plan_checkpoint();
        self.wakes.progress.get_or_insert(Instant::now() + PROGRESS_PERIOD);
        self.emit(JobEvent::Progress(progress));
    }

    pub(super) fn woke(&mut self, now: Instant) {
        if take_due(&mut self.wakes.life, now) {
            self.live_on(lifecycle::Event::Woke);
        }
        if take_due(&mut self.wakes.coordinator, now) {
            self.coordinate(coordinator::Event::Woke);
        }
        if take_due(&mut self.wakes.checkpoint, now) && self.can_checkpoint().is_ok() {
            self.trigger(Cause::Interval, false, None, None);
        }
        if take_due(&mut self.wakes.limit, now)
            && matches!(self.life.stage(), Stage::Running { .. })
        {
            self.warn("maxWallTime is used up: the job is stopped".to_owned());
            self.live_on(lifecycle::Event::End(Intent::TimeUp));
        }
        if take_due(&mut self.wakes.removal, now) {
            self.remove();
        }
        if take_due(&mut self.wakes.retention, now) {
            self.retain();
        }
        if take_due(&mut self.wakes.progress, now) {
            self.save();
        }
    }
}

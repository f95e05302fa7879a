//! What a coordinator is told and what it asks for.

use std::fmt;
use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::{Cause, Outcome};
use nodus_protocol::control::JobEvent;
use nodus_protocol::event::{Ack, AgentMessage, Subscription};
use nodus_protocol::spec::{CheckpointPolicy, Integration, Quiesce};

use crate::events::ClientId;

/// The process at the other end of a connection; one can have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

/// Somebody who asked for a checkpoint and is told once how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// What the job's description says about asking the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether the program is asked.
    pub integration: Integration,
    /// How long an ack is waited for, where no deadline decides.
    pub ack_timeout: Duration,
    /// Whether a program that was not asked is frozen for the capture.
    pub quiesce: Quiesce,
}

impl From<&CheckpointPolicy> for Settings {
    fn from(policy: &CheckpointPolicy) -> Self {
        Self {
            integration: policy.integration,
            ack_timeout: policy.ack_timeout,
            quiesce: policy.quiesce,
        }
    }
}

/// A wish for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Why.
    pub cause: Cause,
    /// Whether the program should skip optional work.
    pub urgent: bool,
    /// When the checkpoint has to be committed, where something outside sets that time.
    pub deadline: Option<Instant>,
    /// How long the copy is expected to take: the part of the time up to `deadline` that is not
    /// spent on waiting for acks.
    pub expected_copy: Duration,
    /// Who wants to know how it ends.
    pub waiter: Option<WaiterId>,
}

/// What a coordinator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Take a checkpoint.
    Trigger(Trigger),
    /// A client asks to be told before each checkpoint.
    Subscribed {
        /// The connection.
        client: ClientId,
        /// Whose it is.
        pid: Pid,
        /// Its options.
        subscription: Subscription,
    },
    /// A connection is gone.
    Left {
        /// Which.
        client: ClientId,
    },
    /// A process answers a request.
    Ack {
        /// Which process.
        pid: Pid,
        /// What it says.
        ack: Ack,
    },
    /// The copy no longer depends on the program's files.
    Captured {
        /// Of which checkpoint.
        seq: u64,
    },
    /// A capture or its copy has come to an end, in whichever way.
    Ended {
        /// Of which checkpoint.
        seq: u64,
        /// How.
        outcome: Outcome,
    },
    /// The program of an attempt runs.
    AttemptStarted,
    /// Every process of the attempt is gone.
    AttemptEnded {
        /// Whether it ended by itself with 0.
        clean: bool,
    },
    /// A time that was asked for by [`Action::WakeAt`] has come.
    Woke,
}

/// What the shell has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message to a client.
    Send {
        /// To which connection.
        client: ClientId,
        /// What.
        message: AgentMessage,
    },
    /// Capture the paths, then copy and commit; answered by [`Event::Captured`], if it comes that
    /// far, and always by [`Event::Ended`].
    Capture {
        /// The number of the checkpoint.
        seq: u64,
        /// Why it is taken.
        cause: Cause,
        /// What is known about the files.
        trust: Trust,
        /// Whether to freeze the attempt meanwhile.
        freeze: bool,
    },
    /// Send [`Event::Woke`] then; replaces an earlier one. One that comes for nothing is harmless.
    WakeAt(Instant),
    /// A checkpoint is over.
    Done(Done),
    /// No checkpoint will be taken for this waiter: no attempt is running.
    Rejected {
        /// Whom to tell.
        waiter: WaiterId,
    },
    /// For the log, the listing of events and standalone mode.
    Emit(JobEvent),
}

/// A checkpoint that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub seq: u64,
    /// Why it was taken.
    pub cause: Cause,
    /// How it ended.
    pub outcome: Outcome,
    /// What it cost, where that says something about the next one.
    pub cost: Option<Cost>,
    /// Who wanted to know.
    pub waiters: Vec<WaiterId>,
}

/// What a checkpoint of a running program cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// B: from the request to the end of the capture; from its beginning where no ack came, since
    /// such a program worked on.
    pub held_up: Duration,
    /// D: from the same moment to the end of the copy.
    pub until_committed: Duration,
    /// Whether it was committed; what a failed one took is only a lower bound.
    pub committed: bool,
}

/// What is known about the files when a capture begins: the first half of the verdict that becomes
/// the checkpoint's consistency. The other half is what capture and copy see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every subscriber said that its files are complete, or the program had ended with 0.
    Acked,
    /// Nobody vouches for them.
    NotAcked {
        /// A process that had been asked went away, or the whole attempt ended, before it said
        /// that its files are complete: they can be half written although nobody writes them.
        request_open_at_death: bool,
        /// Why nobody vouches.
        reason: NotAcked,
    },
}

/// Why nobody vouches for the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAcked {
    /// The job's description says not to ask.
    NotAsked,
    /// Nobody had subscribed.
    NoSubscriber,
    /// The deadline left no time to ask.
    NoTime,
    /// Not every ack came in time.
    TimedOut,
    /// A process that had been asked went away without an ack.
    GoneBeforeAck,
    /// The attempt ended otherwise than with 0 while nobody was being asked.
    Exited,
}

impl fmt::Display for NotAcked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "the job is configured not to ask",
            Self::NoSubscriber => "no program had subscribed",
            Self::NoTime => "no time was left to ask",
            Self::TimedOut => "the program did not acknowledge in time",
            Self::GoneBeforeAck => "the program went away before it acknowledged",
            Self::Exited => "the program had ended",
        })
    }
}

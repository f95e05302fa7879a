//! Who is connected, and what a job hears of it.

use std::fmt;

use nodus_protocol::JobName;
use nodus_protocol::event::ProgramMessage;

/// One connection; never used again for another one while the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The process at the other end, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its process id when it connected; 0 where the agent's namespace does not have one for it.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
}

/// The socket that a client came through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// The one for all jobs of the node.
    Common,
    /// The one of this job alone.
    Job(JobName),
}

/// What a job hears of its clients, in order for each client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A message; its first one makes the client known. A repeated `id` has been dropped.
    Message {
        /// Who sent it, and where an answer goes.
        client: ClientId,
        /// The process and user that it came from.
        peer: Peer,
        /// What it says; never `Unknown`.
        message: ProgramMessage,
    },
    /// The client closed the connection, died or was dropped. Nothing follows from it.
    ///
    /// Only told of clients from which a message came.
    Left {
        /// Who.
        client: ClientId,
    },
}

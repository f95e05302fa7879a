//! The bounds of the server.

use std::time::Duration;

/// Connections of all jobs: well below the descriptors that the service unit grants (65536), with
/// room for the files of running checkpoints.
const CONNECTIONS: usize = 4096;

/// Connections of one job: every rank and data loader of a large node, and no runaway loop.
const CONNECTIONS_PER_JOB: usize = 256;

/// Messages waiting for one client. A checkpoint has at most four, so this is dozens of them.
const OUTBOX_MESSAGES: usize = 256;

/// Bytes waiting for one client, since a failure's text may be long.
const OUTBOX_BYTES: usize = 1 << 20;

/// A client whose socket stays full for this long does not read. Short of any `ackTimeout`, so
/// that it is no longer waited for well before.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages waiting for one job; beyond it, its clients' readers wait.
const JOB_QUEUE: usize = 256;

/// Message ids remembered for each job: a client repeats what it sent right before a
/// reconnection, not what it sent thousands of messages ago.
const SEEN_IDS: usize = 4096;

/// How much the server holds, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections in all.
    pub connections: usize,
    /// Open connections of one job.
    pub connections_per_job: usize,
    /// Messages waiting for one client.
    pub outbox_messages: usize,
    /// Bytes waiting for one client.
    pub outbox_bytes: usize,
    /// How long one message may take to write.
    pub write_timeout: Duration,
    /// Messages waiting for one job.
    pub job_queue: usize,
    /// Message ids remembered for one job.
    pub seen_ids: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            connections_per_job: CONNECTIONS_PER_JOB,
            outbox_messages: OUTBOX_MESSAGES,
            outbox_bytes: OUTBOX_BYTES,
            write_timeout: WRITE_TIMEOUT,
            job_queue: JOB_QUEUE,
            seen_ids: SEEN_IDS,
        }
    }
}

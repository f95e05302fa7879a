//! One connection, from its acceptance to its end.

use std::io;
use std::time::Duration;

use nodus_protocol::event::{AgentMessage, FromProgram, InvalidMessage, ProgramMessage};
use nodus_protocol::line::{Line, LineBuffer};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

use super::client::{ClientEvent, Peer};
use super::member::Member;

/// Bytes read at once.
const READ_SIZE: usize = 8 * 1024;

/// A client that is sent away gets this long to read why: closing a socket with unread bytes in
/// it would show the client a reset instead.
const LINGER: Duration = Duration::from_millis(500);

/// Bytes of such a client that are read and thrown away; one that goes on is cut off.
const LINGER_BYTES: usize = 1 << 20;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client closed it, or died.
    Closed,
    /// The client sent a line without an end in sight.
    TooLong,
    /// The job was removed, the agent stops, or the client did not read.
    Told,
}

/// Serves an admitted client until either side ends the connection.
pub(super) async fn run(mut member: Member, stream: UnixStream) {
    let (reader, writer) = stream.into_split();
    let limit = member.write_timeout();
    let pending = member.take_pending();
    let writing = tokio::spawn(async move {
        if let Some(pending) = pending {
            pending.write_to(writer, limit).await;
        }
    });
    let closing = member.closing().clone();
    let end = tokio::select! {
        end = read(&mut member, &reader) => end,
        () = closing.cancelled() => End::Told,
    };
    let abort = writing.abort_handle();
    if member.is_lost() {
        tracing::warn!(
            job = %member.job(), client = %member.client(), pid = member.peer().pid,
            "client does not read or is gone; dropped"
        );
        abort.abort();
    }
    // Ends the writer once it has written what waits.
    member.leave().await;
    if timeout(limit, writing).await.is_err() {
        abort.abort();
    } else if end != End::Closed {
        drain(&reader).await;
    }
}

/// Tells a client that is not let in why. Does not wait: a new client's socket has room for a line.
pub(super) fn try_refuse(stream: &UnixStream, reason: &str) {
    let line = AgentMessage::Error { message: reason.to_owned() }.to_line();
    // A client that is gone already does not miss it.
    let _ = stream.try_write(line.as_bytes());
}

/// Ends a connection, giving the client time to read what it was told last.
pub(super) async fn dismiss(stream: UnixStream) {
    let (reader, writer) = stream.into_split();
    drop(writer); // Shuts this direction down.
    drain(&reader).await;
}

/// The process at the other end, as it was when it connected.
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let credentials = stream.peer_cred()?;
    let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
    Ok(Peer { pid: pid.unwrap_or(0), uid: credentials.uid() })
}

async fn read(member: &mut Member, reader: &OwnedReadHalf) -> End {
    let mut buffer = LineBuffer::new();
    let mut lines = Vec::new();
    loop {
        // A client that never stops sending leaves others their turn, and `run` the chance to see
        // that it is to be dropped.
        tokio::task::yield_now().await;
        match read_some(reader, &mut buffer, &mut lines).await {
            Ok(0) | Err(_) => {
                report_unfinished(member, buffer.unfinished());
                return End::Closed;
            }
            Ok(_) => {}
        }
        for line in lines.drain(..) {
            let Line::Whole(line) = line else {
                member.answer(&InvalidMessage::TooLong);
                return End::TooLong;
            };
            match FromProgram::parse(&line) {
                Ok(message) => deliver(member, message).await,
                Err(error) => member.answer(&error),
            }
        }
    }
}

/// The buffer is not kept while waiting, so that an idle client costs almost no memory.
async fn read_some(
    reader: &OwnedReadHalf,
    buffer: &mut LineBuffer,
    lines: &mut Vec<Line>,
) -> io::Result<usize> {
    loop {
        reader.readable().await?;
        let mut bytes = [0; READ_SIZE];
        match reader.try_read(&mut bytes) {
            Ok(count) => {
                buffer.push(&bytes[..count], lines);
                return Ok(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn deliver(member: &mut Member, FromProgram { id, message }: FromProgram) {
    if let ProgramMessage::Unknown(message_type) = &message {
        let message_type: String = message_type.chars().take(64).collect();
        tracing::debug!(job = %member.job(), message_type, "ignored a message of an unknown type");
        return;
    }
    // A subscription belongs to its connection, and is one however often it is repeated: a client
    // that comes back with the same one has to be heard.
    let repeatable = matches!(message, ProgramMessage::Subscribe(_));
    if !repeatable && id.is_some_and(|id| !member.is_new(&id)) {
        return;
    }
    let (client, peer) = (member.client(), member.peer());
    member.tell_job(ClientEvent::Message { client, peer, message }).await;
}

fn report_unfinished(member: &Member, unfinished: &[u8]) {
    if !unfinished.is_empty() {
        tracing::warn!(
            job = %member.job(), client = %member.client(), pid = member.peer().pid,
            bytes = unfinished.len(), "connection ended inside a line; the line was not executed"
        );
    }
}

/// Reads and forgets until the client has closed its end, for a bounded time and length.
async fn drain(reader: &OwnedReadHalf) {
    let drained = timeout(LINGER, async {
        let mut left = LINGER_BYTES;
        let mut bytes = [0; READ_SIZE];
        while left > 0 && reader.readable().await.is_ok() {
            match reader.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    });
    // Whether the client closed or its time is over, the connection ends now.
    let _ = drained.await;
}

//! Unix sockets that are bound safely and stay reachable.
//!
//! [`Bound`] settles who may connect before the socket has its name, replaces what a dead agent
//! left, refuses to touch anything else, and binds again when something removes the socket under
//! the running agent. What is spoken on the socket is left to [`crate::events`] and the control
//! API.
//!
//! Two things decide who owns a path: an exclusive `flock` on `<path>.lock`, held for life
//! (`claim`), and whether anything answers on the socket that is there (`place`).

mod claim;
mod place;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior};

use claim::Claim;
use place::{Directory, FileId};

pub use place::{MAX_PATH, Owner, Place};

/// How often a bound socket is looked after: a client that finds no socket retries for longer.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// How often, and how many times, a claim is tried again that only a dying process can hold.
const CLAIM_RETRY: Duration = Duration::from_millis(10);
const CLAIM_RETRIES: u32 = 50;

/// Connections taken over from a listener that lost its name, at most.
const MAX_TAKEN_OVER: usize = 4096;

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The kernel would cut the path, or refuse it.
    #[error(
        "the socket path {} is {length} bytes long: at most {MAX_PATH} are allowed",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path has no file name.
    #[error("{} does not name a socket", path.display())]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// Anyone could replace the socket by their own.
    #[error(
        "everyone may write to the directory {} (mode {mode:o}): it must not be world-writable, or must be sticky",
        dir.display()
    )]
    OpenDirectory {
        /// The directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A running process serves it.
    #[error("the socket {} is in use by another process", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is not ours to remove.
    #[error("{} is a {kind}, not a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// In a directory for everyone, somebody else was there first.
    #[error("{} belongs to user {uid}: remove it or choose another path", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A socket that is served; it and its lock are removed when this is dropped.
#[derive(Debug)]
pub struct Bound {
    place: Place,
    claim: Claim,
    listener: UnixListener,
    id: FileId,
    /// Clients that had connected to a listener before it lost its name.
    taken_over: VecDeque<UnixStream>,
    checks: Interval,
    /// The last failure of a check, so that a lasting one is logged once.
    trouble: Option<String>,
}

impl Bound {
    /// Binds the socket, making its directory first where there is none.
    ///
    /// # Errors
    /// Where the path cannot be served safely; nothing that was there is removed then.
    pub async fn bind(place: Place) -> Result<Self, BindError> {
        let dir = Directory::prepare(&place)?;
        let claim = take_claim(&dir).await?;
        dir.vacate()?;
        let (listener, id) = listen(&dir)?;
        let mut checks = tokio::time::interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { place, claim, listener, id, taken_over: VecDeque::new(), checks, trouble: None })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Waits for the next client, looking after the socket meanwhile.
    ///
    /// Dropping the future loses no client.
    ///
    /// # Errors
    /// Those of `accept`, such as having no descriptor left; the socket can be used further.
    pub async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            if let Some(stream) = self.taken_over.pop_front() {
                return Ok(stream);
            }
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                _ = self.checks.tick() => self.look_after().await,
            }
        }
    }

    /// Makes the socket and its lock again where something removed them.
    fn restore(&mut self) -> Result<Restored, BindError> {
        let dir = Directory::prepare(&self.place)?;
        let lock_was_gone = self.claim.renew(&dir)?;
        if dir.occupant_id()? == Some(self.id) {
            return Ok(if lock_was_gone { Restored::Lock } else { Restored::Nothing });
        }
        dir.vacate()?;
        let (listener, id) = listen(&dir)?;
        self.id = id;
        Ok(Restored::Socket(std::mem::replace(&mut self.listener, listener)))
    }

    async fn look_after(&mut self) {
        match self.restore() {
            Ok(Restored::Nothing) => self.trouble = None,
            Ok(Restored::Lock) => {
                tracing::warn!(path = %self.path().display(), "the socket's lock was removed; locked again");
                self.trouble = None;
            }
            Ok(Restored::Socket(old)) => {
                tracing::warn!(path = %self.path().display(), "the socket was removed; bound again");
                self.trouble = None;
                self.take_over(&old).await;
            }
            Err(error) => {
                let trouble = error.to_string();
                if self.trouble.as_ref() != Some(&trouble) {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, "socket was removed and cannot be bound again");
                    self.trouble = Some(trouble);
                }
            }
        }
    }

    /// Keeps the clients that wait at a listener which nobody can find any more.
    async fn take_over(&mut self, old: &UnixListener) {
        while self.taken_over.len() < MAX_TAKEN_OVER {
            let next = std::future::poll_fn(|context| match old.poll_accept(context) {
                Poll::Ready(accepted) => Poll::Ready(accepted.ok()),
                Poll::Pending => Poll::Ready(None),
            });
            match next.await {
                Some((stream, _)) => self.taken_over.push_back(stream),
                None => break,
            }
        }
    }
}

/// What had to be made again.
enum Restored {
    Nothing,
    Lock,
    /// With the listener that lost its name.
    Socket(UnixListener),
}

impl Drop for Bound {
    /// Only what is still ours goes: the path may by now be somebody else's.
    fn drop(&mut self) {
        if let Ok(dir) = Directory::open(&self.place) {
            dir.remove_if(self.id);
            self.claim.release(&dir);
        }
    }
}

fn listen(dir: &Directory<'_>) -> Result<(UnixListener, FileId), BindError> {
    let (listener, id) = dir.bind()?;
    let listener =
        UnixListener::from_std(listener).map_err(|source| dir.io("watch the socket", source))?;
    Ok((listener, id))
}

/// A process that was just killed gives its lock and its guard back one after the other.
async fn take_claim(dir: &Directory<'_>) -> Result<Claim, BindError> {
    for _ in 0..CLAIM_RETRIES {
        match Claim::take(dir)? {
            Some(claim) => return Ok(claim),
            None => tokio::time::sleep(CLAIM_RETRY).await,
        }
    }
    Err(BindError::InUse { path: dir.path().to_owned() })
}

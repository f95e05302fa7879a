//! The events socket server: programs connect, and each job hears from its own (docs/protocol.md).
//!
//! [`EventsHub`] knows the jobs and their connected clients. [`EventsHub::serve`] takes clients
//! from a socket; there is a common one for the node and may be one for each job. Whose a client is
//! says the [`Resolver`] that the caller gives, from the peer's credentials and the socket.
//!
//! ```text
//!  socket -> admit -> client: reader -> job's queue -> (the job's owner)
//!                             writer <- outbox      <- EventsHub::send
//! ```
//!
//! Every queue is bounded. A job that does not take its messages holds back the readers of its own
//! clients, and of nobody else; a client that does not read its messages is dropped. What the
//! messages mean is left to the coordinator: this module knows no checkpoints.

mod client;
mod connection;
mod hub;
mod limits;
mod member;
mod outbox;
mod seen;
#[cfg(test)]
mod tests;

pub use client::{ClientEvent, ClientId, Peer, Via};
pub use hub::{EventsHub, JobSocketError, Resolver, Whose};
pub use limits::Limits;

//! The node-local agent: jobs, attempts, the events socket, cadence and the control API.

pub mod attempt;
pub mod config;
pub mod coordinator;
pub mod events;
pub mod recovery;
pub mod socket;
mod sys;
pub mod systemd;

//! The node-local agent: jobs, attempts, the events socket, cadence and the control API.
//!
//! [`engine`] holds all jobs of a process; [`daemon`] serves them to a node's users, and
//! [`standalone`] runs one of them where there is no agent.

pub mod attempt;
pub mod cadence;
pub mod config;
pub mod control;
pub mod coordinator;
pub mod daemon;
pub mod engine;
pub mod events;
pub mod job;
pub mod recovery;
pub mod socket;
pub mod standalone;
pub mod systemd;

mod sys;

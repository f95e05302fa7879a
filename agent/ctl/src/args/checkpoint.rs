//! `checkpoint ...` and `restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nodus_protocol::JobRef;

use super::{Slow, Wait};

/// `checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Take a checkpoint now and say how it ended
    #[command(after_help = "Example:\n  nodusctl checkpoint now job/train")]
    Now(Now),
    /// List the checkpoints of a job
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  nodusctl checkpoint list job/train --store ./store"
    )]
    List(ListCheckpoints),
    /// Show one checkpoint
    #[command(after_help = "Example:\n  nodusctl checkpoint show job/train 7")]
    Show(Show),
    /// Read a checkpoint's data and compare it with its hashes
    #[command(after_help = "Example:\n  nodusctl checkpoint verify job/train")]
    Verify(Verify),
    /// Write a checkpoint as one plain .tar.zst file
    #[command(after_help = "Example:\n  nodusctl checkpoint export job/train 7 -O train-7.tar.zst")]
    Export(Export),
    /// Delete one checkpoint
    #[command(after_help = "Example:\n  nodusctl checkpoint delete job/train 7")]
    Delete(DeleteCheckpoint),
}

/// A store that is read without an agent.
#[derive(Args, Debug)]
pub struct Direct {
    /// Read this store directly, without an agent
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
}

/// `checkpoint now`.
#[derive(Args, Debug)]
pub struct Now {
    /// The job, and how long to wait.
    #[command(flatten)]
    pub target: Slow,
    /// Tell the program that the capacity is about to go away
    #[arg(long)]
    pub urgent: bool,
}

/// `checkpoint list`.
#[derive(Args, Debug)]
pub struct ListCheckpoints {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// Where to read.
    #[command(flatten)]
    pub direct: Direct,
}

/// `checkpoint show`.
#[derive(Args, Debug)]
pub struct Show {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// The checkpoint's number [default: the newest that can be restored]
    pub seq: Option<u64>,
    /// Where to read.
    #[command(flatten)]
    pub direct: Direct,
}

/// `checkpoint verify`.
#[derive(Args, Debug)]
pub struct Verify {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// The checkpoint's number [default: every checkpoint]
    pub seq: Option<u64>,
    /// Where to read.
    #[command(flatten)]
    pub direct: Direct,
    /// How long to wait.
    #[command(flatten)]
    pub wait: Wait,
}

/// `checkpoint export`.
#[derive(Args, Debug)]
pub struct Export {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// The checkpoint's number [default: the newest that can be restored]
    pub seq: Option<u64>,
    /// Write to this file; - is standard output [default: standard output, if not a terminal]
    #[arg(short = 'O', long = "to-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Where to read.
    #[command(flatten)]
    pub direct: Direct,
}

/// `checkpoint delete`.
#[derive(Args, Debug)]
pub struct DeleteCheckpoint {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// The checkpoint's number
    pub seq: u64,
    /// Where to delete.
    #[command(flatten)]
    pub direct: Direct,
}

/// `restore`.
#[derive(Args, Debug)]
pub struct Restore {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// The checkpoint's number [default: the one that the next attempt would start from]
    #[arg(long, value_name = "S")]
    pub seq: Option<u64>,
    /// The directory to restore into. A job with one path is restored as this directory; with
    /// several, each path is restored below it
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Where to read.
    #[command(flatten)]
    pub direct: Direct,
    /// How long to wait.
    #[command(flatten)]
    pub wait: Wait,
}

//! The command line as types.

mod checkpoint;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nodus_protocol::JobRef;
use nodus_protocol::units::parse_duration;

pub use checkpoint::{
    CheckpointCommand, DeleteCheckpoint, Direct, Export, ListCheckpoints, Now, Restore, Show,
    Verify,
};
pub use run::{Places, Run};

use crate::exit;

/// Where the agent listens unless something else is said.
pub const DEFAULT_SOCKET: &str = "/run/nodus/control.sock";

const GLOBAL: &str = "Options of every command";

/// `nodusctl`.
#[derive(Debug, Parser)]
#[command(
    name = "nodusctl",
    version,
    about = "Run jobs that keep their progress through suspends, crashes and lost capacity",
    after_help = exit::HELP,
    max_term_width = 100,
    subcommand_required = true
)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Args, Debug)]
pub struct Global {
    /// Print tables for people, or JSON for programs
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t = OutputFormat::Table,
        hide_possible_values = true,
        value_name = "table|json",
        help_heading = GLOBAL
    )]
    pub output: OutputFormat,
    /// The control socket of the agent
    #[arg(
        long,
        global = true,
        env = "NODUS_CONTROL_SOCKET",
        default_value = DEFAULT_SOCKET,
        hide_env_values = true,
        value_name = "PATH",
        help_heading = GLOBAL
    )]
    pub socket: PathBuf,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For programs: the types of the control API.
    Json,
    /// For people.
    Table,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command as a job whose progress is kept
    #[command(
        after_help = "Example:\n  nodusctl run --name train --checkpoint /nodus/state -d -- python train.py"
    )]
    Run(Box<Run>),
    /// List jobs
    #[command(visible_alias = "ls", after_help = "Example:\n  nodusctl list -o json")]
    List,
    /// Show everything about a job: attempts, checkpoints, the cadence and why
    #[command(after_help = "Example:\n  nodusctl describe job/train")]
    Describe(Job),
    /// Print what a job's program wrote
    #[command(after_help = "Example:\n  nodusctl logs -f job/train")]
    Logs(Logs),
    /// Print what happens to a job while it happens
    #[command(after_help = "Example:\n  nodusctl events job/train")]
    Events(Job),
    /// Take a checkpoint, then stop the job until `resume`
    #[command(after_help = "Example:\n  nodusctl suspend job/train")]
    Suspend(Slow),
    /// Start the next attempt of a suspended job from its newest checkpoint
    #[command(after_help = "Example:\n  nodusctl resume job/train")]
    Resume(Job),
    /// End a job for good; its checkpoints stay
    #[command(after_help = "Example:\n  nodusctl stop job/train")]
    Stop(Slow),
    /// Delete a job and all its checkpoints
    #[command(
        after_help = "Example:\n  nodusctl delete job/train\n  nodusctl delete job/train --store ./store --state-root ./state"
    )]
    Delete(Delete),
    /// Take, list, check, export and delete checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Put the files of a checkpoint into a directory
    #[command(after_help = "Example:\n  nodusctl restore job/train --seq 7 --to ./state-7")]
    Restore(Restore),
    /// Tell the agent what is about to happen to its node
    #[command(subcommand)]
    Notice(NoticeCommand),
    /// Print shell completions
    #[command(hide = true)]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// One job.
#[derive(Args, Debug)]
pub struct Job {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
}

/// One job, and how long to wait for what is to happen to it.
#[derive(Args, Debug)]
pub struct Slow {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// How long to wait.
    #[command(flatten)]
    pub wait: Wait,
}

/// How long to wait.
#[derive(Args, Clone, Copy, Debug)]
pub struct Wait {
    /// Stop waiting for the agent after this long; it goes on by itself
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub timeout: Duration,
}

/// `logs`.
#[derive(Args, Debug)]
pub struct Logs {
    /// Go on until the job ends or is suspended, over all attempts to come
    #[arg(short, long)]
    pub follow: bool,
    /// The attempt to begin with, counted from 1 [default: the newest; with -f, the next
    /// one where the job is between two]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub attempt: Option<u32>,
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
}

/// `delete`.
#[derive(Args, Debug)]
pub struct Delete {
    /// The job: `job/NAME` or `NAME`
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// Delete from this store, without an agent
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Delete the job's directory under this one as well
    #[arg(long, value_name = "DIR", requires = "store")]
    pub state_root: Option<PathBuf>,
}

/// `notice`.
#[derive(Debug, Subcommand)]
pub enum NoticeCommand {
    /// The capacity of this node is taken back: every job takes an urgent checkpoint
    #[command(after_help = "Example:\n  nodusctl notice reclaim --in 2m")]
    Reclaim {
        /// How long until then [default: at once]
        #[arg(long = "in", value_name = "DURATION", value_parser = parse_duration)]
        within: Option<Duration>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_documentation_parses() {
        for line in [
            "nodusctl run -f job.yaml -d",
            "nodusctl run --name n --checkpoint /a --checkpoint /b --interval auto -- python t.py",
            "nodusctl run --max-size 1Ti --continuity Restartable --max-retries 0 --cpu 2 -- a",
            "nodusctl run --standalone --store s --state-root r --env A=1 --env B= -- a -f",
            "nodusctl list -o json",
            "nodusctl -o json list",
            "nodusctl describe job/n",
            "nodusctl logs -f --attempt 2 n",
            "nodusctl suspend n",
            "nodusctl resume n",
            "nodusctl stop n",
            "nodusctl delete n",
            "nodusctl checkpoint now n --urgent",
            "nodusctl checkpoint list n --store s",
            "nodusctl checkpoint show n 7",
            "nodusctl checkpoint verify n",
            "nodusctl checkpoint export n 7 -O x.tar.zst",
            "nodusctl checkpoint delete n 7",
            "nodusctl restore n --seq 7 --to d",
            "nodusctl notice reclaim --in 2m",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            "nodusctl",
            "nodusctl describe jobs/n",
            "nodusctl describe ../n",
            "nodusctl logs --attempt 0 n",
            "nodusctl run --standalone -d -- a",
            "nodusctl run --store s -- a",
            "nodusctl run --env A -- a",
            "nodusctl run --continuity Sometimes -- a",
            "nodusctl checkpoint delete n",
            "nodusctl restore n",
            "nodusctl delete n --state-root r",
            "nodusctl notice reclaim --in 2",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), i32::from(exit::Exit::USAGE.code()), "{line}: {error}");
        }
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let subcommands: Vec<_> = command.get_subcommands().collect();
            if subcommands.is_empty() && !command.is_hide_set() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example:"), "{}", command.get_name());
            }
            subcommands.into_iter().for_each(check);
        }
        check(&Cli::command());
    }
}

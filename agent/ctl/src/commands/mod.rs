//! The commands: each calls the agent or a store, and prints what came of it.

mod checkpoint;
mod export;
mod job;
mod logs;
mod run;
mod standalone;
mod stored;
mod work;

use clap::CommandFactory as _;

use crate::args::{CheckpointCommand, Cli, Command, NoticeCommand};
use crate::client::Client;
use crate::console::{Console, Surroundings};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// What the commands for an agent have at hand.
struct Session {
    client: Client,
    console: Console,
}

/// Does what the command line says: by itself, on a store, or through the agent.
///
/// # Errors
/// Whatever kept it from being done.
pub(crate) fn dispatch(cli: Cli, around: &Surroundings) -> Result<Exit> {
    let Cli { global, command } = cli;
    let console = Console::new(global.output, around);
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "nodusctl", &mut script);
        return console.bytes(&script).map(|()| Exit::DONE);
    }
    if let Command::Run(run) = &command
        && run.standalone
    {
        return standalone::run(run, &console, around);
    }
    if let Some(exit) = stored::without_agent(&command, &console, around) {
        return exit;
    }
    let session = Session { client: Client::new(&global.socket), console };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::io("start", "the runtime", source))?;
    runtime.block_on(session.with_agent(command, around))
}

impl Session {
    async fn with_agent(&self, command: Command, around: &Surroundings) -> Result<Exit> {
        match command {
            Command::Run(run) => self.run(&run, around).await,
            Command::List => self.list().await,
            Command::Describe(job) => self.describe(&job.job.0).await,
            Command::Logs(logs) => self.logs(&logs).await,
            Command::Events(job) => self.events(&job.job.0).await,
            Command::Suspend(slow) => self.suspend(&slow).await,
            Command::Resume(job) => self.resume(&job.job.0).await,
            Command::Stop(slow) => self.stop(&slow).await,
            Command::Delete(delete) => self.delete(&delete.job.0).await,
            Command::Checkpoint(command) => self.checkpoint(command).await,
            Command::Restore(restore) => self.restore(&restore, around).await,
            Command::Notice(NoticeCommand::Reclaim { within }) => self.reclaim(within).await,
            Command::Completions { .. } => unreachable!("printed without an agent"),
        }
    }

    async fn checkpoint(&self, command: CheckpointCommand) -> Result<Exit> {
        match command {
            CheckpointCommand::Now(now) => self.checkpoint_now(&now).await,
            CheckpointCommand::List(list) => self.checkpoint_list(&list.job.0).await,
            CheckpointCommand::Show(show) => self.checkpoint_show(&show.job.0, show.seq).await,
            CheckpointCommand::Verify(verify) => self.checkpoint_verify(&verify).await,
            CheckpointCommand::Export(export) => self.checkpoint_export(&export).await,
            CheckpointCommand::Delete(delete) => {
                self.checkpoint_delete(&delete.job.0, delete.seq).await
            }
        }
    }
}

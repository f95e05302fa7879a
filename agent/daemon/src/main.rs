//! The node's agent.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use nodus_agent::{attempt, config, daemon};
use tracing_subscriber::EnvFilter;

/// How long threads that copy have to notice that they are to stop.
const STOP_THREADS: Duration = Duration::from_secs(5);

/// Keeps the progress of this node's jobs.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration; `<FILE>.d/*.toml` is read after it
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
    config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == attempt::SHIM_ARGUMENT) {
        return attempt::shim::main(std::env::args_os().skip(2));
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr)] // The one place where an error is shown.
            {
                eprintln!("nodus-agent: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = config::Settings::load(&arguments.config)?;
    let filter = EnvFilter::try_new(&settings.log)
        .with_context(|| format!("agent.log: {:?} is not allowed", settings.log))?;
    if arguments.check {
        return Ok(());
    }
    log_to_stderr(filter);
    daemon::raise_descriptor_limit();
    let shim = std::env::current_exe().context("cannot find the agent's own executable")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(daemon::run(settings, shim));
    // A thread that waits for a store which hangs is not waited for: what it does is not committed.
    runtime.shutdown_timeout(STOP_THREADS);
    served
}

/// The journal adds the time and the host by itself.
fn log_to_stderr(filter: EnvFilter) {
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        format.without_time().with_ansi(false).init();
    } else {
        format.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

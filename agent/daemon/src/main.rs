//! The agent's executable, which is also that of the shim of each attempt.

use std::io::Write as _;
use std::process::ExitCode;

use nodus_agent::attempt::{SHIM_ARGUMENT, shim};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // Before anything else: a shim must not have a second thread.
    if arguments.next().is_some_and(|first| first == SHIM_ARGUMENT) {
        return shim::main(arguments);
    }
    // There is nobody left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "nodus-agent: unknown arguments");
    ExitCode::from(2)
}

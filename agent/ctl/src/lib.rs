//! The command line of Nodus, as a library: what is on the command line ([`args`]), the control
//! API of an agent ([`client`]), what people read ([`render`]), and the commands that join them.

pub mod args;
pub mod client;
mod commands;
mod console;
pub mod error;
pub mod exit;
mod progress;
pub mod render;

use std::process::ExitCode;

pub use args::Cli;
pub use console::Surroundings;

/// SIGPIPE, whose default action a Rust program does not take.
const BROKEN_PIPE: i32 = 13;

/// Does what the command line says; errors are printed here and nowhere else.
#[must_use]
pub fn run(cli: Cli, around: &Surroundings) -> ExitCode {
    let exit = commands::dispatch(cli, around).unwrap_or_else(|error| {
        if error.is_broken_pipe() {
            return exit::Exit::signal(BROKEN_PIPE);
        }
        console::complain(&error);
        error.exit()
    });
    exit.into()
}

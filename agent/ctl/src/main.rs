//! The command line of Nodus; everything is in the library of the same name.

use std::process::ExitCode;

use clap::Parser as _;
use nodus_agent::attempt::{SHIM_ARGUMENT, shim};
use nodusctl::{Cli, Surroundings};

fn main() -> ExitCode {
    // A standalone run starts its program under a shim, which is this executable again.
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == SHIM_ARGUMENT).is_some() {
        return shim::main(arguments);
    }
    nodusctl::run(Cli::parse(), &Surroundings::of_this_process())
}

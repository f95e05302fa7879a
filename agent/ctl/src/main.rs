//! The command line of Nodus; everything is in the library of the same name.

use std::process::ExitCode;

use clap::Parser as _;
use nodusctl::{Cli, Surroundings};

fn main() -> ExitCode {
    nodusctl::run(Cli::parse(), &Surroundings::of_this_process())
}

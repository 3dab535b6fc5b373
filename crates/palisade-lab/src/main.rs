//! The command line of the lab.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_lab::{exhaust, history};

/// Breaks Palisade on purpose, and shows that the proof can fail.
#[derive(Debug, Parser)]
#[command(name = "palisade-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sim(palisade_lab::sim::command::Sim),
    Mutants(palisade_lab::sim::command::Mutants),
    /// Checks a history against the lease model
    Check(history::command::Args),
    /// Searches every schedule of a small scope
    Exhaust(exhaust::command::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sim(command) => command.run(),
        Command::Mutants(command) => command.run(),
        Command::Check(args) => history::command::run(&args),
        Command::Exhaust(args) => exhaust::command::run(&args),
    }
}

//! The command line of the lab.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_lab::{attack, chaos, cluster, exhaust, history, sim};

/// Breaks Palisade on purpose, and shows that the tests can fail.
#[derive(Debug, Parser)]
#[command(name = "palisade-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sim(sim::command::Sim),
    Mutants(sim::command::Mutants),
    Cluster(cluster::command::Cluster),
    /// Searches every schedule of a small scope
    Exhaust(exhaust::command::Args),
    /// Checks a history against the lease model
    Check(history::command::Args),
    Chaos(chaos::Chaos),
    Attack(attack::AttackArgs),
    /// A worker of `chaos`
    #[command(hide = true)]
    ChaosWorker {
        /// Its task, in JSON.
        part: String,
    },
    /// The wall clock, for the check of the preload shim
    #[command(hide = true)]
    ChaosClock,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sim(command) => command.run(),
        Command::Mutants(command) => command.run(),
        Command::Cluster(command) => command.run(),
        Command::Exhaust(args) => exhaust::command::run(&args),
        Command::Check(args) => history::command::run(&args),
        Command::Chaos(chaos) => chaos.run(),
        Command::Attack(attack) => attack.run(),
        Command::ChaosClock => {
            println!("{}", chaos::wall_seconds());
            ExitCode::SUCCESS
        }
        Command::ChaosWorker { part } => match chaos::work(&part) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
    }
}

//! The binary `palisade`: the lock server, the command line, and `palisade run`.

mod cli;
mod run;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run::watchdog::intercept() {
        Some(status) => status,
        None => cli::main(),
    }
}

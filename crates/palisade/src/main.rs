//! The binary `palisade`: the lock server, the fenced store, the command line, and `palisade run`.

mod bench;
mod cli;
mod cluster;
mod data_directory;
mod demo;
mod export;
mod exposure;
mod gateway;
mod memory;
mod otlp;
mod reporting;
mod run;
mod serve;
mod service;
mod store;
mod tfstate;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run::watchdog::intercept() {
        Some(status) => status,
        None => cli::main(),
    }
}

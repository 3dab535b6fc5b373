//! The binary `palisade`: the lock server, the fenced store, the command line, and `palisade run`.

mod bench;
mod cli;
mod connections;
mod demo;
mod gateway;
mod run;
mod serve;
mod store;

use std::process::ExitCode;

/// Most of what a server allocates is freed by another thread; measured in `docs/performance.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run::watchdog::intercept() {
        Some(status) => status,
        None => cli::main(),
    }
}

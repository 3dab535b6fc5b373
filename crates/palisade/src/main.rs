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

/// For processes that only serve: memory in small pages. Huge ones hold a fifth more for a million locks, and
/// to get one can stop a thread for a tenth of a second. Children inherit it, so never for `palisade run`.
fn small_pages() {
    // Only a help; an older kernel does not know it.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

fn main() -> ExitCode {
    match run::watchdog::intercept() {
        Some(status) => status,
        None => cli::main(),
    }
}

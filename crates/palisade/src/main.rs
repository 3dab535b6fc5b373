//! The binary `palisade`: the lock server, the fenced store, the command line, and `palisade run`.

mod bench;
mod cli;
mod demo;
mod exposure;
mod gateway;
mod run;
mod serve;
mod store;

use std::process::ExitCode;

/// Most of what a server allocates is freed by another thread; measured in `docs/performance.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives back to the machine what was freed. Left alone, the allocator does so when it is next asked for much,
/// which may be never.
fn give_memory_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

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

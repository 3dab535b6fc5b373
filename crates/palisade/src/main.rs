//! The binary `palisade`: the lock server, the fenced store, the command line, and `palisade run`.

mod bench;
mod cli;
mod cluster;
mod demo;
mod exposure;
mod gateway;
#[cfg(feature = "otlp")]
mod otlp;
mod run;
mod serve;
mod service;
mod store;

use std::process::ExitCode;

/// Another thread frees most of what a server allocates; `docs/performance.md` has measurements.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns freed memory to the operating system. By itself the allocator does so only at its next large
/// allocation, which may never come.
fn give_memory_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Uses small memory pages, for processes that only serve. Huge pages take a fifth more memory for a million locks,
/// and allocating one can stop a thread for a tenth of a second. Children inherit this, so never for `palisade run`.
fn small_pages() {
    // An optimisation only: older kernels do not support it.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

fn main() -> ExitCode {
    match run::watchdog::intercept() {
        Some(status) => status,
        None => cli::main(),
    }
}

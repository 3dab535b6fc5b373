//! The runtime of commands that are clients.

use super::failure::Failure;

/// Runs a future to its end. One thread is enough: a client waits most of the time.
pub(super) fn wait_for<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime()?.block_on(work)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| Failure::local(format!("cannot start: {error}")))
}

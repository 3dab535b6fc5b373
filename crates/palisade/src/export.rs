//! The export of spans, from the start of the log until the server stops.

#[cfg(feature = "otlp")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
#[cfg(feature = "otlp")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_pipeline::Handle;
use palisade_server::net::Counter;

/// The export of spans, while a server runs; without a collector it does nothing.
pub(crate) struct Exporting {
    #[cfg(feature = "otlp")]
    running: Option<crate::otlp::Exporting>,
}

impl Exporting {
    /// Sends what is left, within two seconds.
    #[cfg_attr(
        not(feature = "otlp"),
        allow(clippy::unused_async, reason = "with the feature it waits")
    )]
    pub(crate) async fn finish(self) {
        #[cfg(feature = "otlp")]
        if let Some(running) = self.running {
            running.finish().await;
        }
    }
}

/// Starts to send spans, if the command has a collector. Those of grants need a lock server's handle.
#[cfg_attr(
    not(feature = "otlp"),
    expect(unused_variables, reason = "only spans need it")
)]
pub(crate) fn export_spans(handle: Option<&Handle>) -> Exporting {
    Exporting {
        #[cfg(feature = "otlp")]
        running: prepared()
            .take()
            .map(|export| export.start(handle.cloned())),
    }
}

/// Counters of this program, for `/metrics`.
pub(crate) fn counters() -> Vec<Counter> {
    #[cfg(feature = "otlp")]
    if EXPORTS.load(Relaxed) {
        return crate::otlp::COUNTERS.to_vec();
    }
    Vec::new()
}

/// Keeps the export that was prepared with the log, until the server starts.
#[cfg(feature = "otlp")]
pub(crate) fn prepare_export(export: crate::otlp::Export) {
    EXPORTS.store(true, Relaxed);
    *prepared() = Some(export);
}

#[cfg(feature = "otlp")]
fn prepared() -> MutexGuard<'static, Option<crate::otlp::Export>> {
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log of a process is one, and so is its export.
#[cfg(feature = "otlp")]
static PREPARED: Mutex<Option<crate::otlp::Export>> = Mutex::new(None);

/// Whether this process has a collector.
#[cfg(feature = "otlp")]
static EXPORTS: AtomicBool = AtomicBool::new(false);

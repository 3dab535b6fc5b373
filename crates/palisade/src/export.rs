//! The export of spans, from the start of the log until the server stops.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_pipeline::Handle;
use palisade_server::net::ShownCounter;

use crate::otlp;

/// The export of spans, while a server runs; without a collector it does nothing.
pub(crate) struct Exporting {
    running: Option<otlp::Exporting>,
}

impl Exporting {
    /// Sends the remaining spans, within two seconds.
    pub(crate) async fn finish(self) {
        if let Some(running) = self.running {
            running.finish().await;
        }
    }
}

/// Starts to send spans, if the command has a collector. Those of grants need a lock server's handle.
pub(crate) fn export_spans(handle: Option<&Handle>) -> Exporting {
    Exporting {
        running: prepared()
            .take()
            .map(|export| export.start(handle.cloned())),
    }
}

/// Counters of this program, for `/metrics`.
pub(crate) fn counters() -> Vec<ShownCounter> {
    if EXPORTS.load(Relaxed) {
        return otlp::COUNTERS.to_vec();
    }
    Vec::new()
}

/// Keeps the export that was prepared with the log, until the server starts.
pub(crate) fn prepare_export(export: otlp::Export) {
    EXPORTS.store(true, Relaxed);
    *prepared() = Some(export);
}

fn prepared() -> MutexGuard<'static, Option<otlp::Export>> {
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log of a process is one, and so is its export.
static PREPARED: Mutex<Option<otlp::Export>> = Mutex::new(None);

/// Whether this process has a collector.
static EXPORTS: AtomicBool = AtomicBool::new(false);

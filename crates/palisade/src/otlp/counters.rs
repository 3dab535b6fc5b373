//! How many spans were sent and lost.

use std::sync::atomic::AtomicU64;

use palisade_server::net::ShownCounter;

/// Spans that the collector took.
pub(super) static SENT: AtomicU64 = AtomicU64::new(0);

/// Spans that were not sent, or that the collector refused.
pub(super) static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The counters, for `/metrics`.
pub(crate) const COUNTERS: [ShownCounter; 2] = [
    ShownCounter {
        name: "spans_sent",
        help: "Spans that the OpenTelemetry collector took",
        value: &SENT,
    },
    ShownCounter {
        name: "spans_dropped",
        help: "Spans lost because the collector was away, too slow, or refused them",
        value: &DROPPED,
    },
];

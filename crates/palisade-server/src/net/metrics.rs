//! `/metrics`: the pipeline's counters and the network's own, in the Prometheus text format.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::app::App;

/// Everything there is to scrape, as text.
pub(super) fn text(app: &Arc<App>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("palisade");
    registry.register_collector(Box::new(Scrape {
        app: Arc::clone(app),
    }));
    let mut text = String::with_capacity(4 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Scrape {
    app: Arc<App>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in self.counters() {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        for (name, help, value) in self.gauges() {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

type Reading = (&'static str, &'static str, u64);

impl Scrape {
    /// What only grows; the format adds `_total` to each name.
    fn counters(&self) -> [Reading; 17] {
        let (stats, net) = (self.app.handle.stats(), &self.app.meters);
        [
            ("granted", "Grants issued", stats.granted.get()),
            (
                "held",
                "Acquires denied because somebody else had the lock",
                stats.held.get(),
            ),
            ("renewed", "Leases renewed", stats.renewed.get()),
            (
                "released",
                "Grants released by their holders",
                stats.released.get(),
            ),
            ("expired", "Grants whose time ran out", stats.expired.get()),
            (
                "revoked",
                "Grants taken away by an operator",
                stats.revoked.get(),
            ),
            (
                "superseded",
                "Grants replaced by the same client",
                stats.superseded.get(),
            ),
            (
                "invalid",
                "Requests refused for their form",
                stats.invalid.get(),
            ),
            (
                "queue_full",
                "Requests that found a queue full",
                stats.queue_full.get(),
            ),
            ("operations", "Operations taken in", stats.operations.get()),
            (
                "batches",
                "Batches made durable, one sync each",
                stats.batches.get(),
            ),
            ("log_bytes", "Bytes given to the log", stats.log_bytes.get()),
            (
                "graces",
                "Times every lease got its full time again because the authority was away",
                stats.graces.get(),
            ),
            (
                "connections_accepted",
                "Connections accepted",
                net.connections_accepted.load(Relaxed),
            ),
            (
                "connections_refused",
                "Connections closed at once because too many were open",
                net.connections_refused.load(Relaxed),
            ),
            (
                "requests",
                "HTTP and gRPC requests; a session is one",
                net.requests.load(Relaxed),
            ),
            (
                "sessions_opened",
                "Sessions opened",
                net.sessions_opened.load(Relaxed),
            ),
        ]
    }

    fn gauges(&self) -> [Reading; 8] {
        let (stats, net) = (self.app.handle.stats(), &self.app.meters);
        [
            ("locks", "Locks held", stats.locks.get()),
            ("leases", "Leases live", stats.leases.get()),
            (
                "waiters",
                "Requests that wait for a lock",
                stats.waiters.get(),
            ),
            (
                "next_token",
                "The fencing token the next grant gets; 0 when the range is used up",
                stats.next_token.get(),
            ),
            (
                "log_full",
                "1 while the log has no room (disk full)",
                stats.log_full.get(),
            ),
            (
                "connections",
                "Connections open",
                net.connections_open.load(Relaxed),
            ),
            ("sessions", "Sessions open", net.sessions.load(Relaxed)),
            ("watchers", "Watches open", net.watchers.load(Relaxed)),
        ]
    }
}

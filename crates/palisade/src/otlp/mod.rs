//! Spans for an OpenTelemetry collector: one for each grant, one for each rejected write, in the traces of the callers.
//!
//! ```text
//!   the log's events, inside a request's span ──► layer ─┬─ "rejected" ─────────────────────┐
//!      (network threads)                                 └─ "granted" ─► grants that last ─┐ │
//!                                                                              │           │ │
//!   pipeline ─► ring of recent events ─► a task looks for the end of each ◄────┘           ▼ ▼
//!                                                       └─────────────────► bounded queue of spans
//!                                                                                           │
//!                                     collector ◄── POST /v1/traces, protobuf ◄── one task ◄┘
//! ```
//!
//! Only a caller whose `traceparent` says that its trace is recorded gets spans. Nothing here waits: a span that finds the
//! queue full is dropped and counted, and the ordering thread does nothing for any of this.

mod counters;
mod endpoint;
mod grants;
mod layer;
mod sender;
mod span;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use palisade_pipeline::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) use self::counters::COUNTERS;
pub(crate) use self::endpoint::Endpoint;
use self::grants::Shared;
pub(crate) use self::layer::SpanLayer;
use self::sender::Sender;

/// The export of this process, from the start of its log until its server starts.
pub(crate) struct Export {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Span>,
    sender: Sender,
}

impl Export {
    /// Prepares the export of a command that serves, and the layer that makes spans of its log's events.
    ///
    /// # Errors
    /// The endpoint begins with `https://`, and the CAs of this machine cannot be read.
    pub(crate) fn new(
        endpoint: &Endpoint,
        command: &str,
    ) -> Result<(Export, SpanLayer), palisade_tls::Error> {
        let sender = Sender::new(endpoint, command)?;
        let (queue, queued) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            queue,
            grants: Mutex::default(),
        });
        let layer = SpanLayer::new(Arc::clone(&shared));
        let export = Export {
            shared,
            queue: queued,
            sender,
        };
        Ok((export, layer))
    }

    /// Starts the tasks. Without a lock server's `handle` there are no grants.
    pub(crate) fn start(self, handle: Option<Handle>) -> Exporting {
        let (stop, stopping) = oneshot::channel();
        let follower = handle.map(|handle| {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(grants::follow(handle, shared))
        });
        Exporting {
            shared: self.shared,
            follower,
            stop,
            sending: tokio::spawn(self.sender.run(self.queue, stopping)),
        }
    }
}

/// An export whose tasks run.
pub(crate) struct Exporting {
    shared: Arc<Shared>,
    follower: Option<JoinHandle<()>>,
    stop: oneshot::Sender<()>,
    sending: JoinHandle<()>,
}

impl Exporting {
    /// Sends the remaining spans when the server stops, within two seconds. Grants that outlive the server get their spans
    /// now, because nobody knows their traces after the restart.
    pub(crate) async fn finish(self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
        let left = self.shared.grants().take_all();
        for span in left {
            self.shared.send(span);
        }
        let _ = self.stop.send(());
        let mut sending = self.sending;
        if tokio::time::timeout(FAREWELL, &mut sending).await.is_err() {
            sending.abort();
            tracing::warn!("the collector is too slow: spans of the last seconds were not sent");
        }
    }
}

/// How many spans wait for the collector: some megabytes.
const QUEUE: usize = 4_096;

const FAREWELL: Duration = Duration::from_secs(2);

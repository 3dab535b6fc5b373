//! The sending half of a session: a stream of frames, polled by the connection itself.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use palisade_proto::v1 as pb;
use tokio::sync::mpsc;

use super::table::{ReplyTo, Table};

/// An operation on its way to whichever connection comes next.
pub(super) type Queued = (pb::request::Operation, ReplyTo);

/// The queue of a link. It outlives its connections: what was not sent on one goes out on the next.
pub(super) type Queue = Arc<Mutex<mpsc::UnboundedReceiver<Queued>>>;

/// Drains the queue into frames.
pub(super) struct Outbound {
    queue: Queue,
    table: Arc<Table>,
    taken: Vec<Queued>,
    rested: bool,
}

impl Outbound {
    pub(super) fn new(queue: Queue, table: Arc<Table>) -> Outbound {
        Outbound {
            queue,
            table,
            taken: Vec::new(),
            rested: false,
        }
    }

    /// Everything queued, as one frame; `None` when there is nothing to wait for any more.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<pb::Requests>> {
        // Asked with the queue locked: nothing may be taken from it for a connection that is gone.
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if self.table.is_closed() {
            return Poll::Ready(None);
        }
        if !self.rested && !queue.is_empty() {
            // The first caller of a burst wakes this stream before the others have run. One turn of
            // the scheduler later they have queued theirs, and one frame carries them all.
            self.rested = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rested = false;
        match queue.poll_recv_many(cx, &mut self.taken, FRAME) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(0) => return Poll::Ready(None),
            Poll::Ready(_) => {}
        }
        let mut requests = Vec::with_capacity(self.taken.len());
        // A caller that is gone before its operation was sent wants nothing any more.
        let wanted = self.taken.drain(..).filter(|(_, reply)| !reply.is_closed());
        self.table.enter(wanted, |id, operation| {
            requests.push(pb::Request {
                id,
                operation: Some(operation),
            });
        });
        Poll::Ready(Some(pb::Requests { requests }))
    }
}

impl Stream for Outbound {
    type Item = pb::Requests;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<pb::Requests>> {
        self.poll_frame(cx)
    }
}

/// Operations in one frame at most. With the longest names and texts that is under 1 MiB, a quarter
/// of what a server takes.
const FRAME: usize = 1_024;

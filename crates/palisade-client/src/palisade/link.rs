//! One connection, and the task that keeps it open.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::AuthorityId;
use palisade_proto::v1 as pb;
use palisade_proto::v1::locks_client::LocksClient;
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::outbound::{Outbound, Queue, Queued};
use super::table::Table;
use super::wire;
use crate::fault::Fault;

/// The callers' end of a connection that is opened again whenever it breaks.
pub(super) struct Link {
    queue: mpsc::UnboundedSender<Queued>,
}

/// A connection that is open.
struct Session {
    table: Arc<Table>,
    replies: Streaming<pb::Replies>,
    /// The connection lives as long as this does.
    _locks: LocksClient<Channel>,
}

impl Link {
    /// Connects, and says which authority is there: the one expected, if one is.
    pub(super) async fn open(
        endpoint: Endpoint,
        expected: Option<AuthorityId>,
    ) -> Result<(Link, AuthorityId), Fault> {
        let (queue, receiver) = mpsc::unbounded_channel();
        let waiting: Queue = Arc::new(Mutex::new(receiver));
        let (session, authority) = connect(&endpoint, expected.as_ref(), &waiting).await?;
        tokio::spawn(run(endpoint, authority.clone(), waiting, session));
        Ok((Link { queue }, authority))
    }

    /// Sends one operation and waits for its reply.
    pub(super) async fn call(
        &self,
        operation: pb::request::Operation,
    ) -> Result<pb::reply::Outcome, Fault> {
        let (reply, answer) = oneshot::channel();
        if self.queue.send((operation, reply)).is_err() {
            return Err(runtime_gone());
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Fault::unknown_outcome("the connection's task is gone")))
    }
}

/// Reads replies, and connects again when the connection breaks, until no caller can come any more.
async fn run(endpoint: Endpoint, authority: AuthorityId, queue: Queue, first: Session) {
    let mut session = Some(first);
    let mut pause = SHORTEST;
    loop {
        if let Some(session) = session.take() {
            pause = SHORTEST;
            read(session).await;
        }
        if is_over(&queue) {
            return;
        }
        match connect(&endpoint, Some(&authority), &queue).await {
            Ok((open, _)) => session = Some(open),
            Err(fault) => {
                refuse_for(pause, &queue, &fault).await;
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

/// Hands out replies until the connection ends; what is in flight then is unknown.
async fn read(session: Session) {
    let Session {
        table,
        mut replies,
        _locks,
    } = session;
    let why = loop {
        match replies.message().await {
            Ok(Some(frame)) => table.settle(frame.replies),
            Ok(None) => break "the server ended the connection".to_owned(),
            Err(status) => break format!("the connection broke: {}", wire::said(&status)),
        }
    };
    tracing::debug!(why, "a connection to the authority ended");
    table.close(&Fault::unknown_outcome(why));
}

/// Opens a connection and a session on it, after making sure who is there.
async fn connect(
    endpoint: &Endpoint,
    expected: Option<&AuthorityId>,
    queue: &Queue,
) -> Result<(Session, AuthorityId), Fault> {
    let at = endpoint.uri();
    let open = tokio::time::timeout(OPENING, open(endpoint, expected, queue)).await;
    open.unwrap_or_else(|_| {
        Err(Fault::unavailable(format!(
            "{at} did not answer in {OPENING:?}"
        )))
    })
}

async fn open(
    endpoint: &Endpoint,
    expected: Option<&AuthorityId>,
    queue: &Queue,
) -> Result<(Session, AuthorityId), Fault> {
    let at = endpoint.uri();
    let channel = endpoint.connect().await;
    let channel =
        channel.map_err(|error| Fault::unavailable(format!("{at}: {}", wire::causes(&error))))?;
    let mut locks = LocksClient::new(channel).max_decoding_message_size(LARGEST_FRAME);
    let authority = identify(&mut locks).await?;
    if let Some(expected) = expected
        && *expected != authority
    {
        let message = format!(
            "{at} is now authority {authority}, not {expected}: tokens of two authorities are never mixed"
        );
        return Err(Fault::unavailable(message));
    }
    let table = Arc::new(Table::default());
    let outbound = Outbound::new(Arc::clone(queue), Arc::clone(&table));
    match locks.session(outbound).await {
        Ok(replies) => {
            let replies = replies.into_inner();
            Ok((
                Session {
                    table,
                    replies,
                    _locks: locks,
                },
                authority,
            ))
        }
        Err(status) => {
            // The stream may have taken operations from the queue before the refusal came.
            table.close(&Fault::unknown_outcome(wire::said(&status)));
            Err(wire::fault(&status))
        }
    }
}

async fn identify(locks: &mut LocksClient<Channel>) -> Result<AuthorityId, Fault> {
    match locks.status(pb::StatusRequest {}).await {
        Ok(reply) => {
            let outcome = reply.into_inner().outcome.ok_or_else(wire::empty)?;
            Ok(wire::status(outcome)?.authority)
        }
        Err(status) => Err(wire::fault(&status)),
    }
}

/// Lets some time pass before the next attempt to connect. Callers hear at once that nothing was
/// sent; how long to insist is theirs to say.
async fn refuse_for(pause: Duration, queue: &Queue, fault: &Fault) {
    let fault = Fault::unavailable(fault.reason());
    let refuse = std::future::poll_fn(|cx| {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, reply)) = std::task::ready!(queue.poll_recv(cx)) {
            let _ = reply.send(Err(fault.clone()));
        }
        std::task::Poll::Ready(())
    });
    // It ends before its time when nobody is left who could ask.
    let _ = tokio::time::timeout(pause, refuse).await;
}

/// Whether nobody is left who could ask anything.
fn is_over(queue: &Queue) -> bool {
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.is_closed() && queue.is_empty()
}

fn runtime_gone() -> Fault {
    Fault::unavailable("the Tokio runtime this client was connected on has ended")
}

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);
/// From the first packet to an open session.
const OPENING: Duration = Duration::from_secs(10);
/// A frame of replies may carry many pages of a listing.
const LARGEST_FRAME: usize = 64 * 1024 * 1024;

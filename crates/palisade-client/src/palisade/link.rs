//! A connection to a server that is reopened when it breaks, and the task that does so.

use std::time::Duration;

use palisade_core::AuthorityId;
use palisade_proto::v1 as pb;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::address::Address;
use super::connection::{Connection, Queue, Queued};
use super::wire;
use crate::fault::Fault;

/// The callers' end of a connection that is reopened whenever it breaks.
pub(super) struct Link {
    queue: mpsc::UnboundedSender<Queued>,
}

impl Link {
    /// Connects, and returns the authority found there, which must be the expected one, if there is one.
    pub(super) async fn open(
        address: Address,
        expected: Option<AuthorityId>,
    ) -> Result<(Link, AuthorityId), Fault> {
        let (queue, waiting) = mpsc::unbounded_channel();
        let (connection, authority) = connect(&address, expected.as_ref()).await?;
        tokio::spawn(run(address, authority.clone(), waiting, connection));
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
            .unwrap_or_else(|_| Err(Fault::unknown_outcome("the connection's task has ended")))
    }
}

/// Carries operations, and reconnects when the connection breaks, until no caller can come any more.
async fn run(address: Address, authority: AuthorityId, mut queue: Queue, first: Connection) {
    let mut open = Some(first);
    let mut pause = SHORTEST;
    loop {
        if let Some(mut connection) = open.take() {
            pause = SHORTEST;
            let why = connection.run(&mut queue).await;
            tracing::debug!(why = why.reason(), "a connection to the authority ended");
            connection.abandon(&Fault::unknown_outcome(why.reason()));
        }
        if queue.is_closed() && queue.is_empty() {
            return;
        }
        match connect(&address, Some(&authority)).await {
            Ok((connection, _)) => open = Some(connection),
            Err(fault) => {
                refuse_for(pause, &mut queue, &fault).await;
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

/// Opens a connection and checks the authority at the other end.
async fn connect(
    address: &Address,
    expected: Option<&AuthorityId>,
) -> Result<(Connection, AuthorityId), Fault> {
    let open = tokio::time::timeout(OPENING, open(address)).await;
    let (connection, authority) = open.unwrap_or_else(|_| {
        Err(Fault::unreachable(format!(
            "{address} did not answer in {OPENING:?}"
        )))
    })?;
    if let Some(expected) = expected
        && *expected != authority
    {
        let message = format!(
            "{address} is now authority {authority}, not {expected}: tokens of two authorities are never mixed"
        );
        return Err(Fault::unavailable(message));
    }
    Ok((connection, authority))
}

async fn open(address: &Address) -> Result<(Connection, AuthorityId), Fault> {
    let at = |fault: Fault| fault.at(address);
    let stream = TcpStream::connect(address.to_string()).await;
    let stream = stream.map_err(|error| at(Fault::unreachable(error)))?;
    // Frames are small; waiting to fill a segment would cost 40 ms each.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new(stream);
    let status = pb::request::Operation::Status(pb::StatusRequest {});
    let outcome = connection.ask(status).await.map_err(at)?;
    Ok((connection, wire::status(outcome)?.authority))
}

/// Waits before the next attempt to connect. Meanwhile callers learn at once that nothing was sent; they
/// decide how long to repeat.
async fn refuse_for(pause: Duration, queue: &mut Queue, fault: &Fault) {
    let fault = match fault {
        Fault::Unreachable(why) => Fault::unreachable(why),
        other => Fault::unavailable(other.reason()),
    };
    let refuse = async {
        while let Some((_, reply)) = queue.recv().await {
            let _ = reply.send(Err(fault.clone()));
        }
    };
    // It ends early when no caller is left.
    let _ = tokio::time::timeout(pause, refuse).await;
}

fn runtime_gone() -> Fault {
    Fault::unavailable("the Tokio runtime this client was connected on has ended")
}

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);
/// The time allowed from the first packet to an open session.
const OPENING: Duration = Duration::from_secs(10);

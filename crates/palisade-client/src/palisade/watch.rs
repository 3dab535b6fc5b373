//! Watching a Palisade server, on a stream separate from the sessions.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use palisade_core::AuthorityId;
use palisade_proto::v1 as pb;
use palisade_proto::v1::locks_client::LocksClient;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::metadata::MetadataValue;

use super::address::Address;
use super::nodes::{Nodes, same_authority};
use super::wire;
use crate::fault::Fault;
use crate::service::{Events, Notice};

struct Changes(Streaming<pb::Event>);

/// Opens a watch on its own connection, so that a slow reader delays no other caller. Every node serves it; one that
/// fails makes room for the next.
pub(super) async fn open(
    nodes: &Nodes,
    authority: &AuthorityId,
    request: pb::WatchRequest,
) -> Result<Events, Fault> {
    let address = nodes.for_a_watch();
    let opened = open_at(address, nodes, authority, request).await;
    opened.map_err(|fault| {
        nodes.move_watches();
        fault.at(address)
    })
}

async fn open_at(
    address: &Address,
    nodes: &Nodes,
    authority: &AuthorityId,
    request: pb::WatchRequest,
) -> Result<Events, Fault> {
    let endpoint = address.endpoint().clone();
    let endpoint = endpoint.connect_timeout(nodes.connect_timeout());
    let channel = endpoint
        .connect_with_connector(nodes.connector(address))
        .await;
    let channel = channel.map_err(|error| Fault::unreachable(wire::causes(&error)))?;
    let mut locks = LocksClient::new(channel);
    // Revisions of two authorities must not be mixed. A node that follows asks the leader, so one that is cut off from
    // its cluster is found out here.
    let status = with_token(nodes, pb::StatusRequest {})?;
    let status = timeout(STATUS, locks.status(status)).await;
    let status = status.map_err(|_| Fault::unavailable(format!("no answer in {STATUS:?}")))?;
    let status = status.map_err(|status| wire::fault(&status))?.into_inner();
    let found = wire::status(status.outcome.ok_or_else(wire::empty)?)?.authority;
    same_authority(address, &found, Some(authority))?;
    let events = locks.watch(with_token(nodes, request)?).await;
    let events = events.map_err(|status| wire::fault(&status))?.into_inner();
    Ok(Box::pin(Changes(events)))
}

/// A call that shows who this client is.
fn with_token<T>(nodes: &Nodes, message: T) -> Result<tonic::Request<T>, Fault> {
    let mut call = tonic::Request::new(message);
    if let Some(token) = nodes.token() {
        let mut value: MetadataValue<_> = format!("Bearer {}", token.expose())
            .parse()
            .map_err(|_| Fault::invalid("the token does not fit a header"))?;
        value.set_sensitive(true);
        call.metadata_mut().insert("authorization", value);
    }
    Ok(call)
}

impl Stream for Changes {
    type Item = Result<Notice, Fault>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(Pin::new(&mut self.0).poll_next(cx));
        Poll::Ready(event.map(|event| match event {
            Ok(event) => wire::event(event),
            Err(status) => Err(wire::fault(&status)),
        }))
    }
}

/// How long a node may take to say which authority it belongs to.
const STATUS: Duration = Duration::from_secs(5);

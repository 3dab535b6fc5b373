//! Watching a Palisade server, on a stream separate from the sessions.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use palisade_proto::v1 as pb;
use palisade_proto::v1::locks_client::LocksClient;
use tonic::Streaming;

use super::address::Address;
use super::wire;
use crate::fault::Fault;
use crate::service::{Events, WatchEvent};

struct Changes(Streaming<pb::Event>);

/// Opens a watch on its own connection, so that a slow reader delays no other caller.
pub(super) async fn open(address: Address, request: pb::WatchRequest) -> Result<Events, Fault> {
    let channel = address.endpoint().connect().await;
    let channel = channel.map_err(|error| Fault::unreachable(wire::causes(&error)))?;
    let events = LocksClient::new(channel).watch(request).await;
    let events = events.map_err(|status| wire::fault(&status))?.into_inner();
    Ok(Box::pin(Changes(events)))
}

impl Stream for Changes {
    type Item = Result<WatchEvent, Fault>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(Pin::new(&mut self.0).poll_next(cx));
        Poll::Ready(event.map(|event| match event {
            Ok(event) => wire::event(event),
            Err(status) => Err(wire::fault(&status)),
        }))
    }
}

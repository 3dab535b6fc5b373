//! Watching a Palisade server, on a stream of its own.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use palisade_core::AuthorityId;
use palisade_proto::v1 as pb;
use tonic::Streaming;

use super::nodes::Nodes;
use super::{unary, wire};
use crate::fault::Fault;
use crate::service::{Events, Notice};

struct Changes(Streaming<pb::Event>);

/// Opens a watch on its own connection, so that a slow reader delays no other caller. Every node serves it. After a
/// failure, the next call goes to the next node.
pub(super) async fn open(
    nodes: &Nodes,
    authority: &AuthorityId,
    request: pb::WatchRequest,
) -> Result<Events, Fault> {
    let address = nodes.for_calls();
    let opened = async {
        let mut locks = unary::open(address, nodes, authority).await?;
        let events = locks.watch(unary::with_token(nodes, request)?).await;
        let events = events.map_err(wire::fault)?.into_inner();
        Ok(Box::pin(Changes(events)) as Events)
    };
    let opened = opened.await;
    opened.map_err(|fault: Fault| {
        nodes.move_calls();
        fault.at(address)
    })
}

impl Stream for Changes {
    type Item = Result<Notice, Fault>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(Pin::new(&mut self.0).poll_next(cx));
        Poll::Ready(event.map(|event| match event {
            Ok(event) => wire::event(event),
            Err(status) => Err(wire::fault(status)),
        }))
    }
}

//! gRPC calls on their own connection, for operations that are too rare for sessions.

use std::time::Duration;

use palisade_core::AuthorityId;
use palisade_proto::v1 as pb;
use palisade_proto::v1::locks_client::LocksClient;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::address::Address;
use super::nodes::{Nodes, same_authority};
use super::wire;
use crate::fault::{Fault, Reason};
use crate::service::SequencerAnswer;

/// Requests a sequencer. Every node passes the request on to the leader. After a failure, the next call goes to the
/// next node.
pub(super) async fn sequencer(
    nodes: &Nodes,
    authority: &AuthorityId,
    request: pb::SequencerRequest,
) -> Result<SequencerAnswer, Fault> {
    let address = nodes.for_calls();
    let asked = async {
        let mut locks = open(address, nodes, authority).await?;
        let reply = answered(nodes, locks.sequencer(with_token(nodes, request)?)).await?;
        wire::sequencer(reply.outcome.ok_or_else(wire::empty)?)
    };
    let asked = asked.await;
    asked.map_err(|fault| {
        nodes.move_calls();
        fault.at(address)
    })
}

/// Connects to a node of the expected authority.
pub(super) async fn open(
    address: &Address,
    nodes: &Nodes,
    authority: &AuthorityId,
) -> Result<LocksClient<Channel>, Fault> {
    let endpoint = address.endpoint().clone();
    let endpoint = endpoint.connect_timeout(nodes.connect_timeout());
    let channel = endpoint
        .connect_with_connector(nodes.connector(address))
        .await;
    let channel = channel.map_err(|error| Fault::unreachable(Reason::caused_by(error)))?;
    let mut locks = LocksClient::new(channel);
    // Check the authority first. A follower asks the leader for its status, so this also detects a node that is cut off
    // from its cluster.
    let status = with_token(nodes, pb::StatusRequest {})?;
    let status = answered(nodes, locks.status(status)).await?;
    let found = wire::status(status.outcome.ok_or_else(wire::empty)?)?.authority;
    same_authority(address, &found, Some(authority))?;
    Ok(locks)
}

/// Adds the client's token to a call.
pub(super) fn with_token<T>(nodes: &Nodes, message: T) -> Result<tonic::Request<T>, Fault> {
    let mut call = tonic::Request::new(message);
    if let Some(token) = nodes.token() {
        let mut value: MetadataValue<_> =
            format!("Bearer {}", token.expose())
                .parse()
                .map_err(|error| {
                    Fault::invalid(Reason::new("the token does not fit a header").quoting(error))
                })?;
        value.set_sensitive(true);
        call.metadata_mut().insert("authorization", value);
    }
    Ok(call)
}

/// Returns the reply to a call that is safe to repeat.
async fn answered(
    nodes: &Nodes,
    call: impl Future<Output = Result<tonic::Response<pb::Reply>, tonic::Status>>,
) -> Result<pb::Reply, Fault> {
    let patience = if nodes.several() {
        PATIENCE_ONE_OF_SEVERAL
    } else {
        PATIENCE
    };
    let reply = timeout(patience, call).await;
    let reply = reply.map_err(|_| Fault::unavailable(format!("no answer in {patience:?}")))?;
    Ok(reply.map_err(wire::fault)?.into_inner())
}

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same if there is another node to try: after two silent nodes there is time for a third within the client's
/// patience.
const PATIENCE_ONE_OF_SEVERAL: Duration = Duration::from_secs(2);

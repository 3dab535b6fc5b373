//! The cluster: its state, its members, its leader.

use std::sync::Arc;

use axum::extract::State;
use palisade_proto::Code;
use palisade_proto::json::{AddMemberBody, ClusterReply, MemberBody, ReadyReply, TransferBody};

use super::input::{AdminCaller, Input};
use crate::net::cluster::{Cluster, MembershipChange};
use crate::net::convert::{Refusal, not_leader};
use crate::net::gate::{Administered, Gate, GatedPipeline, Who};
use crate::net::reply::{Json, Refusals, Reply};
use palisade_pipeline::Leading;

/// The cluster that this server belongs to; `None` for a single one.
type Here = Option<Arc<dyn Cluster>>;

/// Show the cluster as this node sees it
#[utoipa::path(
    get,
    path = "/v1/cluster",
    tag = "cluster",
    responses(
        (status = 200, description = "Its members and this node's place among them.", body = ClusterReply),
        (status = 409, description = "`refused`: this server is a single one.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn view(
    State(gate): State<Arc<Gate>>,
    State(cluster): State<Here>,
    who: Who,
) -> Reply<ClusterReply> {
    gate.view_cluster(&who)?;
    Ok(Json(member(&cluster)?.view()))
}

/// Add a node
///
/// The new node gets every entry. With `promote` it gets a vote when it has caught up; with `replaces`, another one
/// leaves then. Returns when that is done. It can be repeated.
#[utoipa::path(
    post,
    path = "/v1/cluster/add",
    tag = "cluster",
    request_body = AddMemberBody,
    responses(
        (status = 200, description = "It is a member.", body = ClusterReply),
        (status = 409, description = "`refused`: the message says what is in the way.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn add(
    State(gate): State<Arc<Gate>>,
    State(cluster): State<Here>,
    AdminCaller(by): AdminCaller,
    Input(body): Input<AddMemberBody>,
) -> Reply<ClusterReply> {
    change(&gate, &cluster, by, MembershipChange::Add(body)).await
}

/// Give a node a vote
#[utoipa::path(
    post,
    path = "/v1/cluster/promote",
    tag = "cluster",
    request_body = MemberBody,
    responses(
        (status = 200, description = "It votes.", body = ClusterReply),
        (status = 409, description = "`refused`: the message says what is in the way.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn promote(
    State(gate): State<Arc<Gate>>,
    State(cluster): State<Here>,
    AdminCaller(by): AdminCaller,
    Input(body): Input<MemberBody>,
) -> Reply<ClusterReply> {
    change(&gate, &cluster, by, MembershipChange::Promote(body.node)).await
}

/// Remove a node
///
/// Refused if the nodes that stay and are alive would be no majority. A leader hands over first.
#[utoipa::path(
    post,
    path = "/v1/cluster/remove",
    tag = "cluster",
    request_body = MemberBody,
    responses(
        (status = 200, description = "It is no member any more.", body = ClusterReply),
        (status = 409, description = "`refused`: the message says what is in the way.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn remove(
    State(gate): State<Arc<Gate>>,
    State(cluster): State<Here>,
    AdminCaller(by): AdminCaller,
    Input(body): Input<MemberBody>,
) -> Reply<ClusterReply> {
    change(&gate, &cluster, by, MembershipChange::Remove(body.node)).await
}

/// Let another node lead
#[utoipa::path(
    post,
    path = "/v1/cluster/transfer",
    tag = "cluster",
    request_body = TransferBody,
    responses(
        (status = 200, description = "It leads.", body = ClusterReply),
        (status = 409, description = "`refused`: the message says what is in the way.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn transfer(
    State(gate): State<Arc<Gate>>,
    State(cluster): State<Here>,
    AdminCaller(by): AdminCaller,
    Input(body): Input<TransferBody>,
) -> Reply<ClusterReply> {
    change(&gate, &cluster, by, MembershipChange::Transfer(body.to)).await
}

/// Check that this server can serve clients
///
/// For load balancers: a server is ready when it can grant locks now, or knows the leader to forward to. 503 says
/// why it is not.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "operation",
    responses((status = 200, description = "It can.", body = ReadyReply), Refusals)
)]
pub(super) async fn ready(
    State(pipeline): State<GatedPipeline>,
    State(cluster): State<Here>,
) -> Reply<ReadyReply> {
    if pipeline.stopped().borrow().is_some() {
        return Err(Refusal::new(Code::Unavailable, "the authority has stopped").into());
    }
    let (status, leader) = match pipeline.leader() {
        Leading::Here if pipeline.stats().log_full.get() > 0 => return Err(full_disk("").into()),
        Leading::Here => ("leading", None),
        Leading::At(url) => ("forwarding", Some(url.as_ref().to_owned())),
        Leading::Nowhere => {
            let disk_full = cluster.as_ref().and_then(|at| at.view().disk_full);
            return Err(disk_full
                .map_or_else(|| not_leader(None), |why| full_disk(&why))
                .into());
        }
    };
    Ok(Json(ReadyReply {
        status: status.to_owned(),
        leader,
    }))
}

/// `why` may be empty.
fn full_disk(why: &str) -> Refusal {
    let sep = if why.is_empty() { "" } else { ": " };
    Refusal::new(
        Code::Unavailable,
        format!("this server's disk has no room for its log{sep}{why}"),
    )
}

async fn change(
    gate: &Gate,
    cluster: &Here,
    by: Administered,
    change: MembershipChange,
) -> Reply<ClusterReply> {
    let cluster = member(cluster)?;
    gate.be_sure(by, format!("{change:?}")).await?;
    match cluster.change(change).await {
        Ok(()) => Ok(Json(cluster.view())),
        Err(not_changed) => Err(Refusal::new(not_changed.code, not_changed.why).into()),
    }
}

/// The cluster, of a server that is a member of one.
fn member(cluster: &Here) -> Result<&dyn Cluster, Refusal> {
    let single = || {
        let why = "this server is a single one; a cluster is formed by `palisade serve --cluster`";
        Refusal::new(Code::Refused, why)
    };
    cluster.as_deref().ok_or_else(single)
}

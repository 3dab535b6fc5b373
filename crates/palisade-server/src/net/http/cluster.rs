//! The cluster: its state, its members, its leader.

use std::sync::Arc;

use axum::extract::State;
use palisade_proto::Code;
use palisade_proto::json::{AddMemberBody, ClusterReply, MemberBody, ReadyReply, TransferBody};

use super::input::{Admin, Input};
use super::reply::{Json, Refusals, Reply};
use crate::net::app::App;
use crate::net::cluster::{Change, Cluster};
use crate::net::convert::{Refusal, not_leader};
use crate::net::gate::{Administered, Who};
use palisade_pipeline::Leading;

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
pub(super) async fn view(State(app): State<Arc<App>>, who: Who) -> Reply<ClusterReply> {
    app.gate.view_cluster(&who)?;
    Ok(Json(cluster(&app)?.view()))
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
    State(app): State<Arc<App>>,
    Admin(by): Admin,
    Input(body): Input<AddMemberBody>,
) -> Reply<ClusterReply> {
    change(&app, by, Change::Add(body)).await
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
    State(app): State<Arc<App>>,
    Admin(by): Admin,
    Input(body): Input<MemberBody>,
) -> Reply<ClusterReply> {
    change(&app, by, Change::Promote(body.node)).await
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
    State(app): State<Arc<App>>,
    Admin(by): Admin,
    Input(body): Input<MemberBody>,
) -> Reply<ClusterReply> {
    change(&app, by, Change::Remove(body.node)).await
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
    State(app): State<Arc<App>>,
    Admin(by): Admin,
    Input(body): Input<TransferBody>,
) -> Reply<ClusterReply> {
    change(&app, by, Change::Transfer(body.to)).await
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
pub(super) async fn ready(State(app): State<Arc<App>>) -> Reply<ReadyReply> {
    if app.handle.stopped().borrow().is_some() {
        return Err(Refusal::new(Code::Unavailable, "the authority has stopped").into());
    }
    let (status, leader) = match app.handle.leader() {
        Leading::Here if app.handle.stats().log_full.get() > 0 => return Err(full_disk("").into()),
        Leading::Here => ("leading", None),
        Leading::At(url) => ("forwarding", Some(url.as_ref().to_owned())),
        Leading::Nowhere => {
            let disk_full = app.cluster.as_ref().and_then(|at| at.view().disk_full);
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

async fn change(app: &App, by: Administered, change: Change) -> Reply<ClusterReply> {
    let cluster = cluster(app)?;
    app.gate.be_sure(by, format!("{change:?}")).await?;
    match cluster.change(change).await {
        Ok(()) => Ok(Json(cluster.view())),
        Err(not_changed) => Err(Refusal::new(not_changed.code, not_changed.why).into()),
    }
}

fn cluster(app: &App) -> Result<&dyn Cluster, Refusal> {
    let single = || {
        let why = "this server is a single one; a cluster is formed by `palisade serve --cluster`";
        Refusal::new(Code::Refused, why)
    };
    app.cluster.as_deref().ok_or_else(single)
}

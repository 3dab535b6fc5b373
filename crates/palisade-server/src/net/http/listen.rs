//! Listening, as a long request.

use std::sync::Arc;

use axum::extract::State;
use palisade_proto::json::{ListenBody, ListenReply};

use super::input::Input;
use crate::net::convert::json;
use crate::net::gate::Who;
use crate::net::listening::Listens;
use crate::net::reply::{Json, Refusals, Reply};

/// Listen for news of grants
///
/// For holders. The answer comes at once if a grant is over or if its lock is wanted by more requests than the caller knows of;
/// otherwise when that happens, or when the wait is over. One request for up to 100 grants; the next one follows its answer.
/// Nothing is renewed by it. Notices are best effort: the next renewal tells the same.
#[utoipa::path(
    post,
    path = "/v1/listen",
    tag = "locks",
    request_body = ListenBody,
    responses(
        (status = 200, description = "The news; empty if there was none.", body = ListenReply),
        Refusals,
    )
)]
pub(super) async fn listen(
    State(listens): State<Arc<Listens>>,
    who: Who,
    Input(body): Input<ListenBody>,
) -> Reply<ListenReply> {
    let (request, wait) = json::listen(&body)?;
    let notices = listens.listen(&who, request, wait).await?;
    Ok(Json(ListenReply { notices }))
}

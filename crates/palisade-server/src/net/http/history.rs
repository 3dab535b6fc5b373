//! The history of locks, and reports of refused late writes.

use std::sync::Arc;

use axum::extract::State;
use palisade_history::{Cursor, LateRefusal, Query};
use palisade_pipeline::clock::wall;
use palisade_proto::Code;
use palisade_proto::json::{HistoryReply, RejectionBody, RejectionReply};
use serde::Deserialize;

use super::input::{Input, LockParam, Params, integer};
use super::locks::LockPath;
use crate::net::convert::{self, Refusal, history};
use crate::net::gate::{Gate, Who};
use crate::net::history::History;
use crate::net::reply::{Json, Refusals, Reply};

/// The parameters of a question.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryParams {
    lock: Option<String>,
    prefix: Option<String>,
    since: Option<String>,
    until: Option<String>,
    token: Option<String>,
    client: Option<String>,
    refused: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// Read who held locks, and how that ended
///
/// One row for each grant, from its request to its end, with the writes that resources refused because its token was
/// stale. First the grants that last, by lock, then the others, the latest end first; of one lock, the latest token first. Each node answers for what it
/// applied. A caller that may observe a lock may read its history.
#[utoipa::path(
    get,
    path = "/v1/history",
    tag = "locks",
    params(
        ("lock" = Option<String>, Query, min_length = 1, max_length = 255, pattern = "^[ -~]+$", description = "This lock alone."),
        ("prefix" = Option<String>, Query, max_length = 255, pattern = "^[ -~]*$", description = "Only locks whose names start with this."),
        ("since" = Option<String>, Query, format = DateTime, description = "Held at or after this time."),
        ("until" = Option<String>, Query, format = DateTime, description = "Granted at or before this time."),
        ("token" = Option<u64>, Query, minimum = 1, maximum = 9_007_199_254_740_991_i64, description = "With this fencing token."),
        ("client" = Option<String>, Query, description = "By this client."),
        ("refused" = Option<bool>, Query, description = "Only grants with refused late writes, the latest report first."),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The most grants on the page; 100 by default."),
        ("cursor" = Option<String>, Query, pattern = "^(e:[0-9]{1,19}|t:[0-9]{1,19}:[0-9]{1,19}|l:[0-9]{1,19}:[ -~]{1,255}|r:[0-9]{1,19})$", description = "The `next_cursor` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page.", body = HistoryReply),
        (status = 409, description = "`refused`: the server keeps no history.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn read(
    State(gate): State<Arc<Gate>>,
    State(past): State<Arc<History>>,
    who: Who,
    Params(asked): Params<HistoryParams>,
) -> Reply<HistoryReply> {
    let limit = convert::page_limit(integer("limit", asked.limit.as_deref())?)?;
    let lock = asked.lock.as_deref();
    let lock = lock
        .map(|lock| convert::lock_name("lock", lock))
        .transpose()?;
    let prefix = convert::prefix(asked.prefix.as_deref().unwrap_or_default())?;
    let within = lock.as_ref().map_or(&*prefix, |lock| lock.as_str());
    let seen = gate.observe_past(&who, within)?;
    let token = integer("token", asked.token.as_deref())?;
    let token = token
        .map(|token| convert::token_in("token", token))
        .transpose()?;
    let refused = match asked.refused.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Refusal::invalid("refused must be true or false").into()),
    };
    let after = asked.cursor.as_deref().map(cursor).transpose()?;
    if after
        .as_ref()
        .is_some_and(|at| matches!(at, Cursor::Late(_)) != refused)
    {
        let why = "cursor must be the next_cursor of an earlier answer to the same question";
        return Err(Refusal::invalid(why).into());
    }
    let query = Query {
        lock: lock.as_ref().map(|lock| lock.as_str().to_owned()),
        prefix: prefix.to_string(),
        since_ms: history::instant("since", asked.since.as_deref())?,
        until_ms: history::instant("until", asked.until.as_deref())?,
        token: token.map(|token| token.get()),
        client: asked.client,
        refused,
        after,
    };
    let mut page = past.page(query, limit).await?;
    page.rows
        .retain(|(row, _)| seen.iter().any(|prefix| row.lock.starts_with(&**prefix)));
    let rules = gate.rules();
    Ok(Json(history::page(page, rules.as_deref())))
}

/// Report that a resource refused a late write
///
/// For clients and resources: the refusal then stands with the grant in the history. A report of a grant that the
/// history does not have is counted and not kept.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/rejections",
    tag = "locks",
    params(LockPath),
    request_body = RejectionBody,
    responses((status = 200, description = "Whether it was recorded.", body = RejectionReply), Refusals)
)]
pub(super) async fn report(
    State(gate): State<Arc<Gate>>,
    State(past): State<Arc<History>>,
    who: Who,
    LockParam(lock): LockParam,
    Input(body): Input<RejectionBody>,
) -> Reply<RejectionReply> {
    let by = gate.report_of(&who, lock.as_str())?;
    let fits = |name: &str, text: &str, least: usize| match text.len() {
        length if (least..=255).contains(&length) => Ok(()),
        length => Err(Refusal::invalid(format!(
            "{name} has {length} bytes; {least} to 255 are allowed"
        ))),
    };
    fits("resource", &body.resource, 1)?;
    fits("operation", &body.operation, 0)?;
    let token = convert::token_in("fencing_token", body.fencing_token)?;
    let highest = convert::token_in("highest", body.highest)?;
    let late = LateRefusal {
        at_ms: wall().0,
        resource: body.resource,
        highest: highest.get(),
        operation: body.operation,
        by: by.to_bytes(),
        times: 1,
    };
    match past.report(lock.as_str(), token.get(), late).await {
        Some(recorded) => Ok(Json(RejectionReply { recorded })),
        None => Err(Refusal::new(
            Code::Unavailable,
            "the history cannot take this report now; send it again in a moment",
        )
        .into()),
    }
}

/// Where a page stopped, in the form of [`history::cursor`].
fn cursor(text: &str) -> Result<Cursor, Refusal> {
    let parsed = match text.split_once(':') {
        Some(("e", revision)) => revision.parse().ok().map(Cursor::Ended),
        Some(("r", number)) => number.parse().ok().map(Cursor::Late),
        Some(("t", rest)) => rest.split_once(':').and_then(|(token, revision)| {
            Some(Cursor::OfLock(token.parse().ok()?, revision.parse().ok()?))
        }),
        Some(("l", rest)) => rest
            .split_once(':')
            .and_then(|(grant, lock)| Some(Cursor::Lasting(lock.to_owned(), grant.parse().ok()?))),
        _ => None,
    };
    parsed.ok_or_else(|| Refusal::invalid("cursor must be the next_cursor of an earlier answer"))
}

//! What an operator does: look at fences, and re-arm one (rule F7).

use palisade_core::AuthorityId;
use palisade_core::Token;
use palisade_core::fence::FenceState;

use super::fault::Fault;
use super::guard::guard_row;
use super::session::{Arg, Session};
use crate::guard_row::bigint;
use crate::name::ResourceId;

const SHOW: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence WHERE resource = $1";

const LIST: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence
WHERE starts_with(resource, $1) AND ($2::text IS NULL OR resource > $2 COLLATE \"C\")
ORDER BY resource LIMIT $3";

const ALLOW: &str = "SELECT set_config('palisade.rearm', $1, true)";

const REARM: &str = "INSERT INTO palisade_fence (resource, token, floor, authority) VALUES ($1, $2, $2, $3)
ON CONFLICT (resource) DO UPDATE SET token = $2, floor = $2, authority = $3, lock = NULL, written = false,
    sequence = NULL, digest = NULL, result = NULL, updated_at = clock_timestamp()
WHERE palisade_fence.token <= $2 OR palisade_fence.token = $4
RETURNING resource::text";

/// A fence, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The resource.
    pub resource: String,
    /// Its fence.
    pub state: FenceState,
}

/// The fence of one resource; `None` if nothing was ever admitted there.
///
/// # Errors
/// Faults of the database, and a row no fence can have written.
pub async fn show<S: Session>(tx: &mut S, resource: &str) -> Result<Option<FenceState>, Fault> {
    ResourceId::new(resource)?;
    let rows = tx.ask(SHOW, &[Arg::Text(Some(resource))]).await?;
    let state = rows
        .into_iter()
        .next()
        .map(|mut row| guard_row(&mut row).state());
    Ok(state.transpose()?)
}

/// At most `limit` fences whose names begin with `prefix`, in name order, from the one behind `after` on.
///
/// # Errors
/// As [`show`].
pub async fn list<S: Session>(
    tx: &mut S,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Listed>, Fault> {
    let limit = Arg::Int(Some(i64::from(limit)));
    let arguments = [Arg::Text(Some(prefix)), Arg::Text(after), limit];
    let mut listed = Vec::new();
    for mut row in tx.ask(LIST, &arguments).await? {
        let resource = row.text(0).unwrap_or_default();
        let state = guard_row(&mut row).state()?;
        listed.push(Listed { resource, state });
    }
    Ok(listed)
}

/// Makes a resource refuse everything below `floor`, a token that the authority issued just now; also
/// where there is no fence. What was recorded there is forgotten.
///
/// A fence is never lowered by this, or a holder it has refused would be admitted again. The exception
/// is a poisoned one (rule F10), which stands at a token that no authority issued: `lower_from` names
/// that token, as proof that the operator looked.
///
/// # Errors
/// [`Fault::FloorTooLow`] if the fence is higher than the floor, and `lower_from` is not where it
/// stands; the others as [`show`]. Nothing took effect.
pub async fn rearm<S: Session>(
    tx: &mut S,
    resource: &str,
    floor: Token,
    authority: Option<&AuthorityId>,
    lower_from: Option<Token>,
) -> Result<(), Fault> {
    ResourceId::new(resource)?;
    tx.ask(ALLOW, &[Arg::Text(Some("on"))]).await?;
    let number = |token: Token| bigint(token.get());
    let arguments = [
        Arg::Text(Some(resource)),
        Arg::Int(Some(number(floor))),
        Arg::Text(authority.map(AuthorityId::as_str)),
        Arg::Int(lower_from.map(number)),
    ];
    let done = tx.ask(REARM, &arguments).await?;
    tx.ask(ALLOW, &[Arg::Text(Some(""))]).await?;
    if !done.is_empty() {
        return Ok(());
    }
    let highest = show(tx, resource).await?.and_then(|state| state.highest());
    Err(Fault::FloorTooLow {
        floor,
        highest: highest.unwrap_or(floor),
    })
}

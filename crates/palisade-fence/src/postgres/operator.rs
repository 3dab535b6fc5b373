//! Operations for operators: look at fences, and re-arm one (rule F7).

use palisade_core::AuthorityId;
use palisade_core::Token;
use palisade_core::fence::{FenceState, FloorTooLow, Rearm};

use super::guard::guard_row;
use super::session::{Arg, Row, Session};
use crate::admin::{Admin, FencedTable, Listed};
use crate::guard_row::bigint;
use crate::name::ResourceId;
use crate::sql::Fault;

const SHOW: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence WHERE resource = $1";

const LIST: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence
WHERE starts_with(resource, $1) AND ($2::text IS NULL OR resource > $2 COLLATE \"C\")
ORDER BY resource LIMIT $3";

const TABLES: &str = "SELECT \"table\"::text, resource::text FROM palisade_tables ORDER BY 1, 2";

const ALLOW: &str = "SELECT set_config('palisade.rearm', $1, true)";

const REARM: &str = "INSERT INTO palisade_fence (resource, token, floor, authority) VALUES ($1, $2, $2, $3)
ON CONFLICT (resource) DO UPDATE SET token = $2, floor = $2, authority = $3, lock = NULL, written = false,
    sequence = NULL, digest = NULL, result = NULL, updated_at = clock_timestamp()
WHERE palisade_fence.token <= $2 OR palisade_fence.token = $4
RETURNING resource::text";

/// The fences of a database, in a transaction of the caller: a re-arming is durable once the caller commits.
///
/// ```no_run
/// # use palisade_fence::{Admin, postgres::{Fault, Operator, Session}};
/// # async fn show<S: Session>(mut tx: S) -> Result<(), Fault> {
/// let fence = Operator::new(&mut tx).show("orders").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator<'a, S>(&'a mut S);

impl<'a, S: Session> Operator<'a, S> {
    /// Creates the handle for this transaction.
    pub const fn new(tx: &'a mut S) -> Operator<'a, S> {
        Operator(tx)
    }

    /// The tables with the trigger of `palisade_sticky`, in name order; also those whose resource has no token yet.
    ///
    /// # Errors
    /// Faults of the database.
    pub async fn tables(&mut self) -> Result<Vec<FencedTable>, Fault> {
        let rows = self.0.run(TABLES, &[]).await?;
        let table = |mut row: Row| FencedTable {
            table: row.text(0).unwrap_or_default(),
            resource: row.text(1).unwrap_or_default(),
        };
        Ok(rows.into_iter().map(table).collect())
    }
}

impl<S: Session> Admin for Operator<'_, S> {
    type Error = Fault;

    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Fault> {
        ResourceId::new(resource)?;
        let rows = self.0.run(SHOW, &[Arg::Text(Some(resource))]).await?;
        let state = rows
            .into_iter()
            .next()
            .map(|mut row| guard_row(&mut row).state());
        Ok(state.transpose()?)
    }

    async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Listed>, Fault> {
        let limit = Arg::Int(Some(i64::from(limit)));
        let arguments = [Arg::Text(Some(prefix)), Arg::Text(after), limit];
        let mut listed = Vec::new();
        for mut row in self.0.run(LIST, &arguments).await? {
            let resource = row.text(0).unwrap_or_default();
            let state = guard_row(&mut row).state()?;
            listed.push(Listed { resource, state });
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Fault> {
        ResourceId::new(resource)?;
        self.0.run(ALLOW, &[Arg::Text(Some("on"))]).await?;
        let number = |token: Token| bigint(token.get());
        let arguments = [
            Arg::Text(Some(resource)),
            Arg::Int(Some(number(with.floor))),
            Arg::Text(with.authority.map(AuthorityId::as_str)),
            Arg::Int(with.lower_from.map(number)),
        ];
        let done = self.0.run(REARM, &arguments).await?;
        self.0.run(ALLOW, &[Arg::Text(Some(""))]).await?;
        if !done.is_empty() {
            return Ok(());
        }
        let stands = self.show(resource).await?.unwrap_or_default();
        let (floor, highest) = (with.floor, stands.highest().unwrap_or(with.floor));
        Err(FloorTooLow { floor, highest }.into())
    }
}

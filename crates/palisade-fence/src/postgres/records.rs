//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.

use palisade_core::fence::{Pass, Reject, Rule};

use super::column::int;
use super::session::{Arg, Session};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::sql::{Strategy, bound, judge, valid_id};

/// One statement, which is atomic through the row's own lock. A missing row is created.
const OPTIMISTIC: &str = "INSERT INTO resource_records AS r (resource_id, resource_data, last_fencing_token, updated_at)
SELECT $1, $2, $3, now() WHERE $3 <= $4 OR EXISTS (SELECT FROM resource_records WHERE resource_id = $1)
ON CONFLICT (resource_id) DO UPDATE SET resource_data = excluded.resource_data,
    last_fencing_token = excluded.last_fencing_token, updated_at = excluded.updated_at
WHERE r.last_fencing_token <= $3 AND $3 - r.last_fencing_token <= $4 RETURNING 1::bigint";

const CLAIM: &str =
    "INSERT INTO resource_records AS r (resource_id, last_fencing_token, updated_at)
SELECT $1, $2, now() WHERE $2 <= $3 OR EXISTS (SELECT FROM resource_records WHERE resource_id = $1)
ON CONFLICT (resource_id) DO UPDATE SET
    last_fencing_token = excluded.last_fencing_token, updated_at = excluded.updated_at
WHERE r.last_fencing_token <= $2 AND $2 - r.last_fencing_token <= $3 RETURNING resource_data";

const CREATE: &str = "INSERT INTO resource_records (resource_id) VALUES ($1)
ON CONFLICT (resource_id) DO NOTHING";

const LOCK: &str = "SELECT last_fencing_token, resource_data FROM resource_records WHERE resource_id = $1 FOR UPDATE";

const LOOK: &str =
    "SELECT last_fencing_token, resource_data FROM resource_records WHERE resource_id = $1";

const SET: &str =
    "UPDATE resource_records SET resource_data = $2, last_fencing_token = $3, updated_at = now()
WHERE resource_id = $1 RETURNING 1::bigint";

const DELETE: &str = "UPDATE resource_records SET resource_data = NULL, last_fencing_token = $2,
    updated_at = now() WHERE resource_id = $1 AND resource_data IS NOT NULL RETURNING 1::bigint";

/// The store: table `resource_records`, keys of 1 – 100 characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// How rows are locked.
    pub strategy: Strategy,
    /// The jump bound in force.
    pub rule: Rule,
}

impl Records {
    /// The store under [`Rule::CLAIM`].
    #[must_use]
    pub const fn new(strategy: Strategy) -> Records {
        Records {
            strategy,
            rule: Rule::CLAIM,
        }
    }

    /// Claims a resource and reads it in one step (rules F2 and F3). A missing row is created, empty.
    ///
    /// # Errors
    /// [`Error::Rejected`] for a stale token and a jump; errors of the database; an id that is not valid.
    pub async fn claim<'p, S: Session>(
        &self,
        tx: &mut S,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<Option<String>>> {
        let pass = pass.into().doing("claim");
        valid_id(id)?;
        match self.strategy {
            Strategy::Optimistic => {
                let arguments = [Arg::Text(Some(id)), int(pass.token.get()), self.bound()];
                match tx.run(CLAIM, &arguments).await?.first_mut() {
                    Some(row) => Ok(Admitted::new(row.text(0), Some(pass.token))),
                    None => Err(self.why(tx, id, pass).await),
                }
            }
            Strategy::Pessimistic => {
                let data = self.lock(tx, id, pass).await?;
                let set = self.set(tx, id, data.as_deref(), pass).await?;
                Ok(set.map(|()| data))
            }
        }
    }

    /// Writes a resource's text. A missing row is created; a higher token is claimed in the same step.
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub async fn write<'p, S: Session>(
        &self,
        tx: &mut S,
        id: &str,
        pass: impl Into<Pass<'p>>,
        data: &str,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        valid_id(id)?;
        match self.strategy {
            Strategy::Optimistic => {
                let (id_, data) = (Arg::Text(Some(id)), Arg::Text(Some(data)));
                let arguments = [id_, data, int(pass.token.get()), self.bound()];
                match tx.run(OPTIMISTIC, &arguments).await?.len() {
                    1 => Ok(Admitted::new((), Some(pass.token))),
                    _ => Err(self.why(tx, id, pass).await),
                }
            }
            Strategy::Pessimistic => {
                self.lock(tx, id, pass).await?;
                self.set(tx, id, Some(data), pass).await
            }
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// # Errors
    /// As [`Records::claim`]; [`Reject::Missing`] if there is nothing to delete (rule F8).
    pub async fn delete<'p, S: Session>(
        &self,
        tx: &mut S,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        valid_id(id)?;
        self.lock(tx, id, pass).await?;
        let arguments = [Arg::Text(Some(id)), int(pass.token.get())];
        let deleted = tx.run(DELETE, &arguments).await?.len();
        one_row(id, pass, deleted)
    }

    /// Locks the row until the transaction ends, and decides the token; returns the text.
    async fn lock<S: Session>(
        &self,
        tx: &mut S,
        id: &str,
        pass: Pass<'_>,
    ) -> Result<Option<String>> {
        let arguments = [Arg::Text(Some(id))];
        let mut rows = tx.run(LOCK, &arguments).await?;
        if rows.is_empty() {
            tx.run(CREATE, &arguments).await?;
            rows = tx.run(LOCK, &arguments).await?;
        }
        let Some(row) = rows.first_mut() else {
            return Err(rejected(id, pass, Reject::Missing));
        };
        match judge(self.rule, row.int(0).unwrap_or(0), pass.token)? {
            Some(reject) => Err(rejected(id, pass, reject)),
            None => Ok(row.text(1)),
        }
    }

    async fn set<S: Session>(
        &self,
        tx: &mut S,
        id: &str,
        data: Option<&str>,
        pass: Pass<'_>,
    ) -> Result<Admitted<()>> {
        let arguments = [Arg::Text(Some(id)), Arg::Text(data), int(pass.token.get())];
        let set = tx.run(SET, &arguments).await?.len();
        one_row(id, pass, set)
    }

    /// Returns the reason why no row was matched.
    async fn why<S: Session>(&self, tx: &mut S, id: &str, pass: Pass<'_>) -> Error {
        let rows = match tx.run(LOOK, &[Arg::Text(Some(id))]).await {
            Ok(rows) => rows,
            Err(answer) => return answer.into(),
        };
        let highest = rows.first().and_then(|row| row.int(0)).unwrap_or(0);
        match judge(self.rule, highest, pass.token) {
            Ok(reject) => rejected(id, pass, reject.unwrap_or(Reject::Missing)),
            Err(corrupt) => corrupt.into(),
        }
    }

    fn bound(&self) -> Arg<'static> {
        int(bound(self.rule))
    }
}

/// The answer to a statement that must hit one row (rule F8).
fn one_row(id: &str, pass: Pass<'_>, rows: usize) -> Result<Admitted<()>> {
    match rows {
        1 => Ok(Admitted::new((), Some(pass.token))),
        _ => Err(rejected(id, pass, Reject::Missing)),
    }
}

fn rejected(id: &str, pass: Pass<'_>, reject: Reject) -> Error {
    audit::reject(id, Some(pass), reject)
}

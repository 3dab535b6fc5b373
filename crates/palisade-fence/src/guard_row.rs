//! The guard row of a fence: its columns, and the record that they represent, independent of any database.
//!
//! ```text
//!   row of palisade_fence ──► GuardRow ──► FenceRecord::decide ──► GuardRow ──► row
//! ```

use palisade_core::fence::{
    FenceRecord, FenceState, Mark, Op, Pass, Rule, Sequence, Verdict, Written,
};
use palisade_core::{AuthorityId, LockName, Token};

use crate::error::Error;

/// The data stored for a numbered write, to recognise and answer its repeat (rule F5).
#[cfg_attr(
    any(feature = "dynamodb", feature = "object-store"),
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// A checksum of the write.
    pub(crate) digest: Option<i64>,
    /// The recorded answer.
    pub(crate) result: Option<Vec<u8>>,
}

/// One row, with the types of SQL.
#[cfg_attr(
    any(feature = "dynamodb", feature = "object-store"),
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuardRow {
    pub(crate) authority: Option<String>,
    pub(crate) lock: Option<String>,
    pub(crate) token: Option<i64>,
    pub(crate) written: bool,
    pub(crate) sequence: Option<i64>,
    pub(crate) recorded: Recorded,
}

/// A row that no fence can have written: the column and its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the guard row holds {holds}")]
pub(crate) struct CorruptRow {
    pub(crate) column: &'static str,
    pub(crate) holds: String,
}

impl From<CorruptRow> for Error {
    fn from(corrupt: CorruptRow) -> Error {
        Error::Damaged(corrupt.to_string())
    }
}

/// A write's number and a checksum of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Its number among the writes of this grant.
    pub sequence: Sequence,
    /// A checksum of its content, which distinguishes another write under the same number.
    pub digest: u64,
}

/// Parses a token from a column; 0 means that there is none yet.
pub(crate) fn token(column: &'static str, number: i64) -> Result<Option<Token>, CorruptRow> {
    let corrupt = |_| CorruptRow {
        column,
        holds: number.to_string(),
    };
    match u64::try_from(number) {
        Ok(0) => Ok(None),
        Ok(positive) => Token::new(positive).map(Some).map_err(|_| CorruptRow {
            column,
            holds: number.to_string(),
        }),
        Err(error) => Err(corrupt(error)),
    }
}

/// Converts a number to BIGINT. Tokens and sequence numbers end at 2^53 − 1, so this never saturates.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The state of a resource that has only a token column.
pub(crate) fn column_state(number: i64) -> Result<FenceState, CorruptRow> {
    let highest = token("last_fencing_token", number)?;
    Ok(highest.map_or_else(FenceState::default, FenceState::floor))
}

impl GuardRow {
    /// Returns the state that the row represents.
    pub(crate) fn state(&self) -> Result<FenceState, CorruptRow> {
        let written = match (self.written, self.sequence) {
            (false, _) => Written::Nothing,
            (true, None) => Written::Unnumbered,
            (true, Some(number)) => Written::Through(sequence(number)?),
        };
        let highest = self
            .token
            .map(|number| token("token", number))
            .transpose()?;
        Ok(FenceState {
            authority: named("authority", self.authority.as_deref(), AuthorityId::new)?,
            lock: named("lock", self.lock.as_deref(), LockName::new)?,
            mark: highest.flatten().map(|token| Mark { token, written }),
        })
    }

    #[cfg_attr(
        not(any(feature = "dynamodb", feature = "object-store", feature = "sqlite")),
        allow(dead_code, reason = "PostgreSQL and MySQL decide by themselves")
    )]
    /// Returns the record that the row represents.
    fn record(&self) -> Result<FenceRecord, CorruptRow> {
        Ok(FenceRecord {
            state: self.state()?,
            digest: self.recorded.digest.map(i64::cast_unsigned),
            result: self.recorded.result.clone(),
        })
    }

    #[cfg_attr(
        not(any(feature = "dynamodb", feature = "object-store", feature = "sqlite")),
        allow(dead_code, reason = "PostgreSQL and MySQL decide by themselves")
    )]
    /// Decides an operation on this row, as [`FenceRecord::decide`] does.
    pub(crate) fn decide(
        &self,
        rule: Rule,
        pass: Option<Pass<'_>>,
        op: Op,
        digest: Option<u64>,
    ) -> Result<Verdict<GuardRow>, CorruptRow> {
        let verdict = self.record()?.decide(rule, pass, op, digest);
        Ok(verdict.map(GuardRow::from))
    }
}

impl From<FenceRecord> for GuardRow {
    fn from(record: FenceRecord) -> GuardRow {
        let state = record.state;
        let written = state.mark.map_or(Written::Nothing, |mark| mark.written);
        GuardRow {
            token: state.highest().map(|token| bigint(token.get())),
            authority: state.authority.map(|id| id.as_str().to_owned()),
            lock: state.lock.map(|name| name.as_str().to_owned()),
            written: written != Written::Nothing,
            sequence: match written {
                Written::Through(number) => Some(bigint(number.get())),
                Written::Nothing | Written::Unnumbered => None,
            },
            recorded: Recorded {
                digest: record.digest.map(u64::cast_signed),
                result: record.result,
            },
        }
    }
}

fn sequence(number: i64) -> Result<Sequence, CorruptRow> {
    let sequence = u64::try_from(number).ok().and_then(Sequence::new);
    sequence.ok_or_else(|| CorruptRow {
        column: "sequence",
        holds: number.to_string(),
    })
}

fn named<T, E>(
    column: &'static str,
    text: Option<&str>,
    new: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, CorruptRow> {
    let parse = |text: &str| {
        new(text).map_err(|_| CorruptRow {
            column,
            holds: format!("{text:?}"),
        })
    };
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: i64) -> GuardRow {
        GuardRow {
            token: Some(token),
            ..GuardRow::default()
        }
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        let full = GuardRow {
            authority: Some("ours".to_owned()),
            lock: Some("orders".to_owned()),
            token: Some(7),
            written: true,
            sequence: Some(3),
            recorded: Recorded {
                digest: Some(-1),
                result: Some(b"done".to_vec()),
            },
        };
        for row in [GuardRow::default(), row(7), full] {
            assert_eq!(GuardRow::from(row.record().unwrap()), row);
        }
    }

    #[test]
    fn a_row_that_no_fence_wrote_is_a_fault() {
        for (bad, column) in [
            (row(-1), "token"),
            (row(1 << 53), "token"),
            (
                GuardRow {
                    authority: Some(String::new()),
                    ..row(1)
                },
                "authority",
            ),
            (
                GuardRow {
                    written: true,
                    sequence: Some(-1),
                    ..row(1)
                },
                "sequence",
            ),
        ] {
            assert_eq!(bad.state().unwrap_err().column, column);
        }
    }
}

//! One replica: the mutations that it admits, and its next state. Pure: nothing here does I/O.
//!
//! ```text
//!   install  ── from ≤ own ≤ version, the same last mutation ──► records the version: the fence rises to it
//!   mutation ── own version, next in order ────────────────────► the records, the fence and the position, in one file
//!            ── lower version ── stale            higher ── not installed            a repeat ── as the first time
//! ```
//!
//! The comparison is the fence's ([`FenceRecord::decide`]): a lower token is stale, and (token, sequence number) orders
//! the mutations and recognises repeats. A replica adds that a higher version is refused as well, until it was installed
//! here: a replica that does not know of a version may lack earlier writes.

use palisade_core::fence::{
    FenceRecord, FenceState, Mark, Mode, Op, Pass, Reject, Rule, Verdict, Written,
};
use palisade_core::{AuthorityId, LockName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::name::ChunkId;
use crate::version::{Position, Version};
use crate::wire::{Expected, Install, MAX_CHUNK, Mutation, Problem, ProblemCode, authority};

/// The longest record, in bytes.
pub(crate) const MAX_RECORD: usize = 64 << 10;

/// Whether replicas check versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// They do.
    Versions,
    /// They do not, for comparison: **corrupts data**.
    DangerUnfenced,
}

impl Checks {
    fn rule(self) -> Rule {
        match self {
            Checks::Versions => Rule::CLAIM,
            Checks::DangerUnfenced => Rule {
                mode: Mode::DangerUnfenced,
                ..Rule::CLAIM
            },
        }
    }
}

/// A replica as its file has it: the fence and the records together (rule F4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replica {
    pub(crate) chunk: ChunkId,
    #[serde(with = "authority")]
    pub(crate) authority: AuthorityId,
    /// The version that was installed last.
    pub(crate) version: Version,
    /// The last mutation.
    pub(crate) last: Option<Position>,
    /// The digest of the last mutation, by which a repeat is recognised.
    pub(crate) digest: Option<u64>,
    /// The records, each with a line end.
    pub(crate) data: String,
}

/// An admitted mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// The replica with it, to be made durable before the answer.
    Applied(Box<Replica>),
    /// It was applied before.
    Repeat,
}

impl Replica {
    /// The replica of a new chunk, at its first version.
    pub(crate) fn first(install: &Install) -> Result<Replica, Problem> {
        match (install.from, install.expected) {
            (None, Expected::Any | Expected::Last(None)) => Ok(Replica {
                chunk: install.chunk.clone(),
                authority: install.authority.clone(),
                version: install.version,
                last: None,
                digest: None,
                data: String::new(),
            }),
            _ => Err(not_here(&install.chunk)),
        }
    }

    /// Takes part in a version (rule K3).
    pub(crate) fn install(&self, checks: Checks, install: &Install) -> Result<Replica, Problem> {
        let next = Replica {
            version: install.version,
            ..self.clone()
        };
        if checks == Checks::DangerUnfenced {
            return Ok(next);
        }
        if install.from.is_none() && !self.data.is_empty() {
            let message = "this is a replica of an earlier chunk of this name";
            return Err(Problem::new(ProblemCode::Exists, message).at(self.version));
        }
        if install.from.is_some_and(|from| self.version < from) {
            let message = format!("this replica has version {} and is stale", self.version);
            return Err(Problem::new(ProblemCode::OutOfOrder, message).at(self.version));
        }
        let _ = self.judge(checks, &install.authority, install.version, Op::Claim, None)?;
        match install.expected {
            Expected::Last(last) if last != self.last => {
                let message = "this replica’s last mutation is not the one of the others";
                Err(Problem::new(ProblemCode::OutOfOrder, message).at(self.version))
            }
            _ => Ok(next),
        }
    }

    /// Carries a mutation out, or says why not (rule K4).
    pub(crate) fn apply(&self, checks: Checks, mutation: &Mutation) -> Result<Admitted, Problem> {
        let Position { version, serial } = mutation.position;
        let digest = digest(mutation);
        let op = Op::Write(Some(serial.sequence()));
        if checks == Checks::Versions {
            self.only_own(version)?;
            if self.judge(checks, &mutation.authority, version, op, Some(digest))? {
                return Ok(Admitted::Repeat);
            }
            if mutation.after != self.last {
                let message = format!(
                    "the mutation {} does not follow the last one here",
                    mutation.position
                );
                return Err(Problem::new(ProblemCode::OutOfOrder, message).at(self.version));
            }
        }
        let data = written(&self.data, mutation)?;
        Ok(Admitted::Applied(Box::new(Replica {
            last: Some(mutation.position),
            digest: Some(digest),
            data,
            ..self.clone()
        })))
    }

    /// Admits a read at a version (rule K7).
    pub(crate) fn read(&self, checks: Checks, version: Version) -> Result<(), Problem> {
        if checks == Checks::Versions {
            self.only_own(version)?;
            let _ = self.judge(checks, &self.authority, version, Op::Read, None)?;
        }
        Ok(())
    }

    /// The same content under another name, at the version of the snapshot (rule K7). Tokens are ordered over all
    /// locks of an authority, so every later grant of the new chunk has a higher version.
    pub(crate) fn clone_as(&self, to: ChunkId) -> Replica {
        Replica {
            chunk: to,
            last: None,
            digest: None,
            ..self.clone()
        }
    }

    /// The records.
    pub(crate) fn records(&self) -> Vec<String> {
        self.data.lines().map(str::to_owned).collect()
    }

    /// A version above the own one was not installed here.
    fn only_own(&self, version: Version) -> Result<(), Problem> {
        if version <= self.version {
            return Ok(());
        }
        let own = self.version;
        let message = format!("this replica has version {own}; version {version} is not installed");
        Err(Problem::new(ProblemCode::NotInstalled, message).at(own))
    }

    /// The fence's verdict: whether it is a repeat.
    fn judge(
        &self,
        checks: Checks,
        authority: &AuthorityId,
        version: Version,
        op: Op,
        digest: Option<u64>,
    ) -> Result<bool, Problem> {
        let invalid =
            |error: palisade_core::Invalid| Problem::new(ProblemCode::Invalid, error.to_string());
        let lock = self.chunk.lock().map_err(invalid)?;
        let pass = Pass::new(version.token()).by(authority).of(&lock);
        match self
            .fence(lock.clone())
            .decide(checks.rule(), Some(pass), op, digest)
        {
            Verdict::Admit(_) => Ok(false),
            Verdict::Repeat => Ok(true),
            Verdict::Reject(reject) => Err(self.refused(version, &reject)),
        }
    }

    /// The fence that the file amounts to: it stands at the replica's version.
    fn fence(&self, lock: LockName) -> FenceRecord {
        let here = self.last.filter(|last| last.version == self.version);
        FenceRecord {
            digest: here.and(self.digest),
            ..FenceState {
                authority: Some(self.authority.clone()),
                lock: Some(lock),
                mark: Some(Mark {
                    token: self.version.token(),
                    written: here.map_or(Written::Nothing, |last| {
                        Written::Through(last.serial.sequence())
                    }),
                }),
            }
            .into()
        }
    }

    fn refused(&self, version: Version, reject: &Reject) -> Problem {
        let own = self.version;
        let (code, message) = match reject {
            Reject::Stale { highest, .. } => (
                ProblemCode::Stale,
                format!("version {version} is stale: {version} < {highest}"),
            ),
            other => (ProblemCode::OutOfOrder, other.to_string()),
        };
        Problem::new(code, message).at(own)
    }
}

/// The refusal of a server that has no such replica.
pub(crate) fn not_here(chunk: &ChunkId) -> Problem {
    let message = format!("there is no replica of {chunk} here");
    Problem::new(ProblemCode::NotFound, message)
}

/// Checks a record of a client.
pub(crate) fn check_record(data: &str) -> Result<(), Problem> {
    let plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if !data.is_empty() && data.len() < MAX_RECORD && data.bytes().all(plain) {
        return Ok(());
    }
    let message = format!(
        "a record is 1 - {} bytes of printable ASCII",
        MAX_RECORD - 1
    );
    Err(Problem::new(ProblemCode::Invalid, message))
}

/// The data after a mutation.
fn written(data: &str, mutation: &Mutation) -> Result<String, Problem> {
    let invalid = |message: &str| Err(Problem::new(ProblemCode::Invalid, message));
    let Ok(offset) = usize::try_from(mutation.offset) else {
        return invalid("the offset is too large");
    };
    let record = mutation.data.strip_suffix('\n').unwrap_or(&mutation.data);
    check_record(record)?;
    let end = offset.saturating_add(mutation.data.len());
    if end > MAX_CHUNK {
        return invalid("the chunk is full");
    }
    // Records are ASCII, so every offset inside the data is a character's.
    let Some(before) = data.get(..offset) else {
        return invalid("the offset is beyond the end of the chunk");
    };
    Ok(format!(
        "{before}{}{}",
        mutation.data,
        data.get(end..).unwrap_or_default()
    ))
}

fn digest(mutation: &Mutation) -> u64 {
    let mut hash = Sha256::new();
    hash.update(mutation.offset.to_be_bytes());
    hash.update(mutation.data.as_bytes());
    let hash = hash.finalize();
    let first = hash.first_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: &str = "log";

    fn version(number: u64) -> Version {
        number.try_into().unwrap()
    }

    fn at(version: u64, serial: u64) -> Position {
        Position {
            version: version.try_into().unwrap(),
            serial: serial.try_into().unwrap(),
        }
    }

    fn install(from: Option<u64>, to: u64, expected: Expected) -> Install {
        Install {
            chunk: CHUNK.parse().unwrap(),
            authority: AuthorityId::new("here").unwrap(),
            from: from.map(version),
            version: version(to),
            expected,
        }
    }

    fn mutation(position: Position, after: Option<Position>, offset: u64, data: &str) -> Mutation {
        Mutation {
            chunk: CHUNK.parse().unwrap(),
            authority: AuthorityId::new("here").unwrap(),
            position,
            after,
            offset,
            data: format!("{data}\n"),
        }
    }

    /// Version 4, with one record.
    fn replica() -> Replica {
        let empty = Replica::first(&install(None, 4, Expected::Any)).unwrap();
        apply(&empty, &mutation(at(4, 1), None, 0, "a1"))
    }

    fn apply(replica: &Replica, mutation: &Mutation) -> Replica {
        match replica.apply(Checks::Versions, mutation).unwrap() {
            Admitted::Applied(next) => *next,
            Admitted::Repeat => panic!("a repeat"),
        }
    }

    fn refusal(replica: &Replica, mutation: &Mutation) -> ProblemCode {
        replica.apply(Checks::Versions, mutation).unwrap_err().code
    }

    #[test]
    fn a_replica_admits_only_mutations_of_its_own_version() {
        let new = replica()
            .install(
                Checks::Versions,
                &install(Some(4), 6, Expected::Last(Some(at(4, 1)))),
            )
            .unwrap();
        let late = mutation(at(4, 2), Some(at(4, 1)), 3, "a2");
        let problem = new.apply(Checks::Versions, &late).unwrap_err();
        assert_eq!(
            (problem.code, problem.version),
            (ProblemCode::Stale, Some(version(6)))
        );
        let early = mutation(at(7, 1), Some(at(4, 1)), 3, "c1");
        assert_eq!(refusal(&new, &early), ProblemCode::NotInstalled);
        let own = mutation(at(6, 1), Some(at(4, 1)), 3, "b1");
        assert_eq!(apply(&new, &own).data, "a1\nb1\n");
    }

    /// The control: without the check the late mutation overwrites the record of the new version.
    #[test]
    fn without_the_check_the_late_mutation_overwrites() {
        let new = replica()
            .install(Checks::DangerUnfenced, &install(Some(4), 6, Expected::Any))
            .unwrap();
        let new = apply(&new, &mutation(at(6, 1), Some(at(4, 1)), 3, "b1"));
        let late = mutation(at(4, 2), Some(at(4, 1)), 3, "a2");
        match new.apply(Checks::DangerUnfenced, &late).unwrap() {
            Admitted::Applied(next) => assert_eq!(next.data, "a1\na2\n"),
            Admitted::Repeat => panic!("a repeat"),
        }
    }

    #[test]
    fn mutations_are_in_order_without_gaps_and_a_repeat_changes_nothing() {
        let one = replica();
        let repeat = mutation(at(4, 1), None, 0, "a1");
        assert_eq!(one.apply(Checks::Versions, &repeat), Ok(Admitted::Repeat));
        let other = mutation(at(4, 1), None, 0, "x1");
        assert_eq!(refusal(&one, &other), ProblemCode::OutOfOrder);
        let gap = mutation(at(4, 3), Some(at(4, 2)), 6, "a3");
        assert_eq!(refusal(&one, &gap), ProblemCode::OutOfOrder);
        let two = apply(&one, &mutation(at(4, 2), Some(at(4, 1)), 3, "a2"));
        assert_eq!(refusal(&two, &repeat), ProblemCode::OutOfOrder);
    }

    #[test]
    fn a_version_is_not_installed_at_a_stale_or_different_replica() {
        let one = replica();
        let code = |install: &Install| one.install(Checks::Versions, install).unwrap_err().code;
        let stale = install(Some(5), 6, Expected::Any);
        assert_eq!(code(&stale), ProblemCode::OutOfOrder);
        let different = install(Some(4), 6, Expected::Last(Some(at(4, 2))));
        assert_eq!(code(&different), ProblemCode::OutOfOrder);
        assert_eq!(
            code(&install(Some(2), 3, Expected::Any)),
            ProblemCode::Stale
        );
        let of_an_earlier_chunk = install(None, 9, Expected::Any);
        assert_eq!(code(&of_an_earlier_chunk), ProblemCode::Exists);
        // A second time is the same.
        let again = one.install(Checks::Versions, &install(Some(4), 4, Expected::Any));
        assert_eq!(again.unwrap(), one);
    }

    #[test]
    fn reads_carry_the_version_and_clones_keep_it() {
        let one = replica();
        assert!(one.read(Checks::Versions, version(4)).is_ok());
        let code = |number| {
            one.read(Checks::Versions, version(number))
                .unwrap_err()
                .code
        };
        assert_eq!(
            (code(3), code(5)),
            (ProblemCode::Stale, ProblemCode::NotInstalled)
        );
        let clone = one.clone_as("copy".parse().unwrap());
        assert_eq!((clone.version, clone.data.as_str()), (version(4), "a1\n"));
        // The lock is another one: a mutation of the first chunk is none of the clone.
        assert!(clone.read(Checks::Versions, version(4)).is_ok());
    }

    #[test]
    fn another_authoritys_version_is_no_number_to_compare() {
        let foreign = Mutation {
            authority: AuthorityId::new("elsewhere").unwrap(),
            ..mutation(at(4, 2), Some(at(4, 1)), 3, "a2")
        };
        assert_eq!(refusal(&replica(), &foreign), ProblemCode::OutOfOrder);
    }

    #[test]
    fn a_record_is_text_inside_the_chunk() {
        let far = mutation(at(4, 2), Some(at(4, 1)), 9, "a2");
        assert_eq!(refusal(&replica(), &far), ProblemCode::Invalid);
        let full = mutation(at(4, 2), Some(at(4, 1)), MAX_CHUNK as u64, "a2");
        assert_eq!(refusal(&replica(), &full), ProblemCode::Invalid);
        for bad in ["", "a\nb", "ä", &"a".repeat(MAX_RECORD)] {
            assert!(check_record(bad).is_err(), "{bad}");
        }
    }
}

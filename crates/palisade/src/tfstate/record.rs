//! The record of a state, stored beside it: its versions, and its grants by lock ID.

use palisade_core::{AuthorityId, GrantRef, LeaseKey, LockName, Token};
use palisade_fence::store::Resource;
use palisade_fence::{Edit, Fence as _, Pass, Result, Write};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::callers::CallerMark;

/// The metadata of a state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The oldest first.
    pub(super) versions: Vec<Version>,
    /// The oldest first.
    grants: Vec<Grant>,
}

/// One upload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Version {
    /// From 1, and never used again.
    pub(super) number: u64,
    /// When it came, in milliseconds since 1970.
    pub(super) at: u64,
    /// The lock it was uploaded under, and its token; none for an upload without a lock.
    pub(super) lock_id: Option<String>,
    pub(super) token: Option<u64>,
    pub(super) who: String,
    pub(super) bytes: u64,
    /// MD5 in base64, as HTTP's Content-MD5 has it.
    pub(super) md5: String,
    /// Terraform's own count of changes, if the state shows it.
    pub(super) serial: Option<u64>,
    pub(super) lineage: Option<String>,
    /// In how many objects its compressed bytes are.
    pub(super) parts: u32,
}

/// One lock that was granted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) id: String,
    /// A plan's, which writes nothing.
    pub(super) shared: bool,
    #[serde(with = "number")]
    pub(super) token: Token,
    authority: String,
    /// The lease's secret key, and the number that names the grant at the authority.
    key: String,
    #[serde(with = "number")]
    number: Token,
    /// The mark of the password that it was acquired with.
    pub(super) caller: CallerMark,
    /// When, in milliseconds since 1970.
    pub(super) at: u64,
    pub(super) released: bool,
    pub(super) who: String,
    /// As Terraform described it, while it is held.
    pub(super) info: Value,
}

/// A grant's name at its authority.
#[derive(Clone, Debug)]
pub(super) struct GrantName {
    pub(super) authority: AuthorityId,
    pub(super) grant: GrantRef,
}

impl GrantName {
    /// The grant, as the record keeps it.
    pub(super) fn grant(
        &self,
        token: Token,
        info: &super::info::Info,
        caller: CallerMark,
        at: u64,
    ) -> Grant {
        Grant {
            id: info.id.clone(),
            shared: info.is_plan(),
            token,
            authority: self.authority.as_str().to_owned(),
            key: self.grant.key.to_hex(),
            number: self.grant.token.unwrap_or(token),
            caller,
            at,
            released: false,
            who: info.who().to_owned(),
            info: info.to_value(),
        }
    }
}

impl Grant {
    /// The grant's name at its authority; `None` if this program did not write the record.
    pub(super) fn named(&self, lock: &LockName) -> Option<GrantName> {
        Some(GrantName {
            authority: AuthorityId::new(&self.authority).ok()?,
            grant: GrantRef {
                lock: lock.clone(),
                key: LeaseKey::from_hex(&self.key).ok()?,
                token: Some(self.number),
            },
        })
    }
}

impl Record {
    /// Reads it, as it is now.
    pub(super) async fn read(resource: &Resource) -> Result<Record> {
        let Some(bytes) = resource.observe(PATH).await? else {
            return Ok(Record::default());
        };
        serde_json::from_slice(&bytes).map_err(|error| {
            palisade_fence::Error::Damaged(format!(
                "the record of {} cannot be read: {error}",
                resource.id().as_str()
            ))
        })
    }

    /// Writes it under a token; or without one, as long as nobody has ever locked the state.
    pub(super) async fn write(&self, resource: &Resource, pass: Option<Pass<'_>>) -> Result<()> {
        let bytes = serde_json::to_vec(self).map_err(|error| {
            palisade_fence::Error::Damaged(format!("the record cannot be written: {error}"))
        })?;
        change(resource, pass, PATH, Edit::Put(&bytes)).await
    }

    /// The grant with this lock ID, the latest if there are several.
    pub(super) fn grant(&self, id: &str) -> Option<&Grant> {
        self.grants.iter().rev().find(|grant| grant.id == id)
    }

    /// The grant that is held with this token, as Terraform described it.
    pub(super) fn holder(&self, token: Token) -> Option<&Grant> {
        let mut held = self.grants.iter().rev().filter(|grant| !grant.released);
        held.find(|grant| grant.token == token)
    }

    /// The grants that were not released.
    pub(super) fn held(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(|grant| !grant.released)
    }

    /// Adds a grant, and forgets grants that ended long ago.
    pub(super) fn add(&mut self, grant: Grant) {
        let (now, token) = (grant.at, grant.token);
        self.grants.retain(|old| {
            let over = old.released || old.token < token;
            old.id != grant.id && !(over && now.saturating_sub(old.at) > KEPT_MS)
        });
        for old in &mut self.grants {
            if old.token < token {
                old.released = true;
                old.info = Value::Null;
            }
        }
        self.grants.push(grant);
        // Plans upload nothing, so theirs are forgotten first.
        for plans in [true, false] {
            let mut excess = self.grants.len().saturating_sub(GRANTS);
            self.grants.retain(|old| {
                let goes = excess > 0 && old.released && (old.shared || !plans);
                excess -= usize::from(goes);
                !goes
            });
        }
    }

    /// Notes that a grant was released; its ID still leads to its token.
    pub(super) fn release(&mut self, id: &str) {
        for grant in self.grants.iter_mut().filter(|grant| grant.id == id) {
            grant.released = true;
            grant.info = Value::Null;
        }
    }
}

/// Changes an object under a token, or without one.
pub(super) async fn change(
    resource: &Resource,
    pass: Option<Pass<'_>>,
    path: &str,
    change: Edit<'_>,
) -> Result<()> {
    match pass {
        Some(pass) => resource.write(pass, Write::new(path, change)).await?,
        None => resource.write_tokenless(path, change).await?,
    };
    Ok(())
}

/// Tokens as JSON numbers.
mod number {
    use palisade_core::Token;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(token: &Token, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(token.get())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Token, D::Error> {
        let number = u64::deserialize(from)?;
        Token::new(number).map_err(|_| de::Error::custom("not a token"))
    }
}

const PATH: &str = "/record";
/// Thirty days.
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How many grants are kept at most, beside those that are held.
const GRANTS: usize = 1_000;

//! One item that carries its own fence.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use palisade_core::fence::{FenceState, Pass, Rearm, Rule};

use super::conditional::{Effect, Operation, carry_out};
use super::location::{Loaded, Location, PutOutcome, not_the_fence};
use super::{Attributes, FENCE};
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::guard_row::Numbered;
use crate::stamped::Stamped;

/// An item whose fence is its attribute [`FENCE`](super::FENCE).
///
/// Each operation reads the item once, consistently, and each operation that changes anything puts the whole item once: an
/// item has at most 400 KB. Reads and writes do not include the attributes of the key.
#[derive(Clone, Debug)]
pub struct Item {
    location: Location,
    rule: Rule,
}

impl Item {
    /// Creates a handle for the item with this key; nothing is read or written yet.
    ///
    /// # Errors
    /// [`Error::Argument`] unless the key has one or two attributes, or if one is called like the fence's.
    pub fn new(client: Client, table: &str, key: Attributes, rule: Rule) -> Result<Item> {
        if !(1..=2).contains(&key.len()) {
            return Err(Error::Argument(format!(
                "the key has {} attributes; 1 ..= 2 are allowed",
                key.len()
            )));
        }
        not_the_fence(key.keys())?;
        let location = Location {
            client,
            table: table.to_owned(),
            name: name(table, &key),
            key,
        };
        Ok(Item { location, rule })
    }

    /// Raises the fence, durably, before the first read (rule F2).
    ///
    /// # Errors
    /// [`Error::Rejected`] for a stale token; errors of the database.
    pub async fn claim<'p>(&self, pass: impl Into<Pass<'p>>) -> Result<Admitted<()>> {
        let done = self
            .carry_out(Operation::claim(pass.into()), |_| true)
            .await?;
        Ok(done.map(|_| ()))
    }

    /// Reads in order to write (rule F3); `None` if there are no attributes.
    ///
    /// # Errors
    /// As [`Item::claim`].
    pub async fn read<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<Option<Attributes>>> {
        let done = self
            .carry_out(Operation::read(pass.into()), |_| true)
            .await?;
        Ok(done.map(found))
    }

    /// Changes the attributes. `change` gets the present attributes, may be called again if other clients
    /// were faster, and returns whether there was anything to change. If there was nothing, the answer is
    /// [`Reject::Missing`](crate::Reject::Missing) and nothing is written (rule F8).
    ///
    /// An item that is left without attributes counts as deleted; its fence stays.
    ///
    /// # Errors
    /// As [`Item::claim`]; [`Error::Argument`] for an attribute that is called like the fence's, or that is in the key with
    /// another value.
    pub async fn write<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        number: Option<Numbered>,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Admitted<()>> {
        let operation = Operation::write(Some(pass.into()), number);
        Ok(self.carry_out(operation, change).await?.map(|_| ()))
    }

    /// A write by code without a token: rejected once the item is fenced (rule F9).
    ///
    /// # Errors
    /// As [`Item::claim`].
    pub async fn write_tokenless(
        &self,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Admitted<()>> {
        let operation = Operation::write(None, None);
        Ok(self.carry_out(operation, change).await?.map(|_| ()))
    }

    /// A read for observers: consistent and never rejected. A write must not depend on it.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn observe(&self) -> Result<Option<Attributes>> {
        self.location.load().await.map(found)
    }

    /// Returns the fence; `None` if the item was never fenced.
    ///
    /// # Errors
    /// Errors of the database, and a fence that cannot be read.
    pub async fn show(&self) -> Result<Option<FenceState>> {
        let seen = self.location.load().await?;
        let state = seen.fence.map(|fence| fence.guard.state()).transpose();
        self.location.or_damaged(state)
    }

    /// Re-arms an item whose fence was lost or restored, or which was never fenced (rule F7): tokens below
    /// the floor are refused from now on. Attributes stay. See [`Admin::rearm`](crate::Admin::rearm).
    ///
    /// # Errors
    /// [`Error::FloorTooLow`] below the fence, [`Error::Busy`] while other clients write.
    pub async fn rearm(&self, with: &Rearm<'_>) -> Result<()> {
        self.location.rearm(with).await
    }

    async fn carry_out(
        &self,
        operation: Operation<'_>,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Admitted<Loaded>> {
        let effect = Whole {
            location: &self.location,
            change,
        };
        carry_out(&self.location, self.rule, operation, &effect).await
    }
}

fn found(seen: Loaded) -> Option<Attributes> {
    seen.attributes.filter(|attributes| !attributes.is_empty())
}

/// The effect of putting the item with its fence and its changed attributes.
struct Whole<'a, C> {
    location: &'a Location,
    change: C,
}

impl<C> Whole<'_, C> {
    /// Refuses attributes that the fence and the key would silently replace.
    fn callers(&self, item: &Attributes) -> Result<()> {
        if item.contains_key(FENCE) {
            return Err(Error::Argument(format!(
                "{FENCE} is the attribute of the fence: give your attribute another name"
            )));
        }
        let mut key = self.location.key.iter();
        let other = key.find(|(name, value)| item.get(*name).is_some_and(|given| given != *value));
        other.map_or(Ok(()), |(name, _)| {
            Err(Error::Argument(format!(
                "{name} belongs to the key of {}: leave it out, or use the Item with the other key",
                self.location.name
            )))
        })
    }
}

impl<C: Fn(&mut Attributes) -> bool + Send + Sync> Effect for Whole<'_, C> {
    async fn put(&self, seen: &Loaded, next: &Stamped) -> Result<PutOutcome> {
        let mut item = seen.attributes.clone().unwrap_or_default();
        if !(self.change)(&mut item) {
            return Ok(PutOutcome::Missing);
        }
        self.callers(&item)?;
        self.location
            .send(self.location.put(seen, next, item)?)
            .await
    }
}

/// The name of an item in errors and in the log.
fn name(table: &str, key: &Attributes) -> String {
    let mut parts: Vec<String> = key
        .iter()
        .map(|(name, value)| match value {
            AttributeValue::S(text) | AttributeValue::N(text) => format!("{name}={text}"),
            other => format!("{name}={other:?}"),
        })
        .collect();
    parts.sort();
    format!("{table}/{}", parts.join(","))
}

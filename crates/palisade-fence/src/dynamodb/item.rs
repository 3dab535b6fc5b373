//! One item that carries its own fence.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use palisade_core::fence::{FenceState, Pass, Rearm, Rule};

use super::Attributes;
use super::error::Fault;
use super::spot::{Seen, Spot};
use super::swing::{Ask, Effect, Put, carry_out};
use crate::checked::Checked;
use crate::guard_row::Numbered;
use crate::stamped::Stamped;

/// An item whose fence is its attribute [`FENCE`](super::FENCE).
///
/// Each operation reads the item once, consistently, and each that changes anything puts it once, whole:
/// an item has at most 400 KB. Attributes of the key are not among those read and written.
#[derive(Clone, Debug)]
pub struct Item {
    spot: Spot,
    rule: Rule,
}

impl Item {
    /// The item of this key; nothing is read or written yet.
    ///
    /// # Errors
    /// [`Fault::Argument`] if the key has not one or two attributes.
    pub fn new(client: Client, table: &str, key: Attributes, rule: Rule) -> Result<Item, Fault> {
        if !(1..=2).contains(&key.len()) {
            return Err(Fault::Argument(format!(
                "the key has {} attributes; 1 ..= 2 are allowed",
                key.len()
            )));
        }
        let spot = Spot {
            client,
            table: table.to_owned(),
            name: name(table, &key),
            key,
        };
        Ok(Item { spot, rule })
    }

    /// Raises the fence, durably, before the first read (rule F2).
    ///
    /// # Errors
    /// Faults of the database; a stale token is [`Checked::Rejected`].
    pub async fn claim<'p>(&self, pass: impl Into<Pass<'p>>) -> Result<Checked<()>, Fault> {
        let done = self.carry_out(Ask::claim(pass.into()), |_| true).await?;
        Ok(done.map(|_| ()))
    }

    /// Reads in order to write (rule F3); `None` if there is nothing.
    ///
    /// # Errors
    /// As [`Item::claim`].
    pub async fn read<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Checked<Option<Attributes>>, Fault> {
        let done = self.carry_out(Ask::read(pass.into()), |_| true).await?;
        Ok(done.map(found))
    }

    /// Changes the attributes: `change` gets them as they are, may be called again if others were faster,
    /// and says whether there was anything to change. If not, that is
    /// [`Reject::Missing`](crate::Reject::Missing) and nothing is written (rule F8).
    ///
    /// An item left without attributes counts as deleted; its fence stays.
    ///
    /// # Errors
    /// As [`Item::claim`].
    pub async fn write<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        number: Option<Numbered>,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Checked<()>, Fault> {
        let ask = Ask::write(Some(pass.into()), number);
        Ok(self.carry_out(ask, change).await?.map(|_| ()))
    }

    /// A write by code that has no token: rejected once the item is fenced (rule F9).
    ///
    /// # Errors
    /// As [`Item::claim`].
    pub async fn write_tokenless(
        &self,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Checked<()>, Fault> {
        let ask = Ask::write(None, None);
        Ok(self.carry_out(ask, change).await?.map(|_| ()))
    }

    /// An observer's read: consistent, never rejected, must not feed a write.
    ///
    /// # Errors
    /// Faults of the database.
    pub async fn observe(&self) -> Result<Option<Attributes>, Fault> {
        self.spot.load().await.map(found)
    }

    /// The fence; `None` if the item was never fenced.
    ///
    /// # Errors
    /// Faults of the database, and a fence that cannot be read.
    pub async fn show(&self) -> Result<Option<FenceState>, Fault> {
        let seen = self.spot.load().await?;
        let state = seen.fence.map(|fence| fence.guard.state()).transpose();
        self.spot.sound(state)
    }

    /// Arms an item whose fence was lost or restored, or which was never fenced (rule F7): what is below
    /// the floor is refused from now on. Attributes stay. As [`Admin::rearm`](crate::Admin::rearm).
    ///
    /// # Errors
    /// [`Fault::FloorTooLow`] below the fence, [`Fault::Contended`] while others write.
    pub async fn rearm(&self, with: &Rearm<'_>) -> Result<(), Fault> {
        self.spot.rearm(with).await
    }

    async fn carry_out(
        &self,
        ask: Ask<'_>,
        change: impl Fn(&mut Attributes) -> bool + Send + Sync,
    ) -> Result<Checked<Seen>, Fault> {
        let effect = Whole {
            spot: &self.spot,
            change,
        };
        carry_out(&self.spot, self.rule, ask, &effect).await
    }
}

fn found(seen: Seen) -> Option<Attributes> {
    seen.attributes.filter(|attributes| !attributes.is_empty())
}

/// Puts the item with its fence and its changed attributes.
struct Whole<'a, C> {
    spot: &'a Spot,
    change: C,
}

impl<C: Fn(&mut Attributes) -> bool + Send + Sync> Effect for Whole<'_, C> {
    async fn put(&self, seen: &Seen, next: &Stamped) -> Result<Put, Fault> {
        let mut item = seen.attributes.clone().unwrap_or_default();
        if !(self.change)(&mut item) {
            return Ok(Put::Missing);
        }
        self.spot.send(self.spot.put(seen, next, item)?).await
    }
}

/// How faults and the log call an item.
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

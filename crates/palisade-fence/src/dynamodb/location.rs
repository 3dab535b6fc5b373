//! The location of a fence: one item, read consistently, and the condition that it is unchanged since the
//! read.

use aws_sdk_dynamodb::types::{self, AttributeValue};
use aws_sdk_dynamodb::{Client, Error as SdkError};
use palisade_core::fence::{FenceRecord, Rearm};

use super::{Attributes, FENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::guard_row::CorruptRow;
use crate::stamped::{ATTEMPTS, Stamped, back_off, contended};

/// The prefix of the resource's name in the partition key, so that guard items can share a table with others.
pub(super) const PREFIX: &str = "palisade_fence#";

/// The placeholder of the condition's value.
const SEEN: &str = ":palisade_seen";

/// One item of one table.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) client: Client,
    pub(super) table: String,
    pub(super) key: Attributes,
    /// The name in errors.
    pub(super) name: String,
}

/// An item as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    /// The fence as stored, which the condition compares.
    text: Option<String>,
    pub(super) fence: Option<Stamped>,
    /// The other attributes, without key and fence; `None`: there is no item.
    pub(super) attributes: Option<Attributes>,
}

/// The outcome of one conditional write.
pub(super) enum PutOutcome {
    Done,
    /// The condition was false, or another transaction interfered.
    Refused,
    /// There was nothing to change (rule F8).
    Missing,
}

impl Loaded {
    pub(super) fn is_same(&self, other: &Loaded) -> bool {
        self.text == other.text && self.attributes.is_some() == other.attributes.is_some()
    }
}

impl Location {
    pub(super) async fn load(&self) -> Result<Loaded> {
        let got = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.key.clone()))
            .consistent_read(true)
            .send()
            .await;
        self.seen(got.map_err(failed)?.item)
    }

    /// Parses an item.
    pub(super) fn seen(&self, item: Option<Attributes>) -> Result<Loaded> {
        let Some(mut attributes) = item.filter(|item| !item.is_empty()) else {
            return Ok(Loaded::default());
        };
        let text = match attributes.remove(FENCE) {
            None => None,
            Some(AttributeValue::S(text)) => Some(text),
            Some(_) => return Err(self.damaged("it is not a string".to_owned())),
        };
        let fence = match &text {
            None => None,
            Some(text) => {
                let fence: Stamped =
                    serde_json::from_str(text).map_err(|error| self.damaged(error.to_string()))?;
                fence.check().map_err(|why| self.damaged(why))?;
                Some(fence)
            }
        };
        attributes.retain(|name, _| !self.key.contains_key(name));
        Ok(Loaded {
            text,
            fence,
            attributes: Some(attributes),
        })
    }

    /// Encodes the fence as stored.
    fn encoded(&self, fence: &Stamped) -> Result<AttributeValue> {
        let text = serde_json::to_string(fence).map_err(|error| self.damaged(error.to_string()))?;
        Ok(AttributeValue::S(text))
    }

    /// Builds a put of the item with this fence and these attributes, on the condition that the fence is
    /// still the one that was read, or that there still is no item.
    pub(super) fn put(
        &self,
        seen: &Loaded,
        next: &Stamped,
        attributes: Attributes,
    ) -> Result<types::Put> {
        let mut item = attributes;
        item.extend(self.key.clone());
        item.insert(FENCE.to_owned(), self.encoded(next)?);
        let put = types::Put::builder()
            .table_name(&self.table)
            .set_item(Some(item));
        let put = match &seen.text {
            Some(text) => put
                .condition_expression(format!("{FENCE} = {SEEN}"))
                .expression_attribute_values(SEEN, AttributeValue::S(text.clone())),
            None => {
                let (alias, name) = key_name(&self.key);
                put.condition_expression(format!("attribute_not_exists({alias})"))
                    .expression_attribute_names(alias, name)
            }
        };
        put.build().map_err(failed)
    }

    /// Sends one put alone.
    pub(super) async fn send(&self, put: types::Put) -> Result<PutOutcome> {
        let request = self
            .client
            .put_item()
            .table_name(put.table_name)
            .set_item(Some(put.item))
            .set_condition_expression(put.condition_expression)
            .set_expression_attribute_names(put.expression_attribute_names)
            .set_expression_attribute_values(put.expression_attribute_values);
        match request.send().await.map_err(SdkError::from) {
            Ok(_) => Ok(PutOutcome::Done),
            Err(error) if is_refusal(&error) => Ok(PutOutcome::Refused),
            Err(error) => Err(failed(error)),
        }
    }

    /// Re-arms the fence; the present attributes stay.
    pub(super) async fn rearm(&self, with: &Rearm<'_>) -> Result<()> {
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await?;
            let seen = self.load().await?;
            let mut next = seen.fence.clone().unwrap_or_default();
            let state = self.or_damaged(next.guard.state())?.rearmed(with)?;
            next.guard = FenceRecord::from(state).into();
            next.stamp()?;
            if self.set_fence(&seen, &next).await? {
                return Ok(());
            }
        }
        Err(contended())
    }

    /// Writes the fence and leaves the attributes; returns whether the fence was still the one that was read.
    async fn set_fence(&self, seen: &Loaded, next: &Stamped) -> Result<bool> {
        let request = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(self.key.clone()))
            .update_expression(format!("SET {FENCE} = :palisade_next"))
            .expression_attribute_values(":palisade_next", self.encoded(next)?);
        let request = match &seen.text {
            None => request.condition_expression(format!("attribute_not_exists({FENCE})")),
            Some(text) => request
                .condition_expression(format!("{FENCE} = {SEEN}"))
                .expression_attribute_values(SEEN, AttributeValue::S(text.clone())),
        };
        match request.send().await.map_err(SdkError::from) {
            Ok(_) => Ok(true),
            Err(error) if is_refusal(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn or_damaged<T>(&self, read: Result<T, CorruptRow>) -> Result<T> {
        read.map_err(|corrupt| self.damaged(corrupt.to_string()))
    }

    fn damaged(&self, why: String) -> Error {
        Error::Damaged(format!("the fence of {} cannot be read: {why}", self.name))
    }
}

/// Any error of the SDK.
pub(super) fn failed(error: impl Into<SdkError>) -> Error {
    Error::failed(ErrorKind::Unknown, "DynamoDB failed", error.into())
}

/// An attribute that every existing item has, and an alias of it for expressions.
pub(super) fn key_name(key: &Attributes) -> (&'static str, String) {
    let first = key.keys().min().cloned();
    ("#palisade_key", first.unwrap_or_default())
}

/// Refuses a key with the name of the fence's attribute. A put would write the fence into the key, and so another item than
/// the one that was read.
pub(super) fn not_the_fence<'a>(mut key: impl Iterator<Item = &'a String>) -> Result<()> {
    if key.any(|name| name == FENCE) {
        Err(Error::Argument(format!(
            "the table's key is called {FENCE}, as the attribute of the fence: use a table with another key"
        )))
    } else {
        Ok(())
    }
}

/// Whether the condition was false, or a transaction is in progress there.
fn is_refusal(error: &SdkError) -> bool {
    matches!(
        error,
        SdkError::ConditionalCheckFailedException(_) | SdkError::TransactionConflictException(_)
    )
}

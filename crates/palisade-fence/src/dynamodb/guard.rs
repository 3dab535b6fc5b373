//! One guard item, and the transactions that contain it.

use aws_sdk_dynamodb::Error as SdkError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Delete, Get, ReturnValuesOnConditionCheckFailure,
    TransactGetItem, TransactWriteItem,
};
use palisade_core::fence::{Op, Pass, Rule, Verdict};

use super::conditional::{Effect, Operation, carry_out};
use super::location::{Loaded, Location, PREFIX, PutOutcome, failed, key_name};
use super::{Attributes, FENCE};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::Numbered;
use crate::stamped::{ATTEMPTS, Stamped, back_off, contended};

/// DynamoDB's limit, less the guard item itself.
const MAX_ITEMS: usize = 99;

/// The guard item of one resource. It guards writes to any items of any tables.
#[derive(Clone, Debug)]
pub struct Guard {
    pub(super) location: Location,
    pub(super) rule: Rule,
}

impl Guard {
    /// Raises the fence, durably, before the first read (rule F2).
    ///
    /// # Errors
    /// [`Error::Rejected`] for a stale token; errors of the database.
    pub async fn claim<'p>(&self, pass: impl Into<Pass<'p>>) -> Result<Admitted<()>> {
        self.carry_out(Operation::claim(pass.into()), &[]).await
    }

    /// Reads up to 99 items in order to write (rule F3), in one transaction with the fence; a higher token is
    /// claimed first. Returns them in the order of the request; `None` for a missing item.
    ///
    /// # Errors
    /// As [`Guard::claim`].
    pub async fn read<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        gets: &[Get],
    ) -> Result<Admitted<Vec<Option<Attributes>>>> {
        let pass = pass.into().doing("read");
        in_range(gets.len())?;
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await?;
            let Some((seen, items)) = self.read_items(gets).await? else {
                continue;
            };
            let fence = seen.fence.unwrap_or_default();
            let guard = &fence.guard;
            let verdict = guard.decide(self.rule, Some(pass), Op::Read, None);
            match self.location.or_damaged(verdict)? {
                Verdict::Reject(reject) => {
                    return Err(audit::reject(&self.location.name, Some(pass), reject));
                }
                Verdict::Admit(None) | Verdict::Repeat => {
                    let highest = self.location.or_damaged(guard.state())?.highest();
                    return Ok(Admitted::new(items, highest));
                }
                Verdict::Admit(Some(_)) => {
                    self.claim(pass).await?;
                }
            }
        }
        Err(contended())
    }

    /// Writes up to 99 items, all or none, in one transaction with the check; a higher token is claimed in the same
    /// step. A guard item, or an item with its own fence, is an error, because this check does not cover its mark.
    /// Deleting a missing item is [`Reject::Missing`](crate::Reject::Missing) (rule F8).
    ///
    /// # Errors
    /// As [`Guard::claim`]; [`Error::Condition`] if one of your conditions was false; [`Error::Argument`] for an item with a
    /// fence.
    pub async fn write<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        number: Option<Numbered>,
        items: &[TransactWriteItem],
    ) -> Result<Admitted<()>> {
        in_range(items.len())?;
        self.carry_out(Operation::write(Some(pass.into()), number), items)
            .await
    }

    /// A write by code without a token: rejected once the resource is fenced (rule F9).
    ///
    /// # Errors
    /// As [`Guard::write`].
    pub async fn write_tokenless(&self, items: &[TransactWriteItem]) -> Result<Admitted<()>> {
        in_range(items.len())?;
        self.carry_out(Operation::write(None, None), items).await
    }

    async fn carry_out(
        &self,
        operation: Operation<'_>,
        items: &[TransactWriteItem],
    ) -> Result<Admitted<()>> {
        let items = items.iter().cloned().enumerate();
        let items: Result<_, _> = items.map(|(at, item)| self.not_a_fence(at, item)).collect();
        let items = items?;
        let effect = Transaction { guard: self, items };
        let done = carry_out(&self.location, self.rule, operation, &effect).await?;
        Ok(done.map(|_| ()))
    }

    /// Adds the conditions that an item has no fence of its own, and that a deletion deletes something. This guard's fence
    /// was checked, and no other one: no call of its holder changes another mark.
    fn not_a_fence(&self, index: usize, mut item: TransactWriteItem) -> Result<TransactWriteItem> {
        let is_mark = |given: &Attributes| {
            let mut names = self.location.key.keys();
            names.any(|name| matches!(given.get(name), Some(AttributeValue::S(text)) if text.starts_with(PREFIX)))
        };
        let names_fence = |text: &str| text.contains(FENCE);
        let (key, is_fence, condition, reply);
        if let Some(put) = &mut item.put {
            (key, is_fence) = (&put.item, put.item.contains_key(FENCE));
            (condition, reply) = (
                &mut put.condition_expression,
                &mut put.return_values_on_condition_check_failure,
            );
        } else if let Some(update) = &mut item.update {
            let mut aliased = update.expression_attribute_names.iter().flatten();
            let aliased = aliased.any(|(_, name)| names_fence(name));
            (key, is_fence) = (
                &update.key,
                aliased || names_fence(&update.update_expression),
            );
            (condition, reply) = (
                &mut update.condition_expression,
                &mut update.return_values_on_condition_check_failure,
            );
        } else if let Some(delete) = &mut item.delete {
            let (alias, name) = key_name(&delete.key);
            require(
                &mut delete.condition_expression,
                &format!("attribute_exists({alias})"),
            );
            let names = delete.expression_attribute_names.get_or_insert_default();
            names.insert(alias.to_owned(), name);
            (key, is_fence) = (&delete.key, false);
            (condition, reply) = (
                &mut delete.condition_expression,
                &mut delete.return_values_on_condition_check_failure,
            );
        } else {
            return Ok(item);
        }
        if is_fence || is_mark(key) {
            return Err(has_fence(index));
        }
        require(condition, &format!("attribute_not_exists({FENCE})"));
        *reply = Some(ReturnValuesOnConditionCheckFailure::AllOld);
        Ok(item)
    }

    /// Reads the guard item and others at one moment; `None` if a transaction was in progress there.
    async fn read_items(&self, gets: &[Get]) -> Result<Option<(Loaded, Vec<Option<Attributes>>)>> {
        let own = Get::builder()
            .table_name(&self.location.table)
            .set_key(Some(self.location.key.clone()))
            .build()
            .map_err(failed)?;
        let mut request = self.location.client.transact_get_items();
        for get in std::iter::once(&own).chain(gets) {
            request = request.transact_items(TransactGetItem::builder().get(get.clone()).build());
        }
        let got = match request.send().await.map_err(SdkError::from) {
            Ok(got) => got,
            Err(SdkError::TransactionCanceledException(canceled))
                if conflicts(canceled.cancellation_reasons()) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        let mut items = got
            .responses
            .unwrap_or_default()
            .into_iter()
            .map(|response| response.item.filter(|item| !item.is_empty()));
        let seen = self.location.seen(items.next().flatten())?;
        Ok(Some((seen, items.collect())))
    }
}

fn in_range(items: usize) -> Result<()> {
    if (1..=MAX_ITEMS).contains(&items) {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{items} items; 1 ..= {MAX_ITEMS} are allowed at once"
    )))
}

/// Adds a condition to those of the caller.
fn require(condition: &mut Option<String>, more: &str) {
    *condition = Some(match condition.take() {
        Some(own) => format!("({own}) AND {more}"),
        None => more.to_owned(),
    });
}

fn has_fence(index: usize) -> Error {
    Error::Argument(format!(
        "item {index} of the write is a fence or has one of its own ({FENCE}), which this guard did not check: write it \
         through its own Item or Guard"
    ))
}

/// A transaction that writes the guard item and the others.
struct Transaction<'a> {
    guard: &'a Guard,
    items: Vec<TransactWriteItem>,
}

impl Effect for Transaction<'_> {
    async fn put(&self, seen: &Loaded, next: &Stamped) -> Result<PutOutcome> {
        let location = &self.guard.location;
        let put = location.put(seen, next, Attributes::new())?;
        if self.items.is_empty() {
            return location.send(put).await;
        }
        let guard = TransactWriteItem::builder().put(put).build();
        let items = std::iter::once(guard).chain(self.items.iter().cloned());
        transact(location, 1, items.collect()).await
    }
}

/// Sends a transaction whose first items are `guards`.
pub(super) async fn transact(
    location: &Location,
    guards: usize,
    items: Vec<TransactWriteItem>,
) -> Result<PutOutcome> {
    let deletes: Vec<Option<Delete>> = items.iter().map(|item| item.delete.clone()).collect();
    let request = location.client.transact_write_items();
    let answer = request.set_transact_items(Some(items)).send().await;
    let canceled = match answer.map_err(SdkError::from) {
        Ok(_) => return Ok(PutOutcome::Done),
        Err(SdkError::TransactionCanceledException(canceled)) => canceled,
        Err(error) => return Err(failed(error)),
    };
    let reasons = canceled.cancellation_reasons();
    if reasons.iter().take(guards).any(failed_check) || conflicts(reasons) {
        return Ok(PutOutcome::Refused);
    }
    let Some(index) = reasons.iter().position(failed_check) else {
        return Err(failed(SdkError::TransactionCanceledException(canceled)));
    };
    let found = reasons[index].item();
    if found.is_some_and(|item| item.contains_key(FENCE)) {
        return Err(has_fence(index - guards));
    }
    let deletes = deletes.get(index).is_some_and(Option::is_some);
    let nothing = found.is_none_or(Attributes::is_empty);
    if deletes && nothing {
        Ok(PutOutcome::Missing)
    } else {
        Err(Error::Condition {
            index: index - guards,
        })
    }
}

fn failed_check(reason: &CancellationReason) -> bool {
    reason.code() == Some("ConditionalCheckFailed")
}

fn conflicts(reasons: &[CancellationReason]) -> bool {
    let conflict = |reason: &CancellationReason| reason.code() == Some("TransactionConflict");
    reasons.iter().any(conflict)
}

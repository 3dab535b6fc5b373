//! One guard item, and the transactions it stands in.

use aws_sdk_dynamodb::Error;
use aws_sdk_dynamodb::types::{
    CancellationReason, Delete, Get, ReturnValuesOnConditionCheckFailure, TransactGetItem,
    TransactWriteItem,
};
use palisade_core::fence::{Op, Pass, Rule};

use super::Attributes;
use super::error::{Fault, failed};
use super::spot::{Seen, Spot, key_name};
use super::swing::{Ask, Effect, Put, carry_out, rejected};
use crate::checked::Checked;
use crate::guard_row::{Decision, Numbered};
use crate::stamped::{ATTEMPTS, Stamped, back_off};

/// What DynamoDB allows, less the guard item itself.
const MAX_ITEMS: usize = 99;

/// The guard item of one resource: any items, of any tables, may be written under it.
#[derive(Clone, Debug)]
pub struct Guard {
    pub(super) spot: Spot,
    pub(super) rule: Rule,
}

impl Guard {
    /// Raises the fence, durably, before the first read (rule F2).
    ///
    /// # Errors
    /// Faults of the database; a stale token is [`Checked::Rejected`].
    pub async fn claim<'p>(&self, pass: impl Into<Pass<'p>>) -> Result<Checked<()>, Fault> {
        self.carry_out(Ask::claim(pass.into()), &[]).await
    }

    /// Reads up to 99 items in order to write (rule F3), in one transaction with the fence; a higher token
    /// is claimed first. Gives them in the order asked for; `None` where there is nothing.
    ///
    /// # Errors
    /// As [`Guard::claim`].
    pub async fn read<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        gets: &[Get],
    ) -> Result<Checked<Vec<Option<Attributes>>>, Fault> {
        let pass = pass.into();
        in_range(gets.len())?;
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await.map_err(Fault::Random)?;
            let Some((seen, items)) = self.look(gets).await? else {
                continue;
            };
            let fence = seen.fence.unwrap_or_default();
            let decision = fence.decide(self.rule, Some(pass), Op::Read, None);
            match self.spot.sound(decision)? {
                Decision::Reject(reject) => return Ok(rejected(&self.spot, Some(pass), reject)),
                Decision::Admit(None) | Decision::Repeat(_) => {
                    let highest = self.spot.sound(fence.guard.state())?.highest();
                    return Ok(Checked::admitted(items, highest));
                }
                Decision::Admit(Some(_)) => match self.claim(pass).await? {
                    Checked::Admitted(_) => {}
                    Checked::Rejected(reject) => return Ok(Checked::Rejected(reject)),
                },
            }
        }
        Err(Fault::Contended { attempts: ATTEMPTS })
    }

    /// Writes up to 99 items, all or none, in one transaction with the check; a higher token is claimed in
    /// the same step. Deleting what is not there is [`Reject::Missing`](crate::Reject::Missing) (rule F8).
    ///
    /// # Errors
    /// As [`Guard::claim`]; [`Fault::Condition`] if a condition of yours did not hold.
    pub async fn write<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        number: Option<Numbered>,
        items: &[TransactWriteItem],
    ) -> Result<Checked<()>, Fault> {
        in_range(items.len())?;
        self.carry_out(Ask::write(Some(pass.into()), number), items)
            .await
    }

    /// A write by code that has no token: rejected once the resource is fenced (rule F9).
    ///
    /// # Errors
    /// As [`Guard::write`].
    pub async fn write_tokenless(&self, items: &[TransactWriteItem]) -> Result<Checked<()>, Fault> {
        in_range(items.len())?;
        self.carry_out(Ask::write(None, None), items).await
    }

    async fn carry_out(
        &self,
        ask: Ask<'_>,
        items: &[TransactWriteItem],
    ) -> Result<Checked<()>, Fault> {
        let items = items.iter().cloned().map(hitting).collect();
        let effect = Transaction { guard: self, items };
        let done = carry_out(&self.spot, self.rule, ask, &effect).await?;
        Ok(done.map(|_| ()))
    }

    /// The guard item and others at one moment; `None` if a transaction was under way there.
    async fn look(&self, gets: &[Get]) -> Result<Option<(Seen, Vec<Option<Attributes>>)>, Fault> {
        let own = Get::builder()
            .table_name(&self.spot.table)
            .set_key(Some(self.spot.key.clone()))
            .build()
            .map_err(failed)?;
        let mut ask = self.spot.client.transact_get_items();
        for get in std::iter::once(&own).chain(gets) {
            ask = ask.transact_items(TransactGetItem::builder().get(get.clone()).build());
        }
        let got = match ask.send().await.map_err(Error::from) {
            Ok(got) => got,
            Err(Error::TransactionCanceledException(canceled))
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
        let seen = self.spot.seen(items.next().flatten())?;
        Ok(Some((seen, items.collect())))
    }
}

fn in_range(items: usize) -> Result<(), Fault> {
    if (1..=MAX_ITEMS).contains(&items) {
        return Ok(());
    }
    Err(Fault::Argument(format!(
        "{items} items; 1 ..= {MAX_ITEMS} are allowed at once"
    )))
}

/// The same, and a deletion has to hit something.
fn hitting(mut item: TransactWriteItem) -> TransactWriteItem {
    if let Some(delete) = &mut item.delete {
        let (alias, name) = key_name(&delete.key);
        let exists = format!("attribute_exists({alias})");
        delete.condition_expression = Some(match delete.condition_expression.take() {
            Some(own) => format!("({own}) AND {exists}"),
            None => exists,
        });
        let names = delete.expression_attribute_names.get_or_insert_default();
        names.insert(alias.to_owned(), name);
        delete.return_values_on_condition_check_failure =
            Some(ReturnValuesOnConditionCheckFailure::AllOld);
    }
    item
}

/// Writes the guard item and the others in one transaction.
struct Transaction<'a> {
    guard: &'a Guard,
    items: Vec<TransactWriteItem>,
}

impl Effect for Transaction<'_> {
    async fn put(&self, seen: &Seen, next: &Stamped) -> Result<Put, Fault> {
        let spot = &self.guard.spot;
        let put = spot.put(seen, next, Attributes::new())?;
        if self.items.is_empty() {
            return spot.send(put).await;
        }
        let guard = TransactWriteItem::builder().put(put).build();
        let items = std::iter::once(guard).chain(self.items.iter().cloned());
        transact(spot, 1, items.collect()).await
    }
}

/// Sends a transaction whose first items are `guards`.
pub(super) async fn transact(
    spot: &Spot,
    guards: usize,
    items: Vec<TransactWriteItem>,
) -> Result<Put, Fault> {
    let deletes: Vec<Option<Delete>> = items.iter().map(|item| item.delete.clone()).collect();
    let ask = spot.client.transact_write_items();
    let answer = ask.set_transact_items(Some(items)).send().await;
    let canceled = match answer.map_err(Error::from) {
        Ok(_) => return Ok(Put::Done),
        Err(Error::TransactionCanceledException(canceled)) => canceled,
        Err(error) => return Err(failed(error)),
    };
    let reasons = canceled.cancellation_reasons();
    if reasons.iter().take(guards).any(failed_check) || conflicts(reasons) {
        return Ok(Put::Refused);
    }
    let Some(index) = reasons.iter().position(failed_check) else {
        return Err(failed(Error::TransactionCanceledException(canceled)));
    };
    let deletes = deletes.get(index).is_some_and(Option::is_some);
    let nothing = reasons[index].item().is_none_or(Attributes::is_empty);
    match deletes && nothing {
        true => Ok(Put::Missing),
        false => Err(Fault::Condition {
            index: index - guards,
        }),
    }
}

fn failed_check(reason: &CancellationReason) -> bool {
    reason.code() == Some("ConditionalCheckFailed")
}

fn conflicts(reasons: &[CancellationReason]) -> bool {
    let conflict = |reason: &CancellationReason| reason.code() == Some("TransactionConflict");
    reasons.iter().any(conflict)
}

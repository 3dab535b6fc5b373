//! All guard items of a table: claims of several at once, and the operations for operators.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use palisade_core::fence::{FenceState, Op, Pass, Rearm, Rule, Verdict};

use super::guard::{Guard, transact};
use super::location::{Location, PREFIX, PutOutcome, failed, not_the_fence};
use super::{Attributes, FENCE};
use crate::admin::{Admin, Listed};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::name::ResourceId;
use crate::stamped::{ATTEMPTS, back_off, contended};

/// DynamoDB's limit for one transaction.
const MAX_CLAIMS: usize = 100;

/// Guard items, one for each resource, in a table of the caller, preferably the table of the data.
#[derive(Clone, Debug)]
pub struct Guards {
    client: Client,
    table: String,
    partition: String,
    sort: Option<String>,
    rule: Rule,
}

impl Guards {
    /// Uses a table whose partition key is the string attribute `partition`. Nothing is read or written yet.
    #[must_use]
    pub fn new(client: Client, table: &str, partition: &str, rule: Rule) -> Guards {
        Guards {
            client,
            table: table.to_owned(),
            partition: partition.to_owned(),
            sort: None,
            rule,
        }
    }

    /// Uses a table that also has a sort key, which must be a string.
    #[must_use]
    pub fn with_sort_key(self, sort: &str) -> Guards {
        Guards {
            sort: Some(sort.to_owned()),
            ..self
        }
    }

    /// Returns the guard item of one resource.
    ///
    /// # Errors
    /// [`Error::Name`] if the name is not valid; [`Error::Argument`] if the table's key is the attribute of the fence.
    pub fn guard(&self, resource: &str) -> Result<Guard> {
        let id = ResourceId::new(resource)?;
        not_the_fence(std::iter::once(&self.partition).chain(&self.sort))?;
        let at = format!("{PREFIX}{}", id.as_str());
        let mut key = Attributes::from([(self.partition.clone(), AttributeValue::S(at))]);
        if let Some(sort) = &self.sort {
            key.insert(sort.clone(), AttributeValue::S(FENCE.to_owned()));
        }
        let location = Location {
            client: self.client.clone(),
            table: self.table.clone(),
            key,
            name: id.as_str().to_owned(),
        };
        Ok(Guard {
            location,
            rule: self.rule,
        })
    }

    /// Claims several resources in one transaction, before any read: all are raised or none is.
    ///
    /// # Errors
    /// As [`Guard::claim`]; [`Error::Argument`] unless 1 to 100 different resources are named.
    pub async fn claim_all(&self, claims: &[(&str, Pass<'_>)]) -> Result<Admitted<()>> {
        let mut by_name = BTreeMap::new();
        for (resource, pass) in claims {
            if by_name
                .insert(*resource, (self.guard(resource)?, *pass))
                .is_some()
            {
                let text = format!("{resource} is claimed twice in one step");
                return Err(Error::Argument(text));
            }
        }
        let Some((first, _)) = by_name
            .values()
            .next()
            .filter(|_| by_name.len() <= MAX_CLAIMS)
        else {
            let text = format!("{} claims; 1 ..= {MAX_CLAIMS} are allowed", by_name.len());
            return Err(Error::Argument(text));
        };
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await?;
            let (mut items, mut raises) = (Vec::new(), false);
            for (guard, pass) in by_name.values() {
                let seen = guard.location.load().await?;
                let mut next = seen.fence.clone().unwrap_or_default();
                let verdict = next.guard.decide(self.rule, Some(*pass), Op::Claim, None);
                match guard.location.or_damaged(verdict)? {
                    Verdict::Reject(reject) => {
                        let pass = pass.doing("claim");
                        return Err(audit::reject(&guard.location.name, Some(pass), reject));
                    }
                    Verdict::Admit(Some(row)) => (next.guard, raises) = (row, true),
                    Verdict::Admit(None) | Verdict::Repeat => {}
                }
                next.stamp()?;
                let put = guard.location.put(&seen, &next, Attributes::new())?;
                items.push(TransactWriteItem::builder().put(put).build());
            }
            let guards = items.len();
            if !raises
                || matches!(
                    transact(&first.location, guards, items).await?,
                    PutOutcome::Done
                )
            {
                let highest = by_name.values().map(|(_, pass)| pass.token).max();
                return Ok(Admitted::new((), highest));
            }
        }
        Err(contended())
    }
}

/// Listing reads the whole table.
impl Admin for Guards {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        let location = self.guard(resource)?.location;
        let fence = location.load().await?.fence;
        location.or_damaged(fence.map(|fence| fence.guard.state()).transpose())
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let mut found = BTreeMap::new();
        let mut from = None;
        loop {
            let page = self
                .client
                .scan()
                .table_name(&self.table)
                .consistent_read(true)
                .filter_expression("begins_with(#partition, :prefix)")
                .expression_attribute_names("#partition", &self.partition)
                .expression_attribute_values(
                    ":prefix",
                    AttributeValue::S(format!("{PREFIX}{prefix}")),
                )
                .set_exclusive_start_key(from)
                .send()
                .await
                .map_err(failed)?;
            for item in page.items.unwrap_or_default() {
                if let Some((resource, state)) = self.listed(item)? {
                    found.insert(resource, state);
                }
            }
            from = page.last_evaluated_key;
            if from.is_none() {
                break;
            }
        }
        let later = found
            .into_iter()
            .filter(|(resource, _)| after.is_none_or(|after| resource.as_str() > after));
        let listed = later.map(|(resource, state)| Listed { resource, state });
        Ok(listed.take(limit as usize).collect())
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        self.guard(resource)?.location.rearm(with).await
    }
}

impl Guards {
    fn listed(&self, item: Attributes) -> Result<Option<(String, FenceState)>> {
        let Some(Ok(at)) = item.get(&self.partition).map(AttributeValue::as_s) else {
            return Ok(None);
        };
        let Some(resource) = at.strip_prefix(PREFIX).map(str::to_owned) else {
            return Ok(None);
        };
        let location = self.guard(&resource)?.location;
        let Some(fence) = location.seen(Some(item))?.fence else {
            return Ok(None);
        };
        Ok(Some((resource, location.or_damaged(fence.guard.state())?)))
    }
}

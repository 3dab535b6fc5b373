//! The table, which plans operations and applies plans and log records.

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::Token;
use palisade_core::fence::{FenceRecord, Rearm, Reject, Rule, Verdict};

use crate::admin::Listed;
use crate::error::{Error, Result};
use crate::name::{ObjectPath, ResourceId};
use crate::objects::request::{Alter, Credentials, Operation, Request};
use crate::objects::{Bytes, StoreLimits, StoredResource, View};

/// Every resource of a store.
#[derive(Clone, Debug)]
pub(crate) struct ResourceTable {
    rule: Rule,
    limits: StoreLimits,
    pub(super) resources: BTreeMap<ResourceId, StoredResource>,
    bytes: u64,
}

/// The decision about a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Apply this record, after logging it unless it is [`Record::is_empty`].
    Admit(Record),
    /// Give the same answer as before.
    Repeat,
    /// Answer with this rejection.
    Reject(Reject),
}

/// The result of a request at one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) resource: ResourceId,
    pub(crate) fence: Option<FenceRecord>,
    pub(crate) change: Option<(ObjectPath, Alter)>,
}

impl Record {
    /// Whether nothing changes, so that there is nothing to log.
    pub(crate) const fn is_empty(&self) -> bool {
        self.fence.is_none() && self.change.is_none()
    }
}

impl ResourceTable {
    pub(crate) const fn new(rule: Rule, limits: StoreLimits) -> ResourceTable {
        ResourceTable {
            rule,
            limits,
            resources: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Decides a request; changes nothing.
    pub(crate) fn plan(&self, request: Request) -> Result<Plan> {
        let Request {
            resource,
            by,
            operation,
        } = request;
        let stored = self.resources.get(&resource);
        let fence = stored.map_or(&FenceRecord::EMPTY, |stored| &stored.fence);
        if let Operation::Rearm {
            floor,
            authority,
            lower_from,
        } = &operation
        {
            let with = Rearm {
                floor: *floor,
                authority: authority.as_ref(),
                lower_from: *lower_from,
            };
            let armed = fence.state.rearmed(&with)?;
            return self.admit(resource, Some(armed.into()), operation);
        }
        let pass = by.as_ref().map(Credentials::as_pass);
        let digest = operation.numbered().map(|numbered| numbered.digest);
        match fence.decide(self.rule, pass, operation.op(), digest) {
            Verdict::Admit(next) => self.admit(resource, next, operation),
            Verdict::Repeat => Ok(Plan::Repeat),
            Verdict::Reject(reject) => Ok(Plan::Reject(reject)),
        }
    }

    fn admit(
        &self,
        resource: ResourceId,
        fence: Option<FenceRecord>,
        operation: Operation,
    ) -> Result<Plan> {
        let change = match operation {
            Operation::Write { path, alter, .. } => Some((path, alter)),
            _ => None,
        };
        let record = Record {
            resource,
            fence,
            change,
        };
        if matches!(record.change, Some((_, Alter::Delete))) && self.object_of(&record).is_none() {
            return Ok(Plan::Reject(Reject::Missing));
        }
        self.fits(&record)?;
        Ok(Plan::Admit(record))
    }

    /// Checks that a record keeps the store within its limits.
    fn fits(&self, record: &Record) -> Result<()> {
        if let Some((_, alter @ (Alter::Put(_) | Alter::Append(_)))) = &record.change {
            let bytes = self.length_after(record, alter);
            let max = self.limits.object_bytes;
            if bytes > max {
                return Err(Error::ObjectTooLarge { bytes, max });
            }
        }
        let max = self.limits.total_bytes;
        let (grows, shrinks) = self.cost(record);
        // A record that does not grow the store is always accepted: deleting is the way out of a full store.
        if grows > shrinks && self.bytes + grows - shrinks > max {
            return Err(Error::StorageFull { max });
        }
        Ok(())
    }

    /// Applies a planned or logged record. Total: any record produces a valid state.
    pub(crate) fn apply(&mut self, record: Record) {
        let (grows, shrinks) = self.cost(&record);
        self.bytes = (self.bytes + grows).saturating_sub(shrinks);
        let resource = self.resources.entry(record.resource).or_default();
        if let Some(fence) = record.fence {
            resource.fence = fence;
        }
        if let Some((path, alter)) = record.change {
            resource.change(path, alter);
        }
    }

    /// Returns by how many bytes a record grows and shrinks the store.
    fn cost(&self, record: &Record) -> (u64, u64) {
        let names = if self.resources.contains_key(&record.resource) {
            0
        } else {
            RESOURCE_COST + record.resource.as_str().len() as u64
        };
        let Some((path, alter)) = &record.change else {
            return (names, 0);
        };
        let entry = OBJECT_COST + path.as_str().len() as u64;
        let before = self
            .object_of(record)
            .map_or(0, |object| entry + object.len() as u64);
        let after = match alter {
            Alter::Delete => 0,
            alter => entry + self.length_after(record, alter),
        };
        (names + after, before)
    }

    fn length_after(&self, record: &Record, alter: &Alter) -> u64 {
        let before = match alter {
            Alter::Append(_) => self.object_of(record).map_or(0, |object| object.len()),
            Alter::Put(_) | Alter::Delete => 0,
        };
        (before + alter.bytes().len()) as u64
    }

    fn object_of(&self, record: &Record) -> Option<&Bytes> {
        let (path, _) = record.change.as_ref()?;
        self.resources.get(&record.resource)?.objects.get(path)
    }

    /// Returns the bytes of an object.
    pub(crate) fn object(&self, resource: &ResourceId, path: &ObjectPath) -> Option<Bytes> {
        self.resources.get(resource)?.objects.get(path).cloned()
    }

    /// Returns the highest token at a resource.
    pub(crate) fn highest(&self, resource: &ResourceId) -> Option<Token> {
        self.resources.get(resource)?.fence.state.highest()
    }

    /// Returns the state of a resource; `None` if nothing was ever admitted there.
    pub(crate) fn view(&self, resource: &ResourceId) -> Option<View> {
        self.resources.get(resource).map(StoredResource::view)
    }
}

impl ResourceTable {
    /// Returns a page of fences, in name order.
    pub(crate) fn fences(&self, prefix: &str, after: Option<&str>, limit: u32) -> Vec<Listed> {
        let found = self.list(prefix, after).take(limit as usize);
        let listed = found.map(|(name, view)| Listed {
            resource: name.as_str().to_owned(),
            state: view.fence,
        });
        listed.collect()
    }

    /// Returns the resources whose names start with `prefix`, starting at `after`, in name order.
    pub(crate) fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a ResourceId, View)> {
        use std::ops::Bound;

        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.resources
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(move |(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, resource)| (name, resource.view()))
    }
}

/// The operations for the log of a store.
#[cfg(any(feature = "store", test))]
impl ResourceTable {
    /// Returns the whole table, as records that reproduce it.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        self.resources.iter().flat_map(|(name, resource)| {
            let whole = |fence, change| Record {
                resource: name.clone(),
                fence,
                change,
            };
            let objects = resource.objects.iter().map(move |(path, bytes)| {
                whole(None, Some((path.clone(), Alter::Put(bytes.to_vec()))))
            });
            std::iter::once(whole(Some(resource.fence.clone()), None)).chain(objects)
        })
    }

    /// Returns its size in bytes, by its own accounting.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of resources.
    pub(crate) fn resources(&self) -> usize {
        self.resources.len()
    }
}

impl StoredResource {
    fn view(&self) -> View {
        View {
            fence: self.fence.state.clone(),
            objects: self.objects.len() as u64,
            bytes: self.bytes,
        }
    }

    fn change(&mut self, path: ObjectPath, alter: Alter) {
        let before = self.objects.get(&path).map_or(0, |object| object.len());
        let after = match alter {
            Alter::Put(bytes) => {
                let length = bytes.len();
                self.objects.insert(path, Arc::new(bytes));
                length
            }
            Alter::Append(bytes) => {
                // It copies only while a reader still uses the old bytes.
                let object = Arc::make_mut(self.objects.entry(path).or_default());
                object.extend_from_slice(&bytes);
                object.len()
            }
            Alter::Delete => {
                self.objects.remove(&path);
                0
            }
        };
        self.bytes = (self.bytes + after as u64).saturating_sub(before as u64);
    }
}

/// The assumed size of a resource and of an object besides their names and bytes.
const RESOURCE_COST: u64 = 256;
const OBJECT_COST: u64 = 128;

//! Objects under keys, in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::fence::{FenceState, Pass, Rearm, Rule};

use crate::admin::{Admin, Listed};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::Result;
use crate::fence::{Edit, Fence, Write};
use crate::name::{ObjectPath, ResourceId};
use crate::objects::{
    Bytes, Credentials, Operation, Plan, Request, ResourceTable, StoreLimits, View,
};

/// The store of `palisade store` without the disk: resource → path → bytes.
#[derive(Clone, Debug)]
pub struct Store(Arc<Mutex<ResourceTable>>);

impl Store {
    /// Creates an empty store whose resources have this rule and these limits.
    #[must_use]
    pub fn new(rule: Rule, limits: StoreLimits) -> Store {
        Store(Arc::new(Mutex::new(ResourceTable::new(rule, limits))))
    }

    /// Returns one resource.
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name) if the name is not valid.
    pub fn resource(&self, name: &str) -> Result<Resource> {
        Ok(Resource {
            store: self.clone(),
            id: ResourceId::new(name)?,
        })
    }

    pub(crate) fn carry_out(&self, request: Request) -> Result<Admitted<Option<Bytes>>> {
        let mut table = self.lock();
        let (id, by) = (request.resource.clone(), request.by.clone());
        let read = request.operation.reads().cloned();
        let repeat = match table.plan(request)? {
            Plan::Admit(record) if record.is_empty() => false,
            Plan::Admit(record) => {
                table.apply(record);
                false
            }
            Plan::Repeat => true,
            Plan::Reject(reject) => {
                let pass = by.as_ref().map(Credentials::as_pass);
                return Err(audit::reject(id.as_str(), pass, reject));
            }
        };
        let value = read.and_then(|path| table.object(&id, &path));
        Ok(Admitted {
            value,
            highest: table.highest(&id),
            repeat,
        })
    }

    pub(crate) fn view(&self, id: &ResourceId) -> Option<View> {
        self.lock().view(id)
    }

    /// Takes the lock. Only a bug in this module can panic under it, and only between two whole records.
    fn lock(&self) -> MutexGuard<'_, ResourceTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admin for Store {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        Ok(self
            .view(&ResourceId::new(resource)?)
            .map(|view| view.fence))
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        Ok(self.lock().fences(prefix, after, limit))
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        let done = self.carry_out(Request::rearm(ResourceId::new(resource)?, with));
        done.map(|_| ())
    }
}

/// One resource of a [`Store`].
#[derive(Clone, Debug)]
pub struct Resource {
    store: Store,
    id: ResourceId,
}

impl Resource {
    /// Returns the state of the resource; `None` if nothing was ever admitted here.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.store.view(&self.id)
    }

    fn submit(
        &self,
        pass: Option<Pass<'_>>,
        operation: Operation,
    ) -> Result<Admitted<Option<Bytes>>> {
        let (by, op) = (pass.map(Into::into), operation.op());
        let answer = self.store.carry_out(Request {
            resource: self.id.clone(),
            by,
            operation,
        });
        audit::told(self.id.as_str(), pass, op, answer)
    }
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        Ok(self.submit(Some(pass), Operation::Claim)?.map(|_| ()))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let read = self.submit(Some(pass), Operation::Read(ObjectPath::new(key)?))?;
        Ok(read.map(|object| object.map(|bytes| bytes.to_vec())))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let path = ObjectPath::new(write.key)?;
        let operation = Operation::write(path, write.change.into(), write.sequence);
        Ok(self.submit(Some(pass), operation)?.map(|_| ()))
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let operation = Operation::write(ObjectPath::new(key)?, change.into(), None);
        Ok(self.submit(None, operation)?.map(|_| ()))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let object = self.store.lock().object(&self.id, &ObjectPath::new(key)?);
        Ok(object.map(|bytes| bytes.to_vec()))
    }
}

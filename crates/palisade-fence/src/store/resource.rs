//! One resource of a store, as a [`Fence`].

use palisade_core::fence::Pass;

use crate::admitted::Admitted;
use crate::audit;
use crate::error::Result;
use crate::fence::{Edit, Fence, Write};
use crate::name::{ObjectPath, ResourceId};
use crate::objects::{Bytes, Operation, Request, View};
use crate::store::Store;

/// One resource of a [`Store`]. Every answer waits until the state that it reports is on stable storage.
#[derive(Clone, Debug)]
pub struct Resource {
    store: Store,
    id: ResourceId,
}

impl Resource {
    pub(super) const fn new(store: Store, id: ResourceId) -> Resource {
        Resource { store, id }
    }

    /// Returns its name.
    #[must_use]
    pub const fn id(&self) -> &ResourceId {
        &self.id
    }

    /// Returns its state; `None` if nothing was ever admitted here.
    ///
    /// # Errors
    /// [`Error::Stopped`](crate::Error::Stopped).
    pub async fn view(&self) -> Result<Option<View>> {
        let id = self.id.clone();
        self.store.inspect(move |table| table.view(&id)).await
    }

    async fn submit(
        &self,
        pass: Option<Pass<'_>>,
        operation: Operation,
    ) -> Result<Admitted<Option<Bytes>>> {
        let (by, op) = (pass.map(Into::into), operation.op());
        let answer = self.store.submit(Request {
            resource: self.id.clone(),
            by,
            operation,
        });
        audit::told(self.id.as_str(), pass, op, answer.await)
    }
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        Ok(self.submit(Some(pass), Operation::Claim).await?.map(|_| ()))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let read = self
            .submit(Some(pass), Operation::Read(ObjectPath::new(key)?))
            .await?;
        Ok(read.map(|object| object.map(|bytes| bytes.to_vec())))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let path = ObjectPath::new(write.key)?;
        let operation = Operation::write(path, write.change.into(), write.sequence);
        Ok(self.submit(Some(pass), operation).await?.map(|_| ()))
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let operation = Operation::write(ObjectPath::new(key)?, change.into(), None);
        Ok(self.submit(None, operation).await?.map(|_| ()))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let (id, path) = (self.id.clone(), ObjectPath::new(key)?);
        let object = self
            .store
            .inspect(move |table| table.object(&id, &path))
            .await?;
        Ok(object.map(|bytes| bytes.to_vec()))
    }
}

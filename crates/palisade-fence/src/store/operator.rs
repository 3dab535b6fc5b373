//! Operations for operators on the fences of a store.

use palisade_core::fence::{FenceState, Rearm};

use crate::admin::{Admin, Listed};
use crate::error::Result;
use crate::name::ResourceId;
use crate::objects::Request;
use crate::store::Store;

impl Admin for Store {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        let resource = ResourceId::new(resource)?;
        let view = self.inspect(move |table| table.view(&resource)).await?;
        Ok(view.map(|view| view.fence))
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.inspect(move |table| table.fences(&prefix, after.as_deref(), limit))
            .await
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        let resource = ResourceId::new(resource)?;
        let done = self.submit(Request::rearm(resource, with)).await;
        done.map(|_| ())
    }
}

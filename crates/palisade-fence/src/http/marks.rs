//! The storage of the marks.

use std::future::Future;

use palisade_core::Token;
use palisade_core::fence::{Pass, Sequence};

use crate::admitted::Admitted;
use crate::error::Result;
use crate::memory;
use crate::name::ResourceId;
use crate::objects::{Numbered, Operation, Request};

/// Keeps the marks of a fence whose data is elsewhere: [`memory::Store`] for tests,
/// `palisade_fence::store::Store` if they must survive a restart.
pub trait Marks: Clone + Send + Sync + 'static {
    /// Judges one operation by the rule of this store, and records the mark.
    ///
    /// When it returns, the mark is as durable as the store can make it. Admitting the mark's own token again,
    /// without a sequence number, changes nothing and needs no sync. A rejection is
    /// [`Error::Rejected`](crate::Error::Rejected), which the store has recorded ([`audit`](crate::audit)).
    fn judge(
        &self,
        resource: &ResourceId,
        pass: Option<Pass<'_>>,
        act: RequestEffect,
    ) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// Returns the highest token at a resource.
    fn highest(&self, resource: &ResourceId) -> impl Future<Output = Result<Option<Token>>> + Send;
}

/// The effect of a request on the service behind the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEffect {
    /// No effect, or a read: it raises the fence.
    Claim,
    /// A write, with its number and digest, if it is numbered.
    Write(Option<(Sequence, u64)>),
}

fn request(resource: &ResourceId, pass: Option<Pass<'_>>, act: RequestEffect) -> Request {
    let numbered = |(sequence, digest)| Numbered { sequence, digest };
    Request {
        resource: resource.clone(),
        by: pass.map(Into::into),
        operation: match act {
            RequestEffect::Claim => Operation::Claim,
            RequestEffect::Write(number) => Operation::Effect(number.map(numbered)),
        },
    }
}

impl Marks for memory::Store {
    async fn judge(
        &self,
        resource: &ResourceId,
        pass: Option<Pass<'_>>,
        act: RequestEffect,
    ) -> Result<Admitted<()>> {
        let judged = self.carry_out(request(resource, pass, act))?;
        Ok(judged.map(|_| ()))
    }

    async fn highest(&self, resource: &ResourceId) -> Result<Option<Token>> {
        let view = self.view(resource);
        Ok(view.and_then(|view| view.fence.highest()))
    }
}

#[cfg(feature = "store")]
impl Marks for crate::store::Store {
    async fn judge(
        &self,
        resource: &ResourceId,
        pass: Option<Pass<'_>>,
        act: RequestEffect,
    ) -> Result<Admitted<()>> {
        let judged = self.submit(request(resource, pass, act)).await?;
        Ok(judged.map(|_| ()))
    }

    async fn highest(&self, resource: &ResourceId) -> Result<Option<Token>> {
        let resource = resource.clone();
        self.inspect(move |table| table.highest(&resource)).await
    }
}

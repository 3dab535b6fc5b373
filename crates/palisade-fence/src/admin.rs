//! What an operator does with fences, whatever the resource: look, and re-arm.

use std::error::Error;
use std::future::Future;

use palisade_core::fence::{FenceState, Rearm};

/// The fences of one place: a database, a store, a folder.
pub trait Admin {
    /// What can go wrong.
    type Error: Error + Send + Sync + 'static;

    /// The fence of one resource; `None` if nothing was ever admitted there.
    fn show(
        &mut self,
        resource: &str,
    ) -> impl Future<Output = Result<Option<FenceState>, Self::Error>> + Send;

    /// At most `limit` fences whose names begin with `prefix`, in name order (by bytes), from the one
    /// behind `after` on. Fewer than `limit`: there are no more.
    fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Listed>, Self::Error>> + Send;

    /// Makes a resource refuse everything below [`Rearm::floor`] (rule F7), also where there is no
    /// fence; what was recorded there is forgotten. Decided by [`FenceState::rearmed`], in one atomic
    /// step with what is there: a fence is never lowered, unless [`Rearm::lower_from`] names the very
    /// token at which a poisoned one stands. As durable as any claim.
    fn rearm(
        &mut self,
        resource: &str,
        with: &Rearm<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A fence, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The resource.
    pub resource: String,
    /// Its fence.
    pub state: FenceState,
}

//! Operations for operators on the fences of any resource: look and re-arm.

use std::future::Future;

use palisade_core::fence::{FenceState, Rearm};

use crate::error::Result;

/// The fences of one place: a database, a store, a folder.
///
/// Its errors are a name that is not valid, and those of the place; none of its operations can be rejected.
pub trait Admin {
    /// Returns the fence of one resource; `None` if nothing was ever admitted there.
    fn show(&mut self, resource: &str) -> impl Future<Output = Result<Option<FenceState>>> + Send;

    /// Returns at most `limit` fences whose names begin with `prefix`, in name order (by bytes), starting
    /// after the name `after`. Fewer than `limit` means that there are no more.
    fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send;

    /// Makes a resource refuse every token below [`Rearm::floor`] (rule F7), even if there is no fence; the
    /// earlier record is forgotten. [`FenceState::rearmed`] decides, in one atomic step with the stored
    /// state: a fence is never lowered, unless [`Rearm::lower_from`] names exactly the token of a poisoned
    /// fence. As durable as any claim.
    ///
    /// # Errors
    /// [`Error::FloorTooLow`](crate::Error::FloorTooLow) names the token at which the fence stands.
    fn rearm(
        &mut self,
        resource: &str,
        with: &Rearm<'_>,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// A fence and its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The resource.
    pub resource: String,
    /// Its fence.
    pub state: FenceState,
}

/// A table that refuses every write without the current token of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    /// The table, as the database names it.
    pub table: String,
    /// The resource whose fence counts.
    pub resource: String,
}

/// Something through which a write can pass beside the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// The table; `None` if it concerns all of them.
    pub table: Option<String>,
    /// What is open, and what to do about it.
    pub door: String,
}

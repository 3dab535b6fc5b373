//! An operator's commands for the fences of any resource: show and re-arm.

use std::future::Future;

use palisade_core::fence::{FenceState, Rearm};

use crate::error::Result;

/// The fences of one database, store or folder.
///
/// Its operations are never rejected. They fail for an invalid name, or with an error of the database, store or folder.
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

    /// Makes a resource refuse every token below [`Rearm::floor`] (rule F7), even if it has no fence yet, and deletes
    /// the earlier record. [`FenceState::rearmed`] decides, in one atomic step with the stored state. It lowers a fence
    /// only if [`Rearm::lower_from`] is exactly the token of the poisoned fence. The change is as durable as a claim.
    ///
    /// # Errors
    /// [`Error::FloorTooLow`](crate::Error::FloorTooLow) names the fence's token.
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
    /// The resource whose fence the table checks.
    pub resource: String,
}

/// A way to write past the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// The table; `None` if all tables are affected.
    pub table: Option<String>,
    /// The way past the fence, and how to close it.
    pub door: String,
}

//! The fences in a directory, read while another process may serve it.

use std::path::Path;

use palisade_core::fence::FenceState;
use palisade_wal::{DirStorage, Purpose, ReadError, ReplayError, observe, purpose};

use crate::admin::Listed;
use crate::error::Result;
use crate::name::ResourceId;
use crate::objects::ResourceTable;
use crate::store::OpenError;
use crate::store::compaction::Replica;

/// The fences in a directory as they were when it was read. Reading locks and changes nothing, so a store or a gateway
/// may be serving the directory. It contains every fence that was raised before the call.
#[derive(Debug)]
pub struct FencesOnDisk(ResourceTable);

impl FencesOnDisk {
    /// Reads a directory.
    ///
    /// # Errors
    /// [`OpenError`]: there is no directory of a store, or it cannot be read.
    pub fn at(dir: &Path) -> Result<FencesOnDisk, OpenError> {
        let storage = DirStorage::observe(dir)?;
        let incarnation = match purpose(&storage)? {
            Purpose::Single(identity) => identity.incarnation,
            Purpose::Member { .. } | Purpose::Blank => {
                let dir = dir.to_owned();
                return Err(palisade_wal::OpenError::Missing { dir }.into());
            }
        };
        let table = observe(&storage, incarnation, unreadable, |seen| {
            let mut replica = Replica::of_all();
            if let Some(mut snapshot) = seen.snapshot()? {
                replica.read(&mut snapshot).map_err(OpenError::Snapshot)?;
            }
            seen.replay(|_, payload| replica.frame(payload))?;
            Ok::<_, OpenError>(replica.table)
        })?;
        Ok(FencesOnDisk(table))
    }

    /// Returns one fence; `None` if the resource is not fenced.
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name) if the name is invalid.
    pub fn show(&self, resource: &str) -> Result<Option<FenceState>> {
        let view = self.0.view(&ResourceId::new(resource)?);
        Ok(view.map(|view| view.fence))
    }

    /// Returns at most `limit` fences whose resources start with `prefix`, in name order, after the name `after`.
    #[must_use]
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: u32) -> Vec<Listed> {
        self.0.fences(prefix, after, limit)
    }
}

fn unreadable(error: &OpenError) -> Option<&ReadError> {
    match error {
        OpenError::Replay(ReplayError::Read(error)) => Some(error),
        _ => None,
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> OpenError {
        OpenError::Replay(ReplayError::Read(error))
    }
}

//! Operations for operators: look at the fences of the folders below one folder, and re-arm one (rule F7).

use std::path::{Path, PathBuf};

use palisade_core::fence::{FenceState, Rearm};

use super::disk::{Disk, bad_name, failed};
use super::folder::Folder;
use crate::admin::{Admin, Listed};
use crate::error::Result;
use crate::lock_holder::{LockHolder, end};
use crate::name::ResourceId;

/// A folder of fenced folders; the resource `reports` is its subfolder with this name.
///
/// The futures block, for several disk syncs; they are meant for operators.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// Creates the handle for a folder of fenced folders.
    pub fn new(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    fn folder(&self, resource: &str) -> Result<Folder> {
        let id = ResourceId::new(resource)?;
        if id.as_str().contains('/') || matches!(resource, "." | "..") {
            return Err(bad_name(
                resource,
                "is not the name of a folder below this one",
            ));
        }
        Folder::open(self.0.join(resource))
    }

    /// The processes that have the lock of a folder's fence. Calls have it for a moment; a process that is stopped within
    /// one has it until it goes on or ends, and everybody else waits.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn blockers(&self, resource: &str) -> Result<Vec<LockHolder>> {
        Ok(self.folder(resource)?.holders())
    }

    /// Ends such a process with SIGKILL; the next call completes or undoes what it was doing. Returns whether that was done: a
    /// process that has ended meanwhile, that is another one under the same number, or that has let go of the lock, is left
    /// alone.
    ///
    /// # Errors
    /// There is no such folder, or this user may not end that process.
    pub fn unblock(&self, resource: &str, blocker: &LockHolder) -> Result<bool> {
        let folder = self.folder(resource)?;
        end(blocker, || folder.holders()).map_err(|error| failed(format!("end {blocker}"), error))
    }
}

impl Admin for Root {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        self.folder(resource)?.show()
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let mut names = Disk::open(Path::new(&self.0))?.names()?;
        names.retain(|name| name.starts_with(prefix) && after.is_none_or(|after| &**name > after));
        names.sort_unstable();
        let mut listed = Vec::new();
        for resource in names {
            if listed.len() >= limit as usize {
                break;
            }
            let is_folder = self.0.join(&resource).is_dir();
            if let Some(state) = is_folder
                .then(|| self.folder(&resource)?.show())
                .transpose()?
                .flatten()
            {
                listed.push(Listed { resource, state });
            }
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        self.folder(resource)?.rearm(with)
    }
}

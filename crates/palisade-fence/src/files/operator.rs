//! An operator's commands: show the fences of the folders below one folder, and re-arm one (rule F7).

use std::path::{Path, PathBuf};

use palisade_core::fence::{FenceState, Rearm};

use super::disk::{OpenFolder, bad_name, failed};
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

    /// Returns the processes that hold the lock of a folder's fence. A call holds it for a moment. A process that is
    /// stopped in a call holds it until it continues or ends, and everybody else waits.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn blockers(&self, resource: &str) -> Result<Vec<LockHolder>> {
        Ok(self.folder(resource)?.holders())
    }

    /// Kills such a process with SIGKILL; the next call completes or undoes its step. Returns whether it did: it spares
    /// a process that has ended, that has released the lock, or that is a later one with the same number.
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
        let mut names = OpenFolder::open(Path::new(&self.0))?.names()?;
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

//! Fences of the folders below a common parent.

use std::path::Path;

use palisade_fence::files::Root;
use palisade_fence::{Admin as _, FenceState, Listed, LockHolder, Rearm};

use super::super::failure::Failure;
use super::kind::PAGE;

pub(super) struct Folders(Root);

impl Folders {
    pub(super) fn open(path: &str) -> Result<Folders, Failure> {
        if Path::new(path).is_absolute() && Path::new(path).is_dir() {
            return Ok(Folders(Root::new(path)));
        }
        let text = format!("--url: {path:?} is not the absolute path of a folder");
        Err(Failure::usage(text).hint(
            "for example file:///srv/fenced; the resource reports is then /srv/fenced/reports",
        ))
    }

    pub(super) fn blockers(&self, resource: &str) -> Result<Vec<LockHolder>, Failure> {
        Ok(self.0.blockers(resource)?)
    }

    pub(super) fn unblock(&self, resource: &str, blocker: &LockHolder) -> Result<bool, Failure> {
        Ok(self.0.unblock(resource, blocker)?)
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        Ok(self.0.show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        Ok(self.0.list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        Ok(self.0.rearm(resource, with).await?)
    }
}

//! Fences in the data directory of a store or a gateway. They are read while it runs, and re-armed while it does not.

use std::path::{Path, PathBuf};

use palisade_fence::store::{FencesOnDisk, OpenError, Settings, Store};
use palisade_fence::{Admin, Error, ErrorKind, FenceState, Listed, Rearm, Rule};
use palisade_proto::Code;

use super::super::failure::{FAILED, Failure};
use super::kind::PAGE;
use crate::gateway;

pub(super) struct DataDir {
    dir: PathBuf,
    /// As it was at the first question.
    look: Option<FencesOnDisk>,
}

impl DataDir {
    /// Names an existing directory; creates nothing.
    pub(super) fn open(dir: &Path) -> Result<DataDir, Failure> {
        let marks = gateway::marks(dir);
        let dir = if marks.is_dir() {
            marks
        } else {
            dir.to_owned()
        };
        let there = std::fs::read_dir(&dir).is_ok_and(|mut files| files.next().is_some());
        if !there {
            let text = format!(
                "--data {}: this is the directory of neither a store nor a gateway",
                dir.display()
            );
            return Err(Failure::usage(text));
        }
        Ok(DataDir { dir, look: None })
    }

    fn look(&mut self) -> Result<&FencesOnDisk, Failure> {
        let look = match self.look.take() {
            Some(look) => look,
            None => FencesOnDisk::at(&self.dir).map_err(|error| self.failed(&error))?,
        };
        Ok(self.look.insert(look))
    }

    /// In the mode that the directory records.
    fn store(&self) -> Result<Store, Failure> {
        let open = |rule| Store::open(&self.dir, &Settings::default().with_rule(rule));
        let opened = match open(Rule::CLAIM) {
            Err(OpenError::Mode { recorded, .. }) => open(Rule {
                mode: recorded,
                ..Rule::CLAIM
            }),
            other => other,
        };
        opened.map_err(|error| {
            self.failed(&error).hint(
                "stop the store or the gateway that serves it, run this command again, then restart it",
            )
        })
    }

    fn failed(&self, error: &OpenError) -> Failure {
        Failure::local(format!("--data {}: {}", self.dir.display(), error.report()))
    }

    pub(super) fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        let shown = self.look()?.show(resource);
        shown.map_err(failed)
    }

    pub(super) fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        Ok(self.look()?.list(prefix, after, PAGE))
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        self.look = None;
        self.store()?.rearm(resource, with).await.map_err(failed)
    }
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Invalid => error.into(),
        _ => Failure::new(FAILED, Code::Unavailable, error.report()),
    }
}

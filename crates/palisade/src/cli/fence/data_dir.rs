//! Fences in the data directory of a store or a gateway, which must be stopped.

use std::path::Path;

use palisade_fence::store::{OpenError, Settings, Store, StoreError};
use palisade_fence::{Admin, Fault, FenceState, Listed, Rearm, Rule};
use palisade_proto::Code;

use super::super::failure::{FAILED, Failure};
use super::{PAGE, too_low};
use crate::gateway;

pub(super) struct DataDir(Store);

impl DataDir {
    /// Opens an existing directory in the mode that it records; creates nothing.
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
                "--data {}: there are neither a store nor a gateway's marks",
                dir.display()
            );
            return Err(Failure::usage(text));
        }
        let open = |rule| Store::open(&dir, &Settings::default().with_rule(rule));
        let opened = match open(Rule::CLAIM) {
            Err(OpenError::Mode { recorded, .. }) => open(Rule {
                mode: recorded,
                ..Rule::CLAIM
            }),
            other => other,
        };
        opened.map(DataDir).map_err(|error| {
            Failure::local(format!("--data {}: {error}", dir.display())).hint(
                "stop the store or the gateway that serves it, run this command again, then restart it",
            )
        })
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        self.0.show(resource).await.map_err(failed)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        let page = Admin::list(&mut self.0, prefix, after, PAGE).await;
        page.map_err(failed)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        self.0.rearm(resource, with).await.map_err(failed)
    }
}

fn failed(error: StoreError) -> Failure {
    match error {
        StoreError::Fault(Fault::FloorTooLow(floor)) => too_low(floor),
        StoreError::Fault(fault) => Failure::usage(fault.to_string()),
        other => Failure::new(FAILED, Code::Unavailable, other.to_string()),
    }
}

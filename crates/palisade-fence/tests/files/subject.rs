//! Folders of a temporary place, as the suite wants them.

use std::fs;

use palisade_fence::Rule;
use palisade_fence::conformance::Subject;
use palisade_fence::files::{AsyncFolder, Fault, Folder};
use tempfile::TempDir;

use crate::quick_place;

pub(crate) struct Places {
    place: TempDir,
    rule: Rule,
}

impl Places {
    pub(crate) fn new(rule: Rule) -> Places {
        Places {
            place: quick_place(),
            rule,
        }
    }

    pub(crate) fn on_disk(rule: Rule) -> Places {
        Places {
            place: tempfile::tempdir().unwrap(),
            rule,
        }
    }
}

impl Subject for Places {
    type Fence = AsyncFolder;

    async fn fresh(&self, name: &str) -> Result<AsyncFolder, Fault> {
        let path = self.place.path().join(name);
        fs::create_dir(&path).unwrap();
        Ok(AsyncFolder(Folder::open(path)?.under(self.rule)))
    }

    async fn lose_fence(&self, name: &str) -> Result<bool, String> {
        let sidecar = self.place.path().join(name).join(".palisade-fence");
        fs::remove_file(sidecar).map_err(|error| error.to_string())?;
        Ok(true)
    }
}

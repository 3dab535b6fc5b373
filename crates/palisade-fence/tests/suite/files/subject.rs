//! Temporary folders, with the suite's interface.

use std::fs;

use palisade_fence::Result;
use palisade_fence::Rule;
use palisade_fence::conformance::Subject;
use palisade_fence::files::{AsyncFolder, Folder};
use tempfile::TempDir;

use super::temporary_dir;

pub(crate) struct Folders {
    place: TempDir,
    rule: Rule,
}

impl Folders {
    pub(crate) fn new(rule: Rule) -> Folders {
        Folders {
            place: temporary_dir(),
            rule,
        }
    }

    pub(crate) fn on_disk(rule: Rule) -> Folders {
        Folders {
            place: tempfile::tempdir().unwrap(),
            rule,
        }
    }
}

impl Subject for Folders {
    type Fence = AsyncFolder;

    async fn fresh(&self, name: &str) -> Result<AsyncFolder> {
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

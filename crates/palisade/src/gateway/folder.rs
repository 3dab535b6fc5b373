//! A gateway's directory: its marks, and whether the last one ended with nothing under way.
//!
//! ```text
//!   DIR/marks          a store of fences without objects, see palisade_fence::store
//!   DIR/ended-cleanly  there only while no gateway runs, and the last one left nothing under way
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use palisade_fence::Rule;
use palisade_fence::http::Start;
use palisade_fence::store::{OpenError, Settings, Store};

/// An opened directory.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    store: Store,
    start: Start,
}

/// A directory that was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error(transparent)]
    Marks(#[from] OpenError),
    #[error(
        "there are no marks here: if they were lost, late writes would be let in; \
         bring the directory back, or start without --expect-marks"
    )]
    Lost,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Folder {
    /// Opens a directory, or makes it unless it must be there (rule F7: marks that were lost must not look
    /// like none yet). It belongs to this process until it is dropped.
    pub(crate) fn open(dir: &Path, rule: Rule, expected: bool) -> Result<Folder, FolderError> {
        let new = !marks(dir).exists();
        if new && expected {
            return Err(FolderError::Lost);
        }
        fs::create_dir_all(dir)?;
        let store = Store::open(&marks(dir), &Settings::default().with_rule(rule))?;
        let clean = match fs::remove_file(ended_cleanly(dir)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => new,
            Err(error) => return Err(error.into()),
        };
        // From here on a crash must be seen.
        File::open(dir)?.sync_all()?;
        let start = if clean { Start::Clean } else { Start::Unclean };
        Ok(Folder {
            dir: dir.to_owned(),
            store,
            start,
        })
    }

    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) const fn start(&self) -> Start {
        self.start
    }

    /// Notes that nothing is under way, and nothing will be.
    pub(super) fn ended_cleanly(&self) -> io::Result<()> {
        File::create(ended_cleanly(&self.dir))?.sync_all()?;
        File::open(&self.dir)?.sync_all()
    }
}

/// Where a gateway's marks are; an operator looks there while it is stopped.
pub(crate) fn marks(dir: &Path) -> PathBuf {
    dir.join("marks")
}

fn ended_cleanly(dir: &Path) -> PathBuf {
    dir.join("ended-cleanly")
}

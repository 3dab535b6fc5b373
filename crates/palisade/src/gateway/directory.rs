//! A gateway's directory: its marks, and whether the last run ended with no write in flight.
//!
//! ```text
//!   DIR/marks          a store of fences without objects, see palisade_fence::store
//!   DIR/ended-cleanly  exists only while no gateway runs, if the last one left no write in flight
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use palisade_access::replace::{self, Durable};
use palisade_fence::Rule;
use palisade_fence::http::LastRun;
use palisade_fence::store::{OpenError, Settings, Store};

/// An open gateway directory.
#[derive(Debug)]
pub(crate) struct GatewayDirectory {
    dir: PathBuf,
    store: Store,
    start: LastRun,
}

/// Why a directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayDirectoryError {
    #[error("{}", .0.report())]
    Marks(OpenError),
    #[error(
        "there are no marks here; if they were lost, late writes would get through: \
         put the directory back, or start without --expect-marks"
    )]
    Lost,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl GatewayDirectory {
    /// Opens a directory. Creates it unless `expected` is set (rule F7: lost marks must not look like a new
    /// gateway). The directory belongs to this process until it is dropped.
    pub(crate) fn open(
        dir: &Path,
        rule: Rule,
        expected: bool,
    ) -> Result<GatewayDirectory, GatewayDirectoryError> {
        let new = !marks(dir).exists();
        if new && expected {
            return Err(GatewayDirectoryError::Lost);
        }
        fs::create_dir_all(dir)?;
        let store = Store::open(&marks(dir), &Settings::default().with_rule(rule));
        let store = store.map_err(GatewayDirectoryError::Marks)?;
        let clean = match fs::remove_file(ended_cleanly(dir)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => new,
            Err(error) => return Err(error.into()),
        };
        // Durable before the first write: from here on, the next start notices a crash.
        File::open(dir)?.sync_all()?;
        let start = if clean {
            LastRun::Clean
        } else {
            LastRun::Unclean
        };
        Ok(GatewayDirectory {
            dir: dir.to_owned(),
            store,
            start,
        })
    }

    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) const fn start(&self) -> LastRun {
        self.start
    }

    /// Records that no write is in flight and none will follow.
    pub(super) fn ended_cleanly(&self) -> io::Result<()> {
        replace::write(&ended_cleanly(&self.dir), b"", Durable::Yes)
    }
}

/// Where a gateway's marks are; `palisade fence` reads them while the gateway is stopped.
pub(crate) fn marks(dir: &Path) -> PathBuf {
    dir.join("marks")
}

fn ended_cleanly(dir: &Path) -> PathBuf {
    dir.join("ended-cleanly")
}

//! A directory in the making, which appears under its name only when it is whole.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::{Error, place};

/// A new directory beside the one that it is to become; removed unless it is put into its place.
///
/// Its name did not exist: two programs never write to one, and a link that somebody planted there is not followed.
pub(super) struct Partial(PathBuf);

/// How many names are tried, because earlier programs of the same number may have left some.
const TRIES: u32 = 100;

impl Partial {
    /// # Errors
    /// [`Error::Place`]; nothing was made, except for missing parents.
    pub(super) fn beside(to: &Path) -> Result<Partial, Error> {
        let parent = parent(to);
        fs::create_dir_all(parent).map_err(place("cannot create", parent))?;
        let name = to.file_name().unwrap_or_default().display();
        let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..TRIES {
            let own = format!(".{name}.{}-{number}.restoring", std::process::id());
            let path = parent.join(own);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Partial(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
                Err(error) => return Err(place("cannot create", &path)(error)),
            }
        }
        Err(place("cannot create a directory beside", to)(taken))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Renames it, durably. The system refuses a name that has come to exist, unless it is an empty directory.
    ///
    /// # Errors
    /// [`Error::Place`].
    pub(super) fn put(self, to: &Path) -> Result<(), Error> {
        fs::rename(&self.0, to).map_err(place("cannot put in place", to))?;
        let parent = parent(to);
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(place("cannot sync", parent))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After `put` there is nothing under this name.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parent(of: &Path) -> &Path {
    of.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

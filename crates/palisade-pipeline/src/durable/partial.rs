//! A directory in the making, which appears under its name only when it is whole.
//!
//! ```text
//!   parent/.NAME.PID-N.restoring/   locked while its program is there
//!     └── whole/                    becomes parent/NAME
//! ```

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{Error, place};

/// A new directory beside the one that its content is to become; removed in the end.
///
/// Its name did not exist: two programs never write to one, and a link that somebody planted there is not followed.
pub(super) struct Partial {
    outer: PathBuf,
    whole: PathBuf,
    /// The lock on `outer`, which ends with this process: a directory without one was abandoned.
    _lock: File,
}

const WHOLE: &str = "whole";
const ENDING: &str = ".restoring";

/// How many names are tried, because others may have some.
const TRIES: u32 = 100;

impl Partial {
    /// # Errors
    /// [`Error::Place`]; nothing was made, except for missing parents.
    pub(super) fn beside(to: &Path) -> Result<Partial, Error> {
        let parent = parent(to);
        fs::create_dir_all(parent).map_err(place("cannot create", parent))?;
        let name = to.file_name().unwrap_or_default();
        remove_abandoned(parent, name);
        let name = name.display();
        let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..TRIES {
            let own = format!(".{name}.{}-{number}{ENDING}", std::process::id());
            let path = parent.join(own);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    // Another restore may find it before it is locked, and take it for an abandoned one.
                    if let Some(partial) = Partial::locked(path) {
                        return Ok(partial);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
                Err(error) => return Err(place("cannot create", &path)(error)),
            }
        }
        Err(place("cannot create a directory beside", to)(taken))
    }

    /// `None` if somebody else has it, or has removed it.
    fn locked(outer: PathBuf) -> Option<Partial> {
        let lock = open(&outer).ok()?;
        // Where directories cannot be locked, nobody removes it.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return None;
        }
        let id = |found: fs::Metadata| (found.dev(), found.ino());
        let there = fs::symlink_metadata(&outer).ok().map(id);
        if there != Some(id(lock.metadata().ok()?)) {
            return None;
        }
        Some(Partial {
            whole: outer.join(WHOLE),
            outer,
            _lock: lock,
        })
    }

    /// Where it is made. Nothing is there yet.
    pub(super) fn path(&self) -> &Path {
        &self.whole
    }

    /// Renames it, durably. The system refuses a name that has come to exist, unless it is an empty directory.
    ///
    /// # Errors
    /// [`Error::Place`].
    pub(super) fn put(self, to: &Path) -> Result<(), Error> {
        fs::rename(&self.whole, to).map_err(place("cannot put in place", to))?;
        let parent = parent(to);
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(place("cannot sync", parent))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // If this fails, the next restore removes the rest.
        let _ = fs::remove_dir_all(&self.outer);
    }
}

/// Removes the remains of killed restores to this name: directories of this user that nobody has locked.
fn remove_abandoned(parent: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if is_partial(&entry.file_name(), name)
            && let Ok(found) = open(&path)
            && let Ok(about) = found.metadata()
            && about.uid() == rustix::process::geteuid().as_raw()
            && flock(&found, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(
                    "removed {}, which a restore that was killed had left",
                    path.display()
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(
                    "{} was left by a restore that was killed, and cannot be removed: {error}",
                    path.display()
                ),
            }
        }
    }
}

/// Whether a restore to `name` would give its directory this name.
fn is_partial(found: &OsStr, name: &OsStr) -> bool {
    let (Some(found), Some(name)) = (found.to_str(), name.to_str()) else {
        return false;
    };
    let rest = found
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(name));
    let rest = rest.and_then(|rest| rest.strip_prefix('.')?.strip_suffix(ENDING));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    rest.and_then(|rest| rest.split_once('-'))
        .is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// A directory itself, not one that a link leads to.
fn open(directory: &Path) -> io::Result<File> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(directory)
}

fn parent(of: &Path) -> &Path {
    of.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

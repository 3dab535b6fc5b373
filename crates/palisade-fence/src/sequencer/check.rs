//! A fence's requirements for sequencers: the keys, and whether a sequencer is required.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use super::{BadKeys, BadSequencer, GrantMode, Keys, Sequencer};

/// A fence's requirements for sequencers. The default has no keys: it admits bare tokens, and refuses sequencers,
/// because it cannot verify them.
#[derive(Debug, Default)]
pub struct Check {
    source: Option<KeySource>,
    required: bool,
}

#[derive(Debug)]
enum KeySource {
    Fixed(Keys),
    File(PathBuf, RwLock<LoadedKeys>),
}

#[derive(Debug)]
struct LoadedKeys {
    keys: Arc<Keys>,
    stamp: Option<Stamp>,
}

/// Inode, length and change time of a file, which change when it is written again. The time alone is too coarse.
type Stamp = (u64, u64, SystemTime);

impl Check {
    /// Verifies sequencers with these keys.
    #[must_use]
    pub const fn with(keys: Keys) -> Check {
        Check {
            source: Some(KeySource::Fixed(keys)),
            required: false,
        }
    }

    /// Verifies sequencers with the keys in a file, which is read again whenever it has changed. If the changed file is
    /// unusable, that is logged and the old keys stay in use.
    ///
    /// # Errors
    /// [`BadKeys`]: the file cannot be read or used.
    pub fn with_file(path: &Path) -> Result<Check, BadKeys> {
        let stamp = stamp(path).ok();
        let loaded = LoadedKeys {
            keys: Arc::new(read(path)?),
            stamp,
        };
        Ok(Check {
            source: Some(KeySource::File(path.to_owned(), RwLock::new(loaded))),
            required: false,
        })
    }

    /// Sets whether bare tokens are refused.
    #[must_use]
    pub fn required(self, required: bool) -> Check {
        Check { required, ..self }
    }

    /// Verifies a sequencer that was presented at a resource, with or without a write.
    ///
    /// # Errors
    /// [`BadSequencer`].
    pub fn check(
        &self,
        sequencer: &str,
        resource: &str,
        writes: bool,
    ) -> Result<Sequencer, BadSequencer> {
        let keys = match &self.source {
            None => return Err(BadSequencer::NoKeys),
            Some(KeySource::Fixed(keys)) => keys.verify(sequencer),
            Some(KeySource::File(path, loaded)) => current(path, loaded).verify(sequencer),
        };
        let sequencer = keys?;
        sequencer.covers(resource)?;
        if writes && sequencer.mode() == GrantMode::Shared {
            return Err(BadSequencer::ReadOnly);
        }
        Ok(sequencer)
    }

    /// Checks whether a token without a sequencer may pass.
    ///
    /// # Errors
    /// [`BadSequencer::Unsigned`].
    pub const fn admits_bare(&self) -> Result<(), BadSequencer> {
        if self.required {
            Err(BadSequencer::Unsigned)
        } else {
            Ok(())
        }
    }
}

/// Returns the keys in a file, which is read again if it has changed.
fn current(path: &Path, loaded: &RwLock<LoadedKeys>) -> Arc<Keys> {
    let now = stamp(path).ok();
    {
        let loaded = loaded.read().unwrap_or_else(PoisonError::into_inner);
        // A missing file is being replaced.
        if now.is_none() || now == loaded.stamp {
            return Arc::clone(&loaded.keys);
        }
    }
    let mut loaded = loaded.write().unwrap_or_else(PoisonError::into_inner);
    if loaded.stamp != now {
        loaded.stamp = now;
        match read(path) {
            Ok(keys) => {
                loaded.keys = Arc::new(keys);
                tracing::info!(file = %path.display(), "new keys for sequencers are in force");
            }
            Err(bad) => tracing::error!(
                "new keys for sequencers were refused, and the old ones stay in force: {bad}"
            ),
        }
    }
    Arc::clone(&loaded.keys)
}

fn read(path: &Path) -> Result<Keys, BadKeys> {
    let text = fs::read(path);
    let text = text.map_err(|error| BadKeys(format!("{}: {error}", path.display())))?;
    Keys::parse(&text).map_err(|BadKeys(why)| BadKeys(format!("{}: {why}", path.display())))
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.ino(), metadata.len(), metadata.modified()?))
}

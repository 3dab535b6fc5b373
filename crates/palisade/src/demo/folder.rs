//! The demo's own folder, removed when it is dropped.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A temporary folder for the data and the logs of what the demo starts.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    /// Makes a new one that only its owner can look into.
    pub(super) fn new(keep: bool) -> io::Result<Folder> {
        let base = std::env::temp_dir();
        let me = std::process::id();
        let mut taken = None;
        // A killed demo leaves its folder behind, and process ids come again.
        for attempt in 0..100_u32 {
            let path = base.join(format!("palisade-demo-{me}-{attempt}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder { path, keep }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(taken.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder inside it.
    pub(super) fn inner(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed stays in the system's folder for such things.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

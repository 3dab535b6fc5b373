//! Files that are replaced as a whole, durably, and the folder that one process has for itself.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// A folder of a process. Its lock ends with the process.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _locked: File,
}

impl Folder {
    /// Opens the folder and makes it if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        let locked = File::create(path.join("lock"))?;
        flock(&locked, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            let message = format!("{} is in use by another process: {error}", path.display());
            io::Error::new(io::ErrorKind::AddrInUse, message)
        })?;
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            // Of a write that a crash cut off.
            if path.extension().is_some_and(|ending| ending == "tmp") {
                fs::remove_file(path)?;
            }
        }
        Ok(Folder {
            path: path.to_owned(),
            _locked: locked,
        })
    }

    /// The file with this name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The files with this ending.
    pub(crate) fn files(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|its| its == ending) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Replaces a file. It is on stable storage when this returns: the content is synced before the name points to it,
    /// and then the folder.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = self.file(&format!("{name}.tmp"));
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, self.file(name))?;
        self.sync()
    }

    /// Removes a file, durably.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.file(name))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Runs a write to the disk outside the threads that answer requests. A failed write or sync ends the process: the
/// content of the disk is then unknown, and only a restart can read it.
pub(crate) async fn or_stop(write: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let written = tokio::task::spawn_blocking(write).await;
    let why = match written {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    eprintln!("the disk failed, and the process ends: {why}");
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_what_a_crash_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = Folder::open(folder.path()).unwrap();
        open.replace("a.json", b"one").unwrap();
        open.replace("a.json", b"two").unwrap();
        assert_eq!(fs::read(open.file("a.json")).unwrap(), b"two");
        assert!(Folder::open(folder.path()).is_err(), "it is in use");
        drop(open);
        fs::write(folder.path().join("b.json.tmp"), "half").unwrap();
        let again = Folder::open(folder.path()).unwrap();
        assert!(!again.file("b.json.tmp").exists());
        assert_eq!(again.files("json").unwrap().len(), 1);
        again.remove("a.json").unwrap();
        assert!(again.files("json").unwrap().is_empty());
    }
}

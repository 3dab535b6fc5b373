//! The seam below the log: a directory of files. The real one, and the trait a simulated one implements.
//!
//! The trait is as small as it can be (the idea is redb's `StorageBackend`), so that crash tests can
//! count, fail, lose or tear every single call.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new empty file, to read and write; whatever had the name is emptied.
    Create,
}

/// Which file a name stands for: a copy of a file has another id, a renamed file keeps its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} inode {}", self.device, self.inode)
    }
}

/// A directory of files.
///
/// Names are plain file names. A created, renamed or removed name is durable after
/// [`sync_dir`](Storage::sync_dir), a file's bytes and length after [`File::sync_data`].
pub trait Storage: Send + Sync + 'static {
    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` for a name that is not there, unless it is to be created; whatever the system says.
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn File>>;

    /// Renames a file, atomically replacing the one that had the new name.
    ///
    /// # Errors
    /// Whatever the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Whatever the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names in the directory, in no order.
    ///
    /// # Errors
    /// Whatever the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes names durable.
    ///
    /// # Errors
    /// Whatever the system says; what was named since the last sync may be lost then.
    fn sync_dir(&self) -> io::Result<()>;

    /// Where the directory is, for messages.
    fn path(&self) -> PathBuf;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// Whatever the system says.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at an offset, growing the file when needed.
    ///
    /// # Errors
    /// `StorageFull` on a full disk; whatever the system says. A part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the file's bytes and length durable (fdatasync).
    ///
    /// # Errors
    /// Whatever the system says. After that nothing is known about what was written since the last sync.
    fn sync_data(&self) -> io::Result<()>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Which file this is.
    ///
    /// # Errors
    /// Whatever the system says.
    fn id(&self) -> io::Result<FileId>;
}

/// Reads a whole file into `into`, which keeps its allocation between calls.
pub(crate) fn read_all(file: &dyn File, into: &mut Vec<u8>) -> io::Result<()> {
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    into.clear();
    into.resize(len, 0);
    let read = file.read_at(0, into)?;
    into.truncate(read);
    Ok(())
}

/// A directory of the file system. Directories and files are private to their owner: payloads may hold secrets.
#[derive(Debug)]
pub struct DirStorage {
    path: PathBuf,
    /// Held for its flock, which the kernel drops with the last descriptor, also when the process dies.
    _lock: Option<fs::File>,
}

const LOCK: &str = "LOCK";

impl DirStorage {
    /// Opens an existing directory and takes its lock, so that nobody else can.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no such directory, [`OpenError::Locked`] when somebody has it
    /// open, [`OpenError::Io`].
    pub fn lock(path: &Path) -> Result<DirStorage, OpenError> {
        if !path.is_dir() {
            return Err(OpenError::Missing {
                dir: path.to_owned(),
            });
        }
        let lock = take_lock(path)?;
        Ok(DirStorage {
            path: path.to_owned(),
            _lock: Some(lock),
        })
    }

    /// Like [`lock`](DirStorage::lock), and makes the directory when it is not there. Its name is durable
    /// on return.
    ///
    /// # Errors
    /// [`OpenError::Locked`] when somebody has it open, [`OpenError::Io`].
    pub fn create(path: &Path) -> Result<DirStorage, OpenError> {
        let what = || format!("create the directory {}", path.display());
        if !path.is_dir() {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path);
            made.map_err(OpenError::io(what()))?;
            sync_parent(path).map_err(OpenError::io(what()))?;
        }
        DirStorage::lock(path)
    }

    /// Opens an existing directory beside whoever has it open: only for reading.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no such directory.
    pub fn observe(path: &Path) -> Result<DirStorage, OpenError> {
        if !path.is_dir() {
            return Err(OpenError::Missing {
                dir: path.to_owned(),
            });
        }
        Ok(DirStorage {
            path: path.to_owned(),
            _lock: None,
        })
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let absolute = fs::canonicalize(path)?;
    match absolute.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn take_lock(dir: &Path) -> Result<fs::File, OpenError> {
    let path = dir.join(LOCK);
    let what = || format!("lock {}", path.display());
    let mut options = fs::OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let mut file = options.open(&path).map_err(OpenError::io(what()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let pid = fs::read_to_string(&path)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            return Err(OpenError::Locked {
                dir: dir.to_owned(),
                pid,
            });
        }
        Err(fs::TryLockError::Error(source)) => {
            return Err(OpenError::Io {
                what: what(),
                source,
            });
        }
    }
    // The number only makes the message of the next opener better; a full disk must not stop us here.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

impl Storage for DirStorage {
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match access {
            Access::Read => &mut options,
            Access::Write => options.write(true),
            Access::Create => options.write(true).create(true).truncate(true).mode(0o600),
        };
        Ok(Box::new(DirFile(options.open(self.path.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Our own names are ASCII; a name that is no text is a stranger's, and kept as such.
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

struct DirFile(fs::File);

impl File for DirFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn id(&self) -> io::Result<FileId> {
        let meta = self.0.metadata()?;
        Ok(FileId {
            device: meta.dev(),
            inode: meta.ino(),
        })
    }
}

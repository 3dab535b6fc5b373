//! The seam below the log: a directory of files. The real one, and the trait a simulated one implements.
//!
//! The trait is as small as it can be (the idea is redb's `StorageBackend`), so that crash tests can
//! count, fail, lose or tear every single call.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::OpenError;
use crate::hold;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// An empty file, to read and write; an existing file is emptied.
    Create,
}

/// Which file this is, and when it was last touched. Two equal ids are one file that nobody touched in between.
///
/// Inode numbers are reused, and a birth time is never later than the change time. So the change time distinguishes
/// files: the kernel sets it at every change of content, name, owner or mode, and no copying tool can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// The change time (ctime), in nanoseconds since 1970 by the machine's wall clock.
    pub changed_ns: i64,
}

impl FileId {
    /// Whether both are the same file, touched or not.
    pub(crate) fn is_same_file(&self, other: &FileId) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} inode {} change time {}.{:09}",
            self.device,
            self.inode,
            self.changed_ns.div_euclid(1_000_000_000),
            self.changed_ns.rem_euclid(1_000_000_000)
        )
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
    /// `NotFound` for a name that is not there, unless it is to be created; the system's error.
    fn open(&self, name: &str, access: OpenMode) -> io::Result<Box<dyn File>>;

    /// Renames a file, atomically replacing the one that had the new name.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names in the directory, in no order.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes names durable.
    ///
    /// # Errors
    /// The system's error; names given since the last sync may be lost then.
    fn sync_dir(&self) -> io::Result<()>;

    /// Which file has this name, by its name alone.
    ///
    /// # Errors
    /// `NotFound` for a name that is not there; the system's error.
    fn id_of(&self, name: &str) -> io::Result<FileId>;

    /// Whether the path that was opened still leads to this directory: not removed, renamed or replaced.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn is_in_place(&self) -> io::Result<bool>;

    /// 128 random bits.
    ///
    /// # Errors
    /// The system's error.
    fn random(&self) -> io::Result<[u8; 16]>;

    /// Where the directory is, for messages.
    fn path(&self) -> PathBuf;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at an offset, growing the file when needed.
    ///
    /// # Errors
    /// `StorageFull` on a full disk; the system's error. Some of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the file's bytes and length durable (fdatasync).
    ///
    /// # Errors
    /// The system's error. After that, nothing is known about the bytes written since the last sync.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the file's bytes, length and times durable (fsync).
    ///
    /// # Errors
    /// As [`sync_data`](File::sync_data).
    fn sync_all(&self) -> io::Result<()>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// The system's error.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Which file this is.
    ///
    /// # Errors
    /// The system's error.
    fn id(&self) -> io::Result<FileId>;

    /// Whether the last change of the file was a write to it. A write gives both times of a file the same value;
    /// tools that set the time of a copy, a rename or a change of owner or mode make them differ.
    ///
    /// # Errors
    /// The system's error.
    fn was_written_last(&self) -> io::Result<bool>;

    /// Takes an exclusive lock on the file, which lasts as long as it is open; `false` when another process has it.
    ///
    /// # Errors
    /// The system's error.
    fn try_lock(&self) -> io::Result<bool>;
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
///
/// Everything goes through one descriptor of the directory, so that a directory that is renamed is still the one
/// that is worked on, and that nothing but a new segment or snapshot needs another descriptor.
#[derive(Debug)]
pub struct DirStorage {
    path: PathBuf,
    held: Arc<Descriptors>,
}

/// The descriptors that stay open.
#[derive(Debug)]
struct Descriptors {
    /// The directory. Its flock is the one that no rename or removal of a file can lose; the kernel drops it with
    /// the last descriptor, also when the process dies.
    dir: OwnedFd,
    /// The lock file, for file systems that cannot lock a directory.
    _lock: Option<fs::File>,
    /// Spare descriptors, released when the process has no others left.
    spares: Mutex<Vec<OwnedFd>>,
}

pub(crate) const LOCK: &str = "LOCK";

/// Enough for a prepared segment, both files of a snapshot, and a listing of the directory at once.
const SPARES: usize = 4;

impl DirStorage {
    /// Opens an existing directory and takes its lock, so that nobody else can.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no such directory, [`OpenError::Locked`] when somebody has it
    /// open, [`OpenError::Io`].
    pub fn lock(path: &Path) -> Result<DirStorage, OpenError> {
        let dir = open_dir(path)?;
        let lock = take_locks(path, &dir)?;
        Ok(DirStorage::on(path, dir, Some(lock)))
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

    /// As [`create`](DirStorage::create), for a copy. A directory with somebody else's files stays as it was.
    ///
    /// # Errors
    /// Also [`OpenError::NotEmpty`].
    pub fn create_for_copy(path: &Path) -> Result<DirStorage, OpenError> {
        match crate::open::foreign_names(path) {
            Ok(Some(names)) if !names.is_empty() => Err(OpenError::NotEmpty {
                dir: path.to_owned(),
            }),
            _ => DirStorage::create(path),
        }
    }

    /// As [`lock`](DirStorage::lock), for a directory with a log. Another one stays as it was.
    ///
    /// # Errors
    /// Also [`OpenError::Missing`].
    pub fn lock_log(path: &Path) -> Result<DirStorage, OpenError> {
        match crate::identity::read(&DirStorage::observe(path)?)? {
            Some(_) => DirStorage::lock(path),
            None => Err(OpenError::Missing {
                dir: path.to_owned(),
            }),
        }
    }

    /// Opens an existing directory for reading only, even if another process has it open.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no such directory.
    pub fn observe(path: &Path) -> Result<DirStorage, OpenError> {
        Ok(DirStorage::on(path, open_dir(path)?, None))
    }

    fn on(path: &Path, dir: OwnedFd, lock: Option<fs::File>) -> DirStorage {
        let held = Arc::new(Descriptors {
            dir,
            _lock: lock,
            spares: Mutex::new(Vec::new()),
        });
        held.refill();
        DirStorage {
            path: path.to_owned(),
            held,
        }
    }
}

impl Descriptors {
    fn refill(&self) {
        let mut spares = hold(&self.spares);
        while spares.len() < SPARES {
            // Without a spare now, the next call tries again.
            let Ok(spare) = rustix::io::fcntl_dupfd_cloexec(&self.dir, 0) else {
                return;
            };
            spares.push(spare);
        }
    }

    /// Opens a name in the directory; with a spare descriptor when the process has none left.
    fn open(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let mode = Mode::RUSR | Mode::WUSR;
        let open = || rustix::fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, mode);
        let opened = match open() {
            Err(Errno::MFILE | Errno::NFILE) if hold(&self.spares).pop().is_some() => open(),
            opened => opened,
        };
        self.refill();
        Ok(opened?)
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(dir) => Ok(dir),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(OpenError::Missing {
            dir: path.to_owned(),
        }),
        Err(error) => Err(OpenError::io(format!("open {}", path.display()))(
            error.into(),
        )),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let absolute = fs::canonicalize(path)?;
    match absolute.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Locks the directory and the lock file, and writes the process id into the latter.
fn take_locks(path: &Path, dir: &OwnedFd) -> Result<fs::File, OpenError> {
    let what = || format!("lock {}", path.display());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(dir, LOCK, flags, Mode::RUSR | Mode::WUSR);
    let mut file = fs::File::from(opened.map_err(|e| OpenError::io(what())(e.into()))?);
    let of_directory = match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        // Some network file systems cannot lock a directory; the files' locks are left then.
        Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        locked => locked,
    };
    let locked = of_directory
        .and_then(|()| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive));
    match locked {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(locked_by(path)),
        Err(error) => return Err(OpenError::io(what())(error.into())),
    }
    // The number only makes the message of the next opener better; a full disk must not stop us here.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// The refusal, with the process that wrote its id into the lock file, when it can be read.
pub(crate) fn locked_by(path: &Path) -> OpenError {
    let text = fs::read_to_string(path.join(LOCK)).ok();
    OpenError::Locked {
        dir: path.to_owned(),
        pid: text.and_then(|text| text.trim().parse().ok()),
    }
}

impl Storage for DirStorage {
    fn open(&self, name: &str, access: OpenMode) -> io::Result<Box<dyn File>> {
        let flags = match access {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let file = match self.held.open(name, flags) {
            // A link is removed, and not followed to somebody else's file.
            Err(error)
                if access == OpenMode::Create && error.kind() == io::ErrorKind::AlreadyExists =>
            {
                self.remove(name)?;
                self.held.open(name, flags)?
            }
            opened => opened?,
        };
        Ok(Box::new(DirFile {
            file: file.into(),
            _spares: Refill(self.held.clone()),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let dir = &self.held.dir;
        Ok(rustix::fs::renameat(dir, from, dir, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.held.dir,
            name,
            AtFlags::empty(),
        )?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let dir = self.held.open(".", OFlags::RDONLY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(dir)? {
            // Our own names are ASCII. A name that is not valid UTF-8 is of another program's file.
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        self.held.refill();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.held.dir)?)
    }

    fn id_of(&self, name: &str) -> io::Result<FileId> {
        let stat = rustix::fs::statat(&self.held.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(file_id(&stat))
    }

    fn is_in_place(&self) -> io::Result<bool> {
        let held = file_id(&rustix::fs::fstat(&self.held.dir)?);
        match rustix::fs::stat(&self.path) {
            Ok(found) => Ok(file_id(&found).is_same_file(&held)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

#[expect(
    clippy::unnecessary_cast,
    reason = "the fields have other types on other machines"
)]
fn file_id(stat: &rustix::fs::Stat) -> FileId {
    FileId {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        changed_ns: nanoseconds(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

struct DirFile {
    file: fs::File,
    /// Dropped after the file is closed.
    _spares: Refill,
}

/// Takes a spare descriptor back when one becomes free.
struct Refill(Arc<Descriptors>);

impl Drop for Refill {
    fn drop(&mut self) {
        self.0.refill();
    }
}

impl File for DirFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn id(&self) -> io::Result<FileId> {
        Ok(file_id(&rustix::fs::fstat(&self.file)?))
    }

    fn was_written_last(&self) -> io::Result<bool> {
        let meta = self.file.metadata()?;
        Ok((meta.mtime(), meta.mtime_nsec()) == (meta.ctime(), meta.ctime_nsec()))
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

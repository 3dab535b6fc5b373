//! The calls to the file system. Each one is a separate step, and all are relative to one open folder.

use std::fs::{File, Permissions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// A callback that runs just before every step, so that a crash test can end the process there.
pub type StepHook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// A folder that is held open: renaming it, or changing a symbolic link on the way, does not redirect it.
pub(super) struct OpenFolder {
    dir: OwnedFd,
    watch: Option<StepHook>,
}

const FLAGS: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The permissions with which `open` creates files, reduced by the process's umask.
const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

impl OpenFolder {
    pub(super) fn open(path: &Path) -> Result<OpenFolder> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::open(path, flags, Mode::empty());
        Ok(OpenFolder {
            dir: dir.map_err(at("open folder", &path.display().to_string()))?,
            watch: None,
        })
    }

    pub(super) fn watched(self, watch: StepHook) -> OpenFolder {
        OpenFolder {
            watch: Some(watch),
            ..self
        }
    }

    pub(super) fn step(&self, what: &'static str) {
        if let Some(watch) = &self.watch {
            watch(what);
        }
    }

    /// Takes the lock of the file `name`, if it is free. It is released when the result is dropped or the
    /// process ends.
    pub(super) fn lock(&self, name: &str) -> Result<Option<OwnedFd>> {
        let flags = FLAGS | OFlags::CREATE | OFlags::RDWR;
        let file = fs::openat(&self.dir, name, flags, NEW_FILE).map_err(at("open", name))?;
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at("lock", name)(error)),
        }
    }

    /// Returns the bytes of a file; `None` if there is none with this name.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(_) = self.length(name)? else {
            return Ok(None);
        };
        let file = fs::openat(&self.dir, name, FLAGS | OFlags::RDONLY, Mode::empty());
        let mut file = match file {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(at("open", name)(error)),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at("read", name))?;
        Ok(Some(bytes))
    }

    /// Returns the length of a file; `None` if there is none with this name.
    pub(super) fn length(&self, name: &str) -> Result<Option<u64>> {
        match fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Some(u64::try_from(stat.st_size).unwrap_or(0)))
            }
            Ok(_) => Err(bad_name(name, "exists and is not a regular file")),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(at("look at", name)(error)),
        }
    }

    /// Whether a file has hard links: it may be the file of another folder, with another fence, or a fence itself.
    pub(super) fn has_other_names(&self, name: &str) -> Result<bool> {
        let stat = fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(stat.map_err(at("look at", name))?.st_nlink > 1)
    }

    /// Returns the names of all entries.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let entries = fs::Dir::read_from(&self.dir).map_err(at("list", "the folder"))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at("list", "the folder"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Writes a file from its start and syncs it, with the permissions of `like`, if that exists.
    pub(super) fn write(&self, name: &str, bytes: &[u8], like: Option<&str>) -> Result<()> {
        self.step("create");
        let flags = FLAGS | OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let create = || fs::openat(&self.dir, name, flags, NEW_FILE);
        let file = match create() {
            // Left by a crash, or a link to somebody else's file.
            Err(Errno::EXIST) => {
                let removed = fs::unlinkat(&self.dir, name, AtFlags::empty());
                removed.and_then(|()| create())
            }
            created => created,
        };
        let file = File::from(file.map_err(at("create", name))?);
        if let Some(mode) = like.and_then(|like| self.mode(like)) {
            let allowed = file.set_permissions(Permissions::from_mode(mode));
            allowed.map_err(at("set the permissions of", name))?;
        }
        self.write_all(&file, name, bytes, 0)?;
        self.sync(&file, name)
    }

    /// Makes a file end with these bytes at this offset, whatever followed it before, and syncs it.
    pub(super) fn write_at(&self, name: &str, bytes: &[u8], offset: u64) -> Result<()> {
        self.step("open");
        let flags = FLAGS | OFlags::CREATE | OFlags::WRONLY;
        let file = fs::openat(&self.dir, name, flags, NEW_FILE).map_err(at("open", name))?;
        let file = File::from(file);
        self.step("cut");
        file.set_len(offset).map_err(at("cut", name))?;
        self.write_all(&file, name, bytes, offset)?;
        self.sync(&file, name)
    }

    /// Writes all bytes. A watched write is split in two, so that a crash can tear it.
    fn write_all(&self, file: &File, name: &str, bytes: &[u8], offset: u64) -> Result<()> {
        let half = self.watch.as_ref().map_or(0, |_| bytes.len() / 2);
        let (first, second) = bytes.split_at(half);
        self.step("write");
        let written = file.write_all_at(first, offset);
        self.step("write the rest");
        written
            .and_then(|()| file.write_all_at(second, offset + first.len() as u64))
            .map_err(at("write", name))
    }

    fn sync(&self, file: &File, name: &str) -> Result<()> {
        self.step("sync");
        file.sync_all().map_err(at("sync", name))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.step("rename");
        fs::renameat(&self.dir, from, &self.dir, to).map_err(at("rename into place", to))
    }

    /// Removes a file, which may already be gone.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.step("remove");
        match fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(at("remove", name)(error)),
        }
    }

    /// Makes created, renamed and removed names durable.
    pub(super) fn sync_names(&self) -> Result<()> {
        self.step("sync folder");
        fs::fsync(self.dir.as_fd()).map_err(at("sync", "the folder"))
    }

    /// Returns the status of a file, if there is one.
    pub(super) fn status(&self, name: &str) -> Option<fs::Stat> {
        fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn mode(&self, name: &str) -> Option<u32> {
        Some(self.status(name)?.st_mode & 0o7777)
    }
}

fn at<E: Into<io::Error>>(doing: &'static str, name: &str) -> impl FnOnce(E) -> Error {
    let doing = format!("{doing} {name}");
    move |error| failed(doing, error.into())
}

/// The file system failed: a write may have taken effect.
pub(super) fn failed(doing: String, error: io::Error) -> Error {
    Error::failed(ErrorKind::Unknown, doing, error)
}

/// The name cannot be a file of a fenced folder.
pub(super) fn bad_name(name: &str, problem: &str) -> Error {
    Error::Argument(format!("{name:?} {problem}"))
}

//! Replaces a small file that several programs and people change: access files and keys.
//!
//! A reader sees the old content or the new one, never a part. Writers lock the file, so each edits the previous one's
//! result. An editor does not know the lock; its change is noticed, and the edit is made again on top of it. A symbolic
//! link stays, and the file it points at is replaced. The new content is written under a name that did not exist, so that a
//! link planted there is never followed.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Whether the new content survives a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// It is on stable storage on return.
    Yes,
    /// After a crash there is the old content, the new one or none.
    No,
}

/// Why a file is not edited.
#[derive(Debug)]
pub enum NotEdited<E> {
    /// It cannot be read or written.
    Io(io::Error),
    /// The edit was refused.
    Refused(E),
}

impl<E> From<io::Error> for NotEdited<E> {
    fn from(error: io::Error) -> NotEdited<E> {
        NotEdited::Io(error)
    }
}

/// Replaces a file whatever it contains, or makes it, accessible to its owner only.
///
/// # Errors
/// The system's error; the file stays as it was.
pub fn write(path: &Path, content: &[u8], durable: Durable) -> io::Result<()> {
    let whatever = |_: Option<&[u8]>| Ok(content.to_vec());
    replace(path, durable, whatever).map_err(|error: NotEdited<Infallible>| match error {
        NotEdited::Io(error) => error,
        NotEdited::Refused(never) => match never {},
    })
}

/// Replaces a file that exists by an edited one, durably. `edit` may be called again, if another program changes the file
/// meanwhile; it does nothing else than edit.
///
/// # Errors
/// [`NotEdited`], also if there is no such file. It stays as it was.
pub fn edit<E>(
    path: &Path,
    mut edit: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<(), NotEdited<E>> {
    replace(path, Durable::Yes, |old| match old {
        Some(old) => edit(old).map_err(NotEdited::Refused),
        None => Err(io::Error::from(io::ErrorKind::NotFound).into()),
    })
}

/// How often an edit is made again beside another program that goes on changing the file.
const TRIES: u32 = 100;

fn replace<E>(
    path: &Path,
    durable: Durable,
    mut edit: impl FnMut(Option<&[u8]>) -> Result<Vec<u8>, NotEdited<E>>,
) -> Result<(), NotEdited<E>> {
    let path = &target(path)?;
    let Some(mut current) = locked(path)? else {
        let text = edit(None)?;
        return Ok(Temporary::write(path, &text, None, durable)?
            .put(path, durable)
            .map(drop)?);
    };
    // The contents that are expected, and those that are edited: they differ after an editor wrote too late.
    let mut expected = content(&mut current)?;
    let mut base = expected.clone();
    for _ in 0..TRIES {
        let text = edit(Some(&base))?;
        let next = Temporary::write(path, &text, Some(&current), durable)?;
        if !is_at(&current, path)? {
            let Some(other) = locked(path)? else {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            };
            current = other;
        }
        let found = content(&mut current)?;
        if found != expected {
            (base, expected) = (found.clone(), found);
            continue;
        }
        let next = next.put(path, durable)?;
        // A program that had opened the file writes to the one that is gone from here on.
        let late = content(&mut current)?;
        if late == expected {
            return Ok(());
        }
        (current, expected, base) = (next, text, late);
    }
    let why = "another program goes on changing it; try again when that is done";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why).into())
}

/// The file that a path resolves to: the end of a link.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.symlink_metadata() {
            Ok(_) => Err(io::Error::new(
                error.kind(),
                "it is a link to a file that does not exist",
            )),
            Err(_) => Ok(path.to_owned()),
        },
        found => found,
    }
}

/// Opens a file and waits for its lock; `None` if there is no file. The lock lasts as long as the file is open.
fn locked(path: &Path) -> io::Result<Option<File>> {
    loop {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is not a file",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        // A network file system locks only files that are opened for writing.
        let opened = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
            opened => opened,
        };
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let file = opened?;
                file.lock()?;
                if is_at(&file, path)? {
                    return Ok(Some(file));
                }
            }
        }
    }
}

/// Whether a path still names this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let of = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(of(found) == of(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// The new content beside the file, removed unless it is put into its place.
struct Temporary {
    file: File,
    path: PathBuf,
}

impl Temporary {
    /// Writes and locks it, with the owner and the mode of `like`.
    fn write(
        path: &Path,
        text: &[u8],
        like: Option<&File>,
        durable: Durable,
    ) -> io::Result<Temporary> {
        let temporary = Temporary::make(path)?;
        let mut file = &temporary.file;
        file.lock()?;
        if let Some(like) = like {
            let (like, here) = (like.metadata()?, file.metadata()?);
            if (like.uid(), like.gid()) != (here.uid(), here.gid()) {
                fchown(file, Some(like.uid()), Some(like.gid()))?;
            }
            file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
        }
        file.write_all(text)?;
        if durable == Durable::Yes {
            file.sync_all()?;
        }
        Ok(temporary)
    }

    fn make(path: &Path) -> io::Result<Temporary> {
        let name = path.file_name().unwrap_or_default().display();
        let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..TRIES {
            let path = path.with_file_name(format!(".{name}.{}-{number}.new", std::process::id()));
            let mut options = OpenOptions::new();
            let made = options
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            match made {
                Ok(file) => return Ok(Temporary { file, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
                Err(error) => return Err(error),
            }
        }
        Err(taken)
    }

    /// Puts it into the place of the file.
    fn put(self, path: &Path, durable: Durable) -> io::Result<File> {
        fs::rename(&self.path, path)?;
        if durable == Durable::Yes {
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        self.file.try_clone()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After `put` there is nothing under this name.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Edited = Result<(), NotEdited<Infallible>>;

    fn append(path: &Path, line: &str) -> Edited {
        edit(path, |old| Ok([old, line.as_bytes()].concat()))
    }

    fn io_error(edited: Edited) -> io::Error {
        match edited.unwrap_err() {
            NotEdited::Io(error) => error,
            NotEdited::Refused(never) => match never {},
        }
    }

    #[test]
    fn every_edit_of_many_writers_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, b"", Durable::Yes).unwrap();
        let writer = |writer: u32| {
            let path = path.clone();
            move || (0..20).for_each(|n| append(&path, &format!("{writer} {n}\n")).unwrap())
        };
        std::thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(writer(n));
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        for n in 0..4 {
            let lines: Vec<_> = text
                .lines()
                .filter(|l| l.starts_with(&format!("{n} ")))
                .collect();
            assert_eq!(lines.len(), 20, "{text}");
        }
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left over"
        );
    }

    /// The control is an edit without the change beside it, which is called once.
    #[test]
    fn a_change_by_hand_during_an_edit_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        type Hand = fn(&Path);
        let in_place: Hand = |path| {
            let mut file = OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(b"by hand\n").unwrap();
        };
        let renamed: Hand = |path| {
            let other = path.with_extension("swp");
            fs::write(&other, "first\nby hand\n").unwrap();
            fs::rename(other, path).unwrap();
        };
        let nothing: Hand = |_| {};
        for (hand, calls, wanted) in [
            (in_place, 2, "first\nby hand\nours\n"),
            (renamed, 2, "first\nby hand\nours\n"),
            (nothing, 1, "first\nours\n"),
        ] {
            fs::write(&path, "first\n").unwrap();
            let mut called = 0;
            let edited: Edited = edit(&path, |old| {
                called += 1;
                if called == 1 {
                    hand(&path);
                }
                Ok([old, b"ours\n"].concat())
            });
            edited.unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
            assert_eq!(called, calls);
        }
        // A writer that never stops causes an error, and nothing is lost.
        let busy: Edited = edit(&path, |old| {
            in_place(&path);
            Ok(old.to_vec())
        });
        assert_eq!(io_error(busy).kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let [link, real] = ["link", "real"].map(|name| dir.path().join(name));
        fs::write(&real, "first\n").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        append(&link, "second\n").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "first\nsecond\n");
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&real).unwrap();
        let gone = io_error(append(&link, "third\n"));
        assert!(
            gone.to_string()
                .contains("a link to a file that does not exist"),
            "{gone}"
        );
        let gone = write(&link, b"third\n", Durable::Yes).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_link_planted_under_the_temporary_name_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, victim] = ["file", "victim"].map(|name| dir.path().join(name));
        fs::write(&path, "first\n").unwrap();
        fs::write(&victim, "precious\n").unwrap();
        let planted = format!(".file.{}-0.new", std::process::id());
        std::os::unix::fs::symlink(&victim, dir.path().join(&planted)).unwrap();
        append(&path, "second\n").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
        assert!(!path.is_symlink());
    }

    #[test]
    fn a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(dir.path(), b"", Durable::No).unwrap_err();
        assert!(error.to_string().contains("not a file"), "{error}");
    }
}

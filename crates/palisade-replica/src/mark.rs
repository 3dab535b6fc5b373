//! The mark in a member's directory that says that it must not vote again (rules R14, R24): the file `lost`, with a text for
//! people. A directory of a new node does not have it, and a recovery removes it.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use palisade_access::replace::{self, Durable};

const NAME: &str = "lost";

/// Why the member in this directory must not vote.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(dir: &Path) -> io::Result<Option<String>> {
    match fs::read(dir.join(NAME)) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Marks it. Durable on return.
///
/// # Errors
/// Those of the file system; perhaps it is not marked then.
pub fn set(dir: &Path, why: &str) -> io::Result<()> {
    let text = format!("{why}\n");
    replace::write(&dir.join(NAME), text.as_bytes(), Durable::Yes)
}

/// Takes the mark away.
///
/// # Errors
/// Those of the file system.
pub fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::open(dir)?.sync_all(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_until_it_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        set(dir.path(), "it lost entry 9").unwrap();
        assert_eq!(
            read(dir.path()).unwrap().as_deref(),
            Some("it lost entry 9")
        );
        clear(dir.path()).unwrap();
        clear(dir.path()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
    }

    /// The link may have any name under which a mark was ever written. The control is a program that does not look first.
    #[test]
    fn a_link_planted_beside_a_mark_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        let planted = [
            "lost.tmp".to_owned(),
            format!(".lost.{}-0.new", std::process::id()),
        ];
        for name in &planted {
            std::os::unix::fs::symlink(&victim, dir.path().join(name)).unwrap();
        }
        fs::write(&victim, "precious").unwrap();
        set(dir.path(), "it lost entry 9").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(read(dir.path()).unwrap().is_some());
        drop(File::create(dir.path().join(&planted[0])).unwrap());
        assert_eq!(fs::read(&victim).unwrap(), b"");
    }
}

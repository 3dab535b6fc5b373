//! A directory as an operator looks at it: nothing is changed, and another process may have it open.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::OpenError;
use crate::identity::{self, As, DirectoryKind, Identity};
use crate::storage::{LOCK, Storage};

/// Reads whose log is in a directory, also in a backup; `None` if there is no log.
///
/// # Errors
/// Damage; I/O.
pub fn identity(storage: &dyn Storage) -> Result<Option<Identity>, OpenError> {
    Ok(identity::read(storage)?.map(|found| found.identity))
}

/// Checks, as far as that is possible without a change, that a server would open this directory: that it is not a copy, and
/// that nobody put an older one back. A backup passes.
///
/// # Errors
/// [`OpenError::Copied`]; damage; I/O.
pub fn check_in_place(storage: &dyn Storage) -> Result<(), OpenError> {
    let Some(found) = identity::read(storage)? else {
        return Ok(());
    };
    match found.identity.kind {
        DirectoryKind::Live => found.check_live(storage, As::Single),
        DirectoryKind::Member(_) => found.check_live(storage, As::Member),
        DirectoryKind::Backup => Ok(()),
    }
}

/// The process that has the directory open. `None` also if it runs where this process cannot see it: on another machine,
/// or in another container.
#[must_use]
pub fn opened_by(dir: &Path) -> Option<u32> {
    let file = dir.join(LOCK);
    let pid: u32 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
    let inode = fs::metadata(&file).ok()?.ino();
    // An attempt to take the lock would be in the way of a server that starts now; the kernel's list is not.
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks
        .lines()
        .any(|line| is_held(line, pid, inode))
        .then_some(pid)
}

/// Whether a line of `/proc/locks` is about this process and this file. File systems differ in the device that they name.
fn is_held(line: &str, pid: u32, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let mut next = || words.next().unwrap_or_default();
    let (kind, _, _, holder, file) = (next(), next(), next(), next(), next());
    let number = file
        .rsplit(':')
        .next()
        .and_then(|number| number.parse().ok());
    kind == "FLOCK" && holder.parse() == Ok(pid) && number == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_the_process_and_on_the_file_that_its_line_names() {
        let line = "3: FLOCK  ADVISORY  WRITE 4242 fd:01:1179 0 EOF";
        assert!(is_held(line, 4_242, 1_179));
        for (line, pid, inode) in [
            (line, 4_243, 1_179),
            (line, 4_242, 1_180),
            (
                "3: POSIX  ADVISORY  WRITE 4242 fd:01:1179 0 EOF",
                4_242,
                1_179,
            ),
            (
                "3: -> FLOCK  ADVISORY  WRITE 4242 fd:01:1179 0 EOF",
                4_242,
                1_179,
            ),
            ("", 4_242, 1_179),
        ] {
            assert!(!is_held(line, pid, inode), "{line}");
        }
    }
}

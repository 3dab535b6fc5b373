//! When the server on a directory was last there, so that within one boot of the machine no time is lost.
//!
//! ```text
//!   last entry      last sign of life            started again
//!       │ served, quiet    │        down               │
//!   ────┴──────────────────┴───────────────────────────┴──►  CLOCK_BOOTTIME, and the authority's clock with it
//! ```
//!
//! The file `clock` holds one line: the boot, CLOCK_BOOTTIME, and the authority's clock at that moment. It is overwritten
//! in place and never synced: after SIGKILL the kernel still has it, and after a boot it counts for nothing. Then the
//! clock goes on from the log's last entry, which is a minute old at most while anything is leased or closed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use palisade_core::{Span, Timestamp};

use crate::Returning;

const NAME: &str = "clock";

/// A sign is not given more often.
const EVERY: Span = Span::from_millis(20);

pub(super) struct SignOfLife {
    file: File,
    boot: String,
    given: Timestamp,
}

impl SignOfLife {
    /// Begins to give signs in this directory, and returns the last sign of the server before. `None` where the system
    /// does not say which boot this is, or the file cannot be used: then the time between two processes is not known.
    pub(super) fn begin(dir: &Path) -> Option<(SignOfLife, Option<LastSign>)> {
        let begun = boot().and_then(|boot| {
            let mut options = OpenOptions::new();
            let options = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600);
            let mut file = options.open(dir.join(NAME))?;
            let mut line = String::new();
            // Bytes that are not text are no line of ours.
            let _ = file.by_ref().take(LINE as u64).read_to_string(&mut line);
            let seen = LastSign::parse(&line, &boot);
            let given = Timestamp::ZERO;
            Ok((SignOfLife { file, boot, given }, seen))
        });
        let why = match begun {
            Ok(begun) => return Some(begun),
            Err(why) => why,
        };
        tracing::warn!(
            "{}: {why}; after a kill, the time since the last entry of the log will not count",
            dir.join(NAME).display()
        );
        None
    }

    /// Removes the file: an authority with a manual clock gives no signs, and leaves none for later.
    pub(super) fn forget(dir: &Path) {
        if let Err(error) = fs::remove_file(dir.join(NAME))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", dir.join(NAME).display());
        }
    }

    /// The server is there, and everything that was due by `at` is durable; CLOCK_BOOTTIME showed `boottime` then.
    pub(super) fn give(&mut self, at: Timestamp, boottime: u64) {
        if at.since(self.given) < EVERY && self.given != Timestamp::ZERO {
            return;
        }
        self.given = at;
        let line = line(&self.boot, boottime, at);
        // Without it, a later start knows less; nothing else depends on it.
        let _ = self.file.write_all_at(line.as_bytes(), 0);
    }
}

/// The last sign of a server that was there in this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastSign {
    boottime: u64,
    at: Timestamp,
}

impl LastSign {
    /// Tells a process that starts at `now` of CLOCK_BOOTTIME, on a log that ends at `last`, how long the authority was
    /// away.
    pub(super) fn returning(self, last: Timestamp, now: u64) -> Option<Returning> {
        Returning::resumed((self.at, self.boottime), last, now)
    }

    fn parse(line: &str, boot: &str) -> Option<LastSign> {
        let (number, rest) = line.strip_suffix('\n')?.split_once(' ')?;
        let (at, of) = rest.split_once(' ')?;
        let seen = LastSign {
            boottime: number.parse().ok()?,
            at: Timestamp::from_nanos(at.parse().ok()?),
        };
        (of.trim_end() == boot).then_some(seen)
    }
}

/// The length of the longest line: numbers of 20 digits, and the longest boot id.
const LINE: usize = 160;

fn line(boot: &str, boottime: u64, at: Timestamp) -> String {
    let line = format!("{boottime:020} {:020} {boot}", at.as_nanos());
    let width = LINE - 1;
    format!("{line:<width$}\n")
}

/// The boot of the machine, and the namespace of its CLOCK_BOOTTIME: a namespace may have a clock of its own.
fn boot() -> io::Result<String> {
    const ID: &str = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(ID)
        .map_err(|error| io::Error::new(error.kind(), format!("{ID}: {error}")))?;
    // A kernel without such namespaces has one clock. The number of a namespace that is gone is soon another's, so how far
    // the clock is ahead counts, too.
    let of = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let ahead = offsets
        .lines()
        .find_map(|line| line.strip_prefix("boottime"));
    let ahead: Vec<&str> = ahead.unwrap_or_default().split_whitespace().collect();
    let boot = format!("{} {} {}", id.trim(), of.display(), ahead.join(" "));
    Ok(boot.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn the_time_since_the_last_sign_is_exact_within_one_boot_and_unknown_in_another() {
        let text = line("b time:[1]", 1_000 * SECOND, at(50));
        assert_eq!(text.len(), LINE);
        assert_eq!(LastSign::parse(&text, "c time:[1]"), None);
        assert_eq!(LastSign::parse(&text, "b time:[2]"), None);
        assert_eq!(LastSign::parse(&text[..LINE - 2], "b time:[1]"), None);
        assert_eq!(LastSign::parse("", "b time:[1]"), None);
        let seen = LastSign::parse(&text, "b time:[1]").unwrap();
        let resumed = |served, down| {
            let [served, down] = [served, down].map(|span: u64| Span::from_millis(span * 1_000));
            Some(Returning::Resumed { served, down })
        };
        assert_eq!(seen.returning(at(40), 1_007 * SECOND), resumed(10, 7));
        // Entries that were logged after the last sign.
        assert_eq!(seen.returning(at(52), 1_007 * SECOND), resumed(0, 5));
        // A log that another clock has stamped, and a clock that went back.
        assert_eq!(seen.returning(at(58), 1_007 * SECOND), None);
        assert_eq!(seen.returning(at(40), 999 * SECOND), None);
    }

    #[test]
    fn a_server_finds_what_the_one_before_it_gave() {
        let dir = tempfile::tempdir().unwrap();
        let (mut signs, seen) = SignOfLife::begin(dir.path()).unwrap();
        assert_eq!(seen, None);
        signs.give(at(1), SECOND);
        signs.give(at(1).after(Span::from_millis(19)), 2 * SECOND);
        let found = |seconds| {
            let (boottime, at) = (seconds * SECOND, at(seconds));
            Some(LastSign { boottime, at })
        };
        assert_eq!(SignOfLife::begin(dir.path()).unwrap().1, found(1));
        signs.give(at(2), 2 * SECOND);
        assert_eq!(SignOfLife::begin(dir.path()).unwrap().1, found(2));
        SignOfLife::forget(dir.path());
        SignOfLife::forget(dir.path());
        assert_eq!(SignOfLife::begin(dir.path()).unwrap().1, None);
    }
}

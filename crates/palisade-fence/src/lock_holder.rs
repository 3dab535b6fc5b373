//! The processes that hold a lock on a file, read from Linux's `/proc`: for messages, and for an operator who kills
//! one.
//!
//! Processes in another container or on another machine are not listed, nor are locks on file systems that report
//! another device number for locks than for files (Btrfs, some overlays). If `/proc` belongs to another PID namespace,
//! none is listed: its numbers mean other processes here, and an operator would kill the wrong one.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{Stat, major, minor};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// Its process id.
    pub process: i32,
    /// Its start, in clock ticks since the machine booted. It distinguishes later processes with the same id.
    pub started: u64,
    /// The name of its program, at most 15 bytes.
    pub program: String,
    /// Whether it is stopped (SIGSTOP, Ctrl-Z, a debugger).
    pub stopped: bool,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stopped = if self.stopped { ", stopped" } else { "" };
        write!(f, "process {} ({}{stopped})", self.process, self.program)
    }
}

/// The kind of a lock in `/proc/locks`, and the locked byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "files", feature = "sqlite")),
    allow(dead_code, reason = "files have one kind, SQLite the other")
)]
pub(crate) enum FileLock {
    /// `flock`
    Whole,
    /// `fcntl`, to write; `None` is any byte.
    Byte(Option<u64>),
}

/// How often the list is read until it has the lock. The kernel gives it a page at a time, each from a position and not from a
/// lock: if another process lets a lock go between two pages, a later line is missed. With 450 locks that come and go, up to
/// one reading in seven missed a lock that was held throughout.
const READINGS: usize = 16;

/// Returns the processes that hold this lock; empty if `/proc` does not tell.
pub(crate) fn holders(file: &Stat, lock: FileLock) -> Vec<LockHolder> {
    let me = std::process::id().to_string();
    if !fs::read_link("/proc/self").is_ok_and(|own| own == Path::new(&me)) {
        return Vec::new();
    }
    let list = || fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders: Vec<LockHolder> = Vec::new();
    for process in listed(file, lock, list) {
        if !holders.iter().any(|known| known.process == process) {
            holders.extend(look_at(process));
        }
    }
    holders
}

/// The processes of the first of several readings that has the lock.
fn listed(file: &Stat, lock: FileLock, list: impl FnMut() -> String) -> Vec<i32> {
    let readings = std::iter::repeat_with(list).take(READINGS);
    let mut found = readings.map(|text| {
        let lines = text.lines();
        lines.filter_map(|line| holds(line, file, lock)).collect()
    });
    found
        .find(|holders: &Vec<i32>| !holders.is_empty())
        .unwrap_or_default()
}

/// Returns the process in a line like `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF`, if it holds the lock. A line
/// with `->` is a waiter.
fn holds(line: &str, file: &Stat, lock: FileLock) -> Option<i32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, mode, process, place, first, last] = words[..] else {
        return None;
    };
    let (device, inode) = place.rsplit_once(':')?;
    let expected = format!("{:02x}:{:02x}", major(file.st_dev), minor(file.st_dev));
    if device != expected || inode.parse() != Ok(file.st_ino) {
        return None;
    }
    let is_it = match lock {
        FileLock::Whole => kind == "FLOCK",
        FileLock::Byte(byte) => {
            let has = |byte| {
                first.parse().is_ok_and(|first: u64| first <= byte)
                    && last.parse().map_or(last == "EOF", |last: u64| byte <= last)
            };
            kind == "POSIX" && mode == "WRITE" && byte.is_none_or(has)
        }
    };
    let process = process.parse().ok()?;
    (is_it && process > 0).then_some(process)
}

fn look_at(process: i32) -> Option<LockHolder> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses, and may itself contain parentheses.
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, program) = before.split_once(" (")?;
    let words: Vec<&str> = after.split(' ').collect();
    Some(LockHolder {
        process,
        started: words.get(19)?.parse().ok()?,
        program: program.to_owned(),
        stopped: matches!(words.first(), Some(&("T" | "t"))),
    })
}

/// Kills a process with SIGKILL if it is still the same one and still holds the lock. Returns whether it did.
pub(crate) fn end(seen: &LockHolder, now: impl Fn() -> Vec<LockHolder>) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(seen.process) else {
        return Ok(false);
    };
    // The descriptor always refers to this process, even if its id is reused.
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    };
    let still = |one: &LockHolder| (one.process, one.started) == (seen.process, seen.started);
    if !now().iter().any(still) {
        return Ok(false);
    }
    pidfd_send_signal(process, Signal::KILL)?;
    Ok(true)
}

/// Returns the message about the processes that block a resource, with the command to type.
pub(crate) fn in_the_way(holders: &[LockHolder], resource: &str, url: &str) -> String {
    let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    if names.is_empty() {
        "the process that has its lock cannot be seen from here".to_owned()
    } else {
        format!(
            "{} has its lock: let it go on, or end it with: palisade fence unblock {resource} --url {url} --yes",
            names.join(" and ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_misses_the_lock_is_not_the_last() {
        let mut file = rustix::fs::stat("/").unwrap();
        (file.st_dev, file.st_ino) = (rustix::fs::makedev(0xfe, 0), 131);
        let other = "1: FLOCK  ADVISORY  WRITE 4712 fe:00:132 0 EOF\n";
        let whole = format!("{other}2: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF\n");
        let mut readings = [other.to_owned(), whole].into_iter();
        let mut next = || readings.next().unwrap();
        assert_eq!(listed(&file, FileLock::Whole, &mut next), [4711]);
        assert!(listed(&file, FileLock::Whole, || other.to_owned()).is_empty());
    }

    /// The list without a lock that is held throughout occurs: this test's control counts it.
    #[test]
    fn a_held_lock_is_found_while_others_come_and_go() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let lock = |name: String| {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            file
        };
        let held = lock("held".to_owned());
        let file = rustix::fs::fstat(&held).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (lock, over) = (&lock, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let held: Vec<_> =
                            (0..150).map(|n| lock(format!("{thread}-{n}"))).collect();
                        drop(held);
                    }
                });
            }
            let list = || fs::read_to_string("/proc/locks").unwrap();
            let missed = |text: String| {
                !text
                    .lines()
                    .any(|line| holds(line, &file, FileLock::Whole).is_some())
            };
            let control = (0..200).filter(|_| missed(list())).count();
            let found = (0..20).all(|_| !listed(&file, FileLock::Whole, list).is_empty());
            over.store(true, Ordering::Relaxed);
            println!("{control} of 200 single readings missed the lock");
            assert!(found);
        });
    }

    #[test]
    fn a_line_is_read_as_the_kernel_writes_it() {
        let mut file = rustix::fs::stat("/").unwrap();
        (file.st_dev, file.st_ino) = (rustix::fs::makedev(0xfe, 0), 131);
        for (line, lock, process) in [
            (
                "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF",
                FileLock::Whole,
                Some(4711),
            ),
            (
                "1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:131 0 EOF",
                FileLock::Whole,
                None,
            ),
            (
                "1: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF",
                FileLock::Whole,
                None,
            ),
            (
                "1: FLOCK  ADVISORY  WRITE 4711 fe:00:132 0 EOF",
                FileLock::Whole,
                None,
            ),
            (
                "2: POSIX  ADVISORY  WRITE 47 fe:00:131 120 120",
                FileLock::Byte(Some(120)),
                Some(47),
            ),
            (
                "2: POSIX  ADVISORY  WRITE 47 fe:00:131 123 123",
                FileLock::Byte(Some(120)),
                None,
            ),
            (
                "2: POSIX  ADVISORY  WRITE 47 fe:00:131 0 EOF",
                FileLock::Byte(Some(120)),
                Some(47),
            ),
            (
                "2: POSIX  ADVISORY  READ 47 fe:00:131 120 120",
                FileLock::Byte(None),
                None,
            ),
            (
                "2: POSIX  ADVISORY  WRITE 47 fe:00:131 9 9",
                FileLock::Byte(None),
                Some(47),
            ),
            (
                "3: OFDLCK ADVISORY  WRITE -1 fe:00:131 0 EOF",
                FileLock::Byte(None),
                None,
            ),
            ("", FileLock::Whole, None),
        ] {
            assert_eq!(holds(line, &file, lock), process, "{line}");
        }
    }
}

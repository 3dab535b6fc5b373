//! All processes of a job: its process group, and descendants that have left the group.
//!
//! palisade adopts orphaned descendants (PR_SET_CHILD_SUBREAPER): if a process's parent ends, the process becomes
//! palisade's own child and can still be found, also after `setsid`.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal};

/// A process as `/proc` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    pid: i32,
    parent: i32,
    group: i32,
    /// Ended, and not yet reaped.
    dead: bool,
    /// The start time since boot; together with the process id it identifies a process for ever.
    started: u64,
}

/// A job, named by the leader of its process group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    pub(super) fn new(leader: Pid) -> Group {
        Group { leader }
    }

    /// Signals only the process group. The leader must not be reaped yet: until then no other group can get its
    /// number.
    pub(super) fn signal(self, signal: Signal) {
        // An empty group is not an error.
        let _ = rustix::process::kill_process_group(self.leader, signal);
    }

    /// Signals every process of the job, also those outside the group.
    pub(super) fn signal_all(self, signal: Signal, leader_reaped: bool, watchdog: Option<Pid>) {
        if !leader_reaped {
            self.signal(signal);
        }
        let Some(rows) = processes() else {
            return self.signal(signal);
        };
        let (inside, outside): (Vec<_>, Vec<_>) = self
            .of(&rows, watchdog)
            .into_iter()
            .partition(|row| row.group == self.raw());
        if leader_reaped && !inside.is_empty() {
            // All at once, so that none of them can start another in between.
            self.signal(signal);
        }
        for row in outside {
            signal_one(row, signal);
        }
    }

    /// Whether any process of the job is alive.
    pub(super) fn is_alive(self, watchdog: Option<Pid>) -> bool {
        match processes() {
            Some(rows) => !self.of(&rows, watchdog).is_empty(),
            None => rustix::process::test_kill_process_group(self.leader).is_ok(),
        }
    }

    fn raw(self) -> i32 {
        self.leader.as_raw_nonzero().get()
    }

    fn of(self, rows: &[Row], watchdog: Option<Pid>) -> Vec<&Row> {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        members(
            rows,
            self.raw(),
            me,
            watchdog.map(|pid| pid.as_raw_nonzero().get()),
        )
    }
}

/// The live processes that are in the group or descend from `me`, without `me` and its watchdog.
fn members(rows: &[Row], group: i32, me: i32, watchdog: Option<i32>) -> Vec<&Row> {
    let parents: BTreeMap<i32, i32> = rows.iter().map(|row| (row.pid, row.parent)).collect();
    let is_ours = |row: &&Row| {
        let known = row.pid != me && Some(row.pid) != watchdog;
        known && !row.dead && (row.group == group || descends(&parents, row.pid, me))
    };
    rows.iter().filter(is_ours).collect()
}

/// The list is not a snapshot and could contain a cycle, so the number of steps is bounded.
fn descends(parents: &BTreeMap<i32, i32>, mut pid: i32, from: i32) -> bool {
    for _ in 0..parents.len() {
        match parents.get(&pid) {
            Some(&parent) if parent == from => return true,
            Some(&parent) => pid = parent,
            None => return false,
        }
    }
    false
}

/// The process id may have been reused since the list was read. A descriptor always refers to one process, so
/// the process is checked again through one.
fn signal_one(row: &Row, signal: Signal) {
    let Some(pid) = Pid::from_raw(row.pid) else {
        return;
    };
    let Ok(descriptor) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if process(row.pid).is_some_and(|now| now.started == row.started) {
        let _ = rustix::process::pidfd_send_signal(descriptor, signal);
    }
}

fn processes() -> Option<Vec<Row>> {
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let rows: Vec<Row> = pids.filter_map(process).collect();
    // A /proc that does not list even this process is useless.
    (!rows.is_empty()).then_some(rows)
}

fn process(pid: i32) -> Option<Row> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    row(pid, &String::from_utf8_lossy(&stat))
}

/// Parses a line of `/proc/PID/stat`. The name, in brackets, may itself contain brackets and spaces.
fn row(pid: i32, stat: &str) -> Option<Row> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Row {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pid: i32, parent: i32, group: i32) -> Row {
        Row {
            pid,
            parent,
            group,
            dead: false,
            started: 0,
        }
    }

    fn pids(rows: &[Row]) -> Vec<i32> {
        members(rows, 20, 10, Some(11))
            .into_iter()
            .map(|row| row.pid)
            .collect()
    }

    #[test]
    fn a_job_is_its_group_and_all_descendants() {
        let rows = [
            at(1, 0, 1),
            at(10, 1, 10),  // palisade
            at(11, 10, 11), // its watchdog
            at(20, 10, 20), // the command
            at(21, 20, 20), // its child
            at(22, 21, 22), // which left the group
            at(23, 10, 23), // an orphan that palisade adopted
            at(24, 1, 20),  // in the group, adopted by another process
            at(30, 1, 30),  // unrelated
        ];
        assert_eq!(pids(&rows), [20, 21, 22, 23, 24]);
    }

    #[test]
    fn the_dead_do_not_count() {
        let rows = [
            at(10, 1, 10),
            Row {
                dead: true,
                ..at(20, 10, 20)
            },
        ];
        assert_eq!(pids(&rows), [0; 0]);
    }

    #[test]
    fn a_cycle_in_the_list_ends() {
        assert_eq!(pids(&[at(40, 41, 40), at(41, 40, 41)]), [0; 0]);
    }

    #[test]
    fn a_name_may_contain_brackets_and_spaces() {
        let mut line = "77 (a) b (c) S 3 5 6 0 -1".to_owned();
        line.push_str(&" 1".repeat(13));
        line.push_str(" 424242 9 9");
        assert_eq!(
            row(77, &line),
            Some(Row {
                pid: 77,
                parent: 3,
                group: 5,
                dead: false,
                started: 424_242
            })
        );
        assert_eq!(row(77, "77 (cut"), None);
    }

    #[test]
    fn this_process_is_found() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(
            processes()
                .unwrap()
                .iter()
                .any(|row| row.pid == me && !row.dead)
        );
    }
}

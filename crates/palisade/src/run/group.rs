//! All processes of a job: its process group, and descendants that have left the group.
//!
//! palisade adopts orphaned descendants (PR_SET_CHILD_SUBREAPER): if a process's parent ends, the process becomes
//! palisade's own child and can still be found, also after `setsid`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal};

/// A process as `/proc` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessRow {
    pub(super) pid: i32,
    pub(super) parent: i32,
    group: i32,
    session: i32,
    /// Every thread of it has ended, and it is not yet reaped.
    dead: bool,
    /// The start time since boot; together with the process id it identifies a process for ever.
    pub(super) started: u64,
}

impl ProcessRow {
    /// Signals this very process, and no other one that has its number meanwhile.
    pub(super) fn signal(&self, signal: Signal) {
        signal_one(self.pid, signal, |now| now.started == self.started);
    }
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
            row.signal(signal);
        }
    }

    /// The live processes of the job; `None` if `/proc` does not list them.
    pub(super) fn rows(self) -> Option<Vec<ProcessRow>> {
        let rows = processes()?;
        Some(self.of(&rows, None).into_iter().cloned().collect())
    }

    /// Whether a process is in the group itself.
    pub(super) fn contains(self, row: &ProcessRow) -> bool {
        row.group == self.raw()
    }

    /// Whether any process of the job is alive.
    pub(super) fn is_alive(self, watchdog: Option<Pid>) -> bool {
        match processes() {
            Some(rows) => !self.of(&rows, watchdog).is_empty(),
            None => rustix::process::test_kill_process_group(self.leader).is_ok(),
        }
    }

    /// The processes of the job for a message: a few of them with their names, and the number of the others.
    pub(super) fn names(self, watchdog: Option<Pid>) -> Vec<String> {
        let rows = processes().unwrap_or_default();
        let members = self.of(&rows, watchdog);
        named(&members)
    }

    fn raw(self) -> i32 {
        self.leader.as_raw_nonzero().get()
    }

    fn of(self, rows: &[ProcessRow], watchdog: Option<Pid>) -> Vec<&ProcessRow> {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        members(
            rows,
            self.raw(),
            me,
            watchdog.map(|pid| pid.as_raw_nonzero().get()),
        )
    }
}

/// A few of the processes with their names, and the number of the others.
pub(super) fn named(members: &[&ProcessRow]) -> Vec<String> {
    let few = members.iter().take(NAMED);
    let mut names: Vec<String> = few.map(|row| name(row.pid)).collect();
    if members.len() > NAMED {
        names.push(format!("{} more", members.len() - NAMED));
    }
    names
}

/// The name and number of a process, as ps(1) prints them.
fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name: String = name
        .trim_end()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    format!("{name} (process {pid})")
}

/// How many processes a message names.
const NAMED: usize = 5;

/// Whether no process outside a group could continue it after a stop: none of its members has a parent in another group
/// of its session. The kernel lets such a group neither stop for the terminal nor wait for it.
pub(super) fn is_orphaned(group: Pid) -> bool {
    let rows = processes().unwrap_or_default();
    has_no_shell(&rows, group.as_raw_nonzero().get())
}

fn has_no_shell(rows: &[ProcessRow], group: i32) -> bool {
    let by_pid: BTreeMap<i32, &ProcessRow> = rows.iter().map(|row| (row.pid, row)).collect();
    let in_group = rows.iter().filter(|row| row.group == group);
    let mut parents = in_group.filter_map(|row| Some((row, by_pid.get(&row.parent)?)));
    !parents.any(|(row, parent)| parent.session == row.session && parent.group != group)
}

/// A process that was killed. The processes that its descendants started in other groups are now children of `reaper`,
/// which adopts orphans.
#[derive(Clone, Copy, Debug)]
pub(super) struct KilledParent {
    killed: Pid,
    /// The start time of that process. Its descendants are younger.
    started: u64,
}

impl KilledParent {
    /// Of this process's parent, while it is alive.
    pub(super) fn of_parent() -> Option<KilledParent> {
        let killed = rustix::process::getppid()?;
        let started = process(killed.as_raw_nonzero().get())?.started;
        Some(KilledParent { killed, started })
    }

    /// Whether it is certain that nothing of the job is alive, neither in its group nor elsewhere. Whether an orphan of
    /// the same age belonged to the job is not to be known, so it counts as if it had, unless its cgroup is another.
    pub(super) fn job_is_gone(self, group: Option<Pid>) -> bool {
        let reaper = rustix::process::getppid();
        let Some(rows) = processes().filter(|_| reaper != Some(self.killed)) else {
            return false;
        };
        let (me, cgroup) = (rustix::process::getpid(), cgroup("self"));
        // A parent outside of this process's namespace is 0 there.
        let number = |pid: Option<Pid>| pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let perhaps_of_job = perhaps_of_job(&rows, number(group), number(reaper), self.started);
        !perhaps_of_job.iter().any(|row| {
            let ours = group.is_some() && row.group == number(group);
            row.pid != number(Some(me)) && (ours || self::cgroup(&row.pid.to_string()) == cgroup)
        })
    }
}

/// The live processes of a group, and the children of the reaper that are not older.
fn perhaps_of_job(rows: &[ProcessRow], group: i32, reaper: i32, started: u64) -> Vec<&ProcessRow> {
    let alive = rows.iter().filter(|row| !row.dead);
    let orphan = |row: &ProcessRow| row.parent == reaper && row.started >= started;
    alive
        .filter(|row| (group != 0 && row.group == group) || orphan(row))
        .collect()
}

fn cgroup(pid: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

/// The live processes that are in the group or descend from `me`, without `me` and its watchdog.
fn members(rows: &[ProcessRow], group: i32, me: i32, watchdog: Option<i32>) -> Vec<&ProcessRow> {
    let parents: BTreeMap<i32, i32> = rows.iter().map(|row| (row.pid, row.parent)).collect();
    let is_ours = |row: &&ProcessRow| {
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
fn signal_one(pid: i32, signal: Signal, is_it: impl Fn(&ProcessRow) -> bool) {
    let Some(descriptor) = Pid::from_raw(pid)
        .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    if process(pid).is_some_and(|now| is_it(&now)) {
        let _ = rustix::process::pidfd_send_signal(descriptor, signal);
    }
}

/// A process of the job outside its group, as a number for the watchdog: its process id, and the end of its start time.
pub(super) fn as_number(row: &ProcessRow) -> u64 {
    assert!(row.pid > 0, "{} is no process id", row.pid);
    u64::from(row.pid.unsigned_abs()) | (row.started << 32)
}

/// Kills the process of such a number.
pub(super) fn kill_numbered(number: u64) {
    match i32::try_from(number & u64::from(u32::MAX)) {
        Ok(pid @ 1..) => signal_one(pid, Signal::KILL, |now| as_number(now) == number),
        _ => unreachable!("{number} is not the number of a process outside the job's group"),
    }
}

/// Whether this process can list those of its job.
pub(super) fn sees_processes() -> bool {
    processes().is_some()
}

fn processes() -> Option<Vec<ProcessRow>> {
    // Another namespace's /proc has other processes under the same numbers.
    let me = rustix::process::getpid().as_raw_nonzero().to_string();
    if fs::read_link("/proc/self").ok()? != Path::new(&me) {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Some(pids.filter_map(process).collect())
}

fn process(pid: i32) -> Option<ProcessRow> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    row(pid, &String::from_utf8_lossy(&stat))
}

/// Parses a line of `/proc/PID/stat`. The name, in brackets, may itself contain brackets and spaces.
fn row(pid: i32, stat: &str) -> Option<ProcessRow> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(ProcessRow {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        // The line is that of the first thread, which may have ended before the others.
        dead: matches!(*fields.first()?, "Z" | "X")
            && fields
                .get(17)?
                .parse()
                .is_ok_and(|threads: u32| threads < 2),
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pid: i32, parent: i32, group: i32) -> ProcessRow {
        ProcessRow {
            pid,
            parent,
            group,
            session: group,
            dead: false,
            started: 0,
        }
    }

    fn pids(rows: &[ProcessRow]) -> Vec<i32> {
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
            ProcessRow {
                dead: true,
                ..at(20, 10, 20)
            },
        ];
        assert_eq!(pids(&rows), [0; 0]);
    }

    #[test]
    fn a_group_without_a_parent_in_its_session_is_orphaned() {
        let in_session = |row: ProcessRow, session| ProcessRow { session, ..row };
        let shell = in_session(at(5, 1, 5), 5);
        let rows = [
            shell.clone(),
            in_session(at(20, 5, 20), 5),
            in_session(at(21, 20, 20), 5),
        ];
        assert!(!has_no_shell(&rows, 20), "the shell is there");
        assert!(has_no_shell(&rows[1..], 20), "the shell has ended");
        let adopted = in_session(at(5, 1, 5), 4);
        assert!(has_no_shell(&[adopted, rows[1].clone()], 20));
    }

    #[test]
    fn young_orphans_and_the_group_may_be_of_the_job() {
        let aged = |row: ProcessRow, started| ProcessRow { started, ..row };
        let rows = [
            aged(at(30, 1, 20), 90),  // in the group, whatever its age
            aged(at(31, 1, 31), 100), // as old as the killed process
            aged(at(32, 1, 32), 99),  // older
            aged(at(33, 31, 33), 105),
            ProcessRow {
                dead: true,
                ..aged(at(34, 1, 34), 105)
            },
        ];
        let pids: Vec<i32> = perhaps_of_job(&rows, 20, 1, 100)
            .iter()
            .map(|row| row.pid)
            .collect();
        assert_eq!(pids, [30, 31]);
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
            Some(ProcessRow {
                pid: 77,
                parent: 3,
                group: 5,
                session: 6,
                dead: false,
                started: 424_242
            })
        );
        assert_eq!(row(77, "77 (cut"), None);
    }

    #[test]
    fn a_process_is_dead_when_its_last_thread_is() {
        let line = |threads: u32| {
            let before = "1 ".repeat(11);
            format!("77 (a) Z 3 5 6 0 -1 {before}{threads} 1 424242 9")
        };
        assert!(row(77, &line(1)).unwrap().dead);
        assert!(!row(77, &line(2)).unwrap().dead);
    }

    #[test]
    fn a_number_names_one_process() {
        let row = ProcessRow {
            started: (7 << 32) + 424_242,
            ..at(77, 1, 77)
        };
        assert_eq!(as_number(&row), (424_242 << 32) + 77);
    }

    #[test]
    #[should_panic(expected = "is not the number of a process")]
    fn nothing_else_is_killed_by_its_number() {
        kill_numbered(7 << 32);
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

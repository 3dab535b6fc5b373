//! The threads of a job, as `/proc` shows them while the job is stopped.
//!
//! SIGSTOP is a request. A thread has stopped when its state is `T`, or `t` under a tracer, and a process that forks may
//! leave a child behind that the list of processes had not. So the job counts as stopped when two lists in a row agree:
//! the same processes, the same threads, all of them stopped, and none of them on a processor in between. A stopped
//! process starts no other, so whatever a process of the first list had started is in the second one.
//!
//! Linux counts how often a thread has left the processor. A thread that somebody continued and stopped again has left it
//! once more, so it is found even if nobody looked while it ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Signal;

use super::group::{self, Group, ProcessRow};
use super::watchdog;

/// A job that is being stopped, or is stopped.
pub(super) struct StoppedJob {
    group: Group,
    rows: Vec<ProcessRow>,
    threads: Threads,
    /// The processes that somebody else had stopped before: they stay stopped.
    before: BTreeSet<i32>,
    /// The processes with a thread that was in the kernel at the last look and the one before, and nowhere else between.
    stuck: BTreeSet<i32>,
}

/// By the numbers of process and thread.
type Threads = BTreeMap<(i32, i32), Thread>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    state: State,
    /// How often it has left the processor.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Stopped,
    Dead,
    /// It waits inside the kernel and cannot be stopped: for a disk, or for a child that vfork(2) has started.
    InKernel,
    Runs,
}

impl Thread {
    fn is_at_rest(&self) -> bool {
        matches!(self.state, State::Stopped | State::Dead)
    }
}

/// Whether every thread of a process has stopped.
fn is_at_rest(threads: &Threads, pid: i32) -> bool {
    let mut its = threads.range((pid, 0)..=(pid, i32::MAX));
    its.all(|(_, thread)| thread.is_at_rest())
}

impl StoppedJob {
    /// Sends SIGSTOP to the whole job.
    pub(super) fn begin(group: Group) -> StoppedJob {
        let rows = list(group).unwrap_or_default();
        let threads = read(&rows);
        let pids = rows.iter().map(|row| row.pid);
        let before = pids.filter(|pid| is_at_rest(&threads, *pid));
        let stopped = StoppedJob {
            group,
            before: before.collect(),
            stuck: BTreeSet::new(),
            threads: Threads::new(),
            rows,
        };
        stopped.stop();
        stopped
    }

    /// Whether the job is seen stopped, now and the time before.
    pub(super) fn is_seen(&mut self) -> bool {
        let Some(rows) = list(self.group) else {
            return false;
        };
        let threads = read(&rows);
        let seen = threads.values().all(Thread::is_at_rest)
            && rows == self.rows
            && threads == self.threads;
        let stayed = threads.iter().filter(|(at, thread)| {
            thread.state == State::InKernel && self.threads.get(at) == Some(thread)
        });
        self.stuck = stayed.map(|((pid, _), _)| *pid).collect();
        (self.rows, self.threads) = (rows, threads);
        seen && !self.rows.is_empty()
    }

    /// Sends SIGSTOP again, to what was started meanwhile, but lets the children of a stuck process go on.
    pub(super) fn insist(&self) {
        if !self.rows.iter().any(|row| self.is_awaited(row)) {
            return self.stop();
        }
        for row in &self.rows {
            if !self.is_awaited(row) {
                row.signal(Signal::STOP);
            } else if self.is_at_rest(row.pid) {
                row.signal(Signal::CONT);
            }
        }
    }

    /// Whether a thread in the kernel may wait for this process to execute a program.
    fn is_awaited(&self, row: &ProcessRow) -> bool {
        self.stuck.contains(&row.parent) && !self.before.contains(&row.pid)
    }

    fn is_at_rest(&self, pid: i32) -> bool {
        is_at_rest(&self.threads, pid)
    }

    fn stop(&self) {
        self.group.signal(Signal::STOP);
        for row in self.outside() {
            row.signal(Signal::STOP);
        }
    }

    /// The process that has run since it was last seen stopped, or has ended. While `settling` it may have left the
    /// processor once more: a thread counts as stopped shortly before it leaves for good.
    pub(super) fn has_changed(&mut self, settling: bool) -> Option<i32> {
        for ((pid, number), then) in &mut self.threads {
            match thread(*pid, *number) {
                Some(now) if now == *then => {}
                Some(now) if settling && now.state == then.state => *then = now,
                _ => return Some(*pid),
            }
        }
        None
    }

    /// Sends SIGCONT, to children before their parents: a shell that looks after its jobs must not find them stopped.
    /// A process that was stopped before stays so, and the group too if `group_stays`.
    pub(super) fn go_on(&self, group_stays: bool) {
        for row in self.rows.iter().rev() {
            let stays = group_stays && self.group.contains(row);
            if !stays && !self.before.contains(&row.pid) {
                row.signal(Signal::CONT);
            }
        }
    }

    /// The processes that are not stopped, for a message.
    pub(super) fn unstopped(&self) -> String {
        let rows = self.rows.iter().filter(|row| !self.is_at_rest(row.pid));
        group::named(&rows.collect::<Vec<_>>()).join(", ")
    }

    /// How many processes it has.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Its processes outside the group.
    pub(super) fn outside(&self) -> impl Iterator<Item = &ProcessRow> {
        self.rows.iter().filter(|row| !self.group.contains(row))
    }

    /// The same as numbers for the watchdog.
    pub(super) fn numbers_outside(&self) -> Vec<u64> {
        self.outside().map(group::as_number).collect()
    }
}

fn list(group: Group) -> Option<Vec<ProcessRow>> {
    let mut rows = group.rows()?;
    rows.retain(|row| !watchdog::is_one(row.pid));
    Some(rows)
}

/// The threads of these processes. What has ended meanwhile is missing, and the next list differs.
fn read(rows: &[ProcessRow]) -> Threads {
    let mut threads = Threads::new();
    for row in rows {
        let Ok(entries) = fs::read_dir(format!("/proc/{}/task", row.pid)) else {
            continue;
        };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let found =
            numbers.filter_map(|number| Some(((row.pid, number), thread(row.pid, number)?)));
        threads.extend(found);
    }
    threads
}

fn thread(pid: i32, number: i32) -> Option<Thread> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{number}/status")).ok()?;
    parse(&status)
}

fn parse(status: &str) -> Option<Thread> {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let count = |name: &str| value(name).and_then(|value| value.trim().parse::<u64>().ok());
    let state = match value("State:")?.trim_start().chars().next()? {
        'T' | 't' => State::Stopped,
        'Z' | 'X' => State::Dead,
        'D' => State::InKernel,
        _ => State::Runs,
    };
    let voluntary = count("voluntary_ctxt_switches:").unwrap_or(0);
    let involuntary = count("nonvoluntary_ctxt_switches:").unwrap_or(0);
    let left = voluntary.saturating_add(involuntary);
    Some(Thread { state, left })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whether_a_thread_is_stopped_and_how_often_it_left() {
        let status = |state: &str| {
            format!(
                "Name:\tState: R\nState:\t{state}\nThreads:\t2\nvoluntary_ctxt_switches:\t40\n\
                 nonvoluntary_ctxt_switches:\t2\n"
            )
        };
        for (text, state) in [
            ("T (stopped)", State::Stopped),
            ("t (tracing stop)", State::Stopped),
            ("Z (zombie)", State::Dead),
            ("D (disk sleep)", State::InKernel),
            ("S (sleeping)", State::Runs),
            ("R (running)", State::Runs),
        ] {
            let thread = Thread { state, left: 42 };
            assert_eq!(parse(&status(text)), Some(thread), "{text}");
        }
        assert_eq!(parse("Name:\tx\n"), None);
    }
}

//! The command's process, and the children that palisade reaps.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::deadline::JobProcesses;
use super::group::Group;
use super::sys::BeforeExec;
use super::watchdog::Watchdog;

/// Variables with this prefix are ours and are not passed on: they may be secrets (the lease's, a password in an
/// address) or belong to another lock.
const OURS: &str = "PALISADE_";

/// The log level also applies to a palisade in the job.
const INHERITED: &str = "PALISADE_LOG";

/// A command with this environment; of our own variables it gets no others.
pub(super) fn command(program: &OsString, environment: &[(&'static str, String)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name != INHERITED && name.as_encoded_bytes().starts_with(OURS.as_bytes()) {
            command.env_remove(name);
        }
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// Starts the job in a process group of its own, or in a session of its own; it dies with this process.
pub(super) fn start(
    mut command: Command,
    watchdog: &Watchdog,
    foreground: Option<OwnedFd>,
    own_session: bool,
) -> io::Result<Pid> {
    if !own_session {
        command.process_group(0);
    }
    let parent = rustix::process::getpid();
    BeforeExec {
        parent,
        watchdog: watchdog.pipe()?,
        foreground,
        own_session,
    }
    .attach(&mut command);
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a process id out of range"))
}

/// The state of palisade's children.
pub(super) struct Children {
    leader: Pid,
    group: Group,
    /// The command's exit status, once it has ended.
    status: Option<u8>,
    /// It died of SIGINT.
    interrupted: bool,
    /// Reaped descendants whose own parents had ended.
    orphans: u32,
}

/// The result of reaping.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// The command was stopped by this signal.
    pub(super) stopped: Option<Signal>,
    /// The watchdog has ended.
    pub(super) watchdog_ended: bool,
}

impl Children {
    pub(super) fn new(leader: Pid) -> Children {
        Children {
            leader,
            group: Group::new(leader),
            status: None,
            interrupted: false,
            orphans: 0,
        }
    }

    pub(super) fn group(&self) -> Group {
        self.group
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// The command's exit status, once it has ended.
    pub(super) fn status(&self) -> Option<u8> {
        self.status
    }

    /// Whether the command died of SIGINT; one that handles it ends in another way.
    pub(super) fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    pub(super) fn orphans(&self) -> u32 {
        self.orphans
    }

    /// Reaps all children that have ended or stopped, without waiting.
    pub(super) fn reap(&mut self, watchdog: Option<Pid>) -> Reaped {
        let mut reaped = Reaped::default();
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = rustix::process::wait(options) {
            if status.stopped() {
                if pid == self.leader {
                    reaped.stopped = status.stopping_signal().and_then(Signal::from_named_raw);
                }
            } else if pid == self.leader {
                self.status = Some(exit_status(status));
                self.interrupted = status.terminating_signal() == Some(Signal::INT.as_raw());
            } else if Some(pid) == watchdog {
                reaped.watchdog_ended = true;
            } else {
                self.orphans += 1;
            }
        }
        reaped
    }

    /// The state of the job.
    pub(super) fn job(&self, watchdog: Option<Pid>) -> JobProcesses {
        match self.status {
            None => JobProcesses::Runs,
            Some(_) if self.group.is_alive(watchdog) => JobProcesses::Leftovers,
            Some(_) => JobProcesses::Gone,
        }
    }
}

/// The status as shells report it: 128 + n for an end by signal n.
fn exit_status(status: WaitStatus) -> u8 {
    let raw = status
        .exit_status()
        .or(status.terminating_signal().map(|signal| 128 + signal));
    // The kernel reports only values below 256 here.
    raw.and_then(|raw| u8::try_from(raw).ok())
        .unwrap_or(u8::MAX)
}

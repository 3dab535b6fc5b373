//! The unsafe part: the code that runs in the job's process between fork and exec, the signal mask, and the names of users.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal};

use super::watchdog;

/// Runs in the job's process before it executes the command.
pub(super) struct BeforeExec {
    /// The parent that it must still have.
    pub(super) parent: Pid,
    /// The pipe that tells the watchdog which group to kill, before any code of the job runs.
    pub(super) watchdog: OwnedFd,
    /// The terminal whose foreground it takes.
    pub(super) foreground: Option<OwnedFd>,
    /// Whether it begins a session, and with it its group.
    pub(super) own_session: bool,
}

impl BeforeExec {
    /// Makes `command` do this before exec.
    pub(super) fn attach(self, command: &mut Command) {
        // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed. `prepare`
        // makes plain system calls on values that were created before the fork; it allocates nothing, takes no
        // lock, and builds its errors from an error number.
        unsafe { command.pre_exec(move || self.prepare()) };
    }

    fn prepare(&self) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The signal does not come for a parent that died before that call.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if self.own_session {
            rustix::process::setsid()?;
        }
        let group = rustix::process::getpid();
        rustix::io::write(&self.watchdog, &watchdog::group_message(group))?;
        if let Some(terminal) = &self.foreground {
            // Not a reason to fail: without it the job runs in the background of its terminal.
            let _ = set_foreground(terminal.as_fd(), group);
        }
        Ok(())
    }
}

/// Lets `command` begin in a session of its own, away from the terminal's signals and from signals to whole groups.
///
/// The fork of this process has its handlers of signals, so that none ends it before it has left the group.
pub(super) fn begin_session(command: &mut Command) {
    // SAFETY: the closure makes one system call, which is async-signal-safe; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
}

/// The name of a user by the system's directories of users, which may be on other machines and take any time.
pub(super) fn user_name(uid: u32) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 16 << 10];
    // SAFETY: all zeroes is a value of the plain structure. The buffer is as long as the call is told, and outlives `user`,
    // whose strings are in it and end with a zero.
    unsafe {
        let mut user: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        let length = buffer.len();
        let failed = libc::getpwuid_r(uid, &mut user, buffer.as_mut_ptr(), length, &mut found);
        if failed != 0 || found.is_null() || user.pw_name.is_null() {
            return None;
        }
        Some(std::ffi::CStr::from_ptr(user.pw_name).to_bytes().to_vec())
    }
}

/// This process's group; `None` if its leader is outside of this process's namespace, where `unshare --pid --fork` and
/// sandboxes leave it. The kernel calls such a group 0, which rustix takes for impossible.
pub(super) fn own_group() -> Option<Pid> {
    // SAFETY: the call takes nothing, changes nothing and cannot fail.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Lets SIGTTIN stop this process, and those that it starts, also where it was ignored when this process started.
pub(super) fn obey_ttin() {
    // SAFETY: the default disposition has no handler, and the call cannot fail for this signal.
    unsafe { libc::signal(libc::SIGTTIN, libc::SIG_DFL) };
}

/// Sends SIGINT to this process and its group, with the default disposition here. Returns only where SIGINT is blocked.
pub(super) fn interrupt_own_group() {
    // SAFETY: the default disposition has no handler, and neither call touches memory of this process.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        libc::kill(0, libc::SIGINT);
    }
}

/// Makes `group` the foreground group of the terminal.
///
/// A background process that does this gets SIGTTOU, which stops it unless it is blocked.
pub(super) fn set_foreground(terminal: BorrowedFd<'_>, group: Pid) -> io::Result<()> {
    let before = mask_ttou(libc::SIG_BLOCK, None)?;
    let set = rustix::termios::tcsetpgrp(terminal.as_fd(), group);
    mask_ttou(libc::SIG_SETMASK, Some(before))?;
    Ok(set?)
}

/// Blocks SIGTTOU, or restores the mask `restore`; returns the previous mask.
fn mask_ttou(how: libc::c_int, restore: Option<libc::sigset_t>) -> io::Result<libc::sigset_t> {
    // SAFETY: a signal set is plain data for which all zeroes is a value, `sigemptyset` and `sigaddset`
    // initialise it, and both pointers are to live locals. All three are async-signal-safe.
    unsafe {
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTTOU);
        let set = restore.unwrap_or(set);
        match libc::pthread_sigmask(how, &set, &mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

//! The unsafe part: what happens in the job's process between fork and exec, and the one signal mask.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal};

use super::watchdog;

/// What the job's process does to itself before it becomes the command.
pub(super) struct BeforeExec {
    /// Whose child it must be.
    pub(super) parent: Pid,
    /// Where the watchdog hears which group it is to kill; before any of the job's code runs.
    pub(super) watchdog: OwnedFd,
    /// Take the terminal on standard input.
    pub(super) foreground: bool,
}

impl BeforeExec {
    /// Makes `command` do it.
    pub(super) fn attach(self, command: &mut Command) {
        // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed.
        // `carry_out` makes plain system calls on values that were made before the fork; it allocates
        // nothing, takes no lock, and its errors are made of an error number.
        unsafe { command.pre_exec(move || self.carry_out()) };
    }

    fn carry_out(&self) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before that call is not told of by the signal.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let group = rustix::process::getpid();
        rustix::io::write(&self.watchdog, &watchdog::group_message(group))?;
        if self.foreground {
            // Not worth failing for: without it the job runs in the background of its terminal.
            let _ = set_foreground(rustix::stdio::stdin(), group);
        }
        Ok(())
    }
}

/// Makes `group` the one that the terminal talks to.
///
/// A process in the background that does this is sent SIGTTOU, which stops it, unless that is blocked.
pub(super) fn set_foreground(terminal: BorrowedFd<'_>, group: Pid) -> io::Result<()> {
    let before = mask_ttou(libc::SIG_BLOCK, None)?;
    let set = rustix::termios::tcsetpgrp(terminal.as_fd(), group);
    mask_ttou(libc::SIG_SETMASK, Some(before))?;
    Ok(set?)
}

/// Blocks SIGTTOU, or puts the mask `restore` back; gives the mask from before.
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

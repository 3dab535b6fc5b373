//! The controlling terminal: the job has its foreground while it runs, or from when it asks for it.
//!
//! ```text
//!   palisade run x -- vim               standard input is the terminal: the job has it from the start
//!   … | palisade run x -- less          the terminal is palisade's and its pipeline's; when the job is
//!                                       stopped because it reads /dev/tty, it gets the terminal
//!   palisade run x -- less &            it is the shell's: palisade stops, as less alone would, until `fg`
//! ```
//!
//! The kind of standard input says nothing about `/dev/tty`, where less, ssh and sudo ask their questions.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

use rustix::process::Pid;

use super::sys;

/// A terminal that can be given to the job.
#[derive(Debug)]
pub(super) struct Terminal {
    device: OwnedFd,
    /// palisade's own process group, which gets the terminal back. Without it the job never gets the terminal.
    ours: Option<Pid>,
    given: bool,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(super) fn find() -> Option<Terminal> {
        let terminal = Terminal {
            device: controlling()?,
            ours: sys::own_group(),
            given: false,
        };
        if terminal.is_ours() {
            // bash ignores SIGTTIN in `$(…)`, and the job inherits that: its read of the terminal would fail at once,
            // instead of stopping it so that it gets the terminal.
            sys::obey_ttin();
        }
        Some(terminal)
    }

    /// Whether the job may have the terminal from the start. Not in a pipeline, `palisade run … | less`: there the
    /// terminal also belongs to the other processes of palisade's group; and not if standard input is something else,
    /// as in a script that goes on beside palisade. Such a job gets it when it asks.
    pub(super) fn is_free(&self) -> bool {
        self.is_ours() && io::stdin().is_terminal() && !is_pipe(io::stdout())
    }

    /// Another handle of it, for the job's process.
    pub(super) fn device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Records that the job has taken the terminal.
    pub(super) fn was_given(&mut self) {
        self.given = true;
    }

    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Gives the terminal to the job if palisade has it, and says whether the job has it now.
    pub(super) fn give(&mut self, group: Pid) -> bool {
        self.given |= self.is_ours() && sys::set_foreground(self.device.as_fd(), group).is_ok();
        self.given
    }

    /// Takes the terminal back.
    pub(super) fn take_back(&mut self) {
        if let Some(ours) = self.ours.filter(|_| self.given) {
            self.given = false;
            // Fails only if the terminal has hung up.
            let _ = sys::set_foreground(self.device.as_fd(), ours);
        }
    }

    /// Whether palisade is in the foreground.
    fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.device).is_ok_and(|group| Some(group) == self.ours)
    }
}

/// `/dev/tty` is the controlling terminal, wherever the standard streams lead. Where it is not there (a bare `/dev`),
/// standard input may still be the terminal.
fn controlling() -> Option<OwnedFd> {
    let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    match options.open("/dev/tty") {
        Ok(device) => Some(device.into()),
        Err(_) if io::stdin().is_terminal() => io::stdin().as_fd().try_clone_to_owned().ok(),
        Err(_) => None,
    }
}

fn is_pipe(stream: impl AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    let metadata = file.and_then(|file| file.metadata());
    metadata.is_ok_and(|metadata| metadata.file_type().is_fifo())
}

//! The terminal on standard input: the job has the foreground while it runs.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;

use rustix::process::Pid;

use super::sys;

/// A terminal that can be given to the job.
#[derive(Debug)]
pub(super) struct Terminal {
    /// palisade's own process group, which gets the terminal back.
    ours: Pid,
    given: bool,
}

impl Terminal {
    /// The terminal on standard input, if there is one.
    pub(super) fn find() -> Option<Terminal> {
        let ours = rustix::process::getpgrp();
        io::stdin()
            .is_terminal()
            .then_some(Terminal { ours, given: false })
    }

    /// Whether the job may have the terminal from the start. Not in a pipeline, `palisade run … | less`: there
    /// the terminal also belongs to the other processes of palisade's group.
    pub(super) fn is_free(&self) -> bool {
        self.is_ours() && !is_pipe(io::stdout())
    }

    /// Records that the job has taken the terminal.
    pub(super) fn was_given(&mut self) {
        self.given = true;
    }

    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Gives the terminal to the job if palisade has it.
    pub(super) fn give(&mut self, group: Pid) {
        if self.is_ours() && sys::set_foreground(rustix::stdio::stdin(), group).is_ok() {
            self.given = true;
        }
    }

    /// Takes the terminal back.
    pub(super) fn take_back(&mut self) {
        if self.given {
            self.given = false;
            // Fails only if the terminal has hung up.
            let _ = sys::set_foreground(rustix::stdio::stdin(), self.ours);
        }
    }

    /// Whether palisade is in the foreground.
    fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(rustix::stdio::stdin()).is_ok_and(|group| group == self.ours)
    }
}

fn is_pipe(stream: impl AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    let metadata = file.and_then(|file| file.metadata());
    metadata.is_ok_and(|metadata| metadata.file_type().is_fifo())
}

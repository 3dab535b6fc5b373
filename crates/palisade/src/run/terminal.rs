//! The terminal on standard input: while the job runs, it talks to the job.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;

use rustix::process::Pid;

use super::sys;

/// A terminal that can be handed over.
#[derive(Debug)]
pub(super) struct Terminal {
    /// palisade's own group, which gets it back.
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

    /// Whether the job gets it from the start. Not in a pipeline, `palisade run … | less`: there the
    /// terminal belongs to the others of palisade's group as well.
    pub(super) fn is_free(&self) -> bool {
        self.is_ours() && !is_pipe(io::stdout())
    }

    /// The job has taken it.
    pub(super) fn was_given(&mut self) {
        self.given = true;
    }

    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Hands it to the job if it is ours to give.
    pub(super) fn give(&mut self, group: Pid) {
        if self.is_ours() && sys::set_foreground(rustix::stdio::stdin(), group).is_ok() {
            self.given = true;
        }
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self) {
        if self.given {
            self.given = false;
            // A terminal that has hung up has nobody to talk to.
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

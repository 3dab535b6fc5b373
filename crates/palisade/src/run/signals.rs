//! The signals that palisade passes on.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that terminate a program by default; watched from the start, so that they can end a wait.
pub(super) const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// The other signals that a job may handle.
const PASSED_ON: [Signal; 5] = [
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// A stream of incoming signals.
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Watches the terminating signals.
    pub(super) fn ending() -> io::Result<Signals> {
        let mut signals = Signals {
            streams: Vec::new(),
        };
        signals.watch(&ENDING)?;
        Ok(signals)
    }

    /// Watches the other signals too, including SIGCHLD.
    pub(super) fn watch_all(&mut self) -> io::Result<()> {
        self.watch(&PASSED_ON)?;
        self.watch(&[Signal::CHILD])
    }

    /// Signals that were ignored at the start (`nohup`, a shell's `&`) stay ignored, here and in the job.
    fn watch(&mut self, signals: &[Signal]) -> io::Result<()> {
        let ignored = ignored();
        for &wanted in signals {
            let is_ignored = ignored >> (wanted.as_raw() - 1) & 1 == 1;
            if is_ignored && wanted != Signal::CHILD {
                continue;
            }
            self.streams
                .push((wanted, signal(SignalKind::from_raw(wanted.as_raw()))?));
        }
        Ok(())
    }

    /// The next signal. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The mask of the signals that this process ignores; none if the kernel does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

//! A worker's messages to the director.

use std::io::{self, Write as _};

use palisade_client::clock::{BootClock, Clock as _};

use crate::chaos::event::{WorkerLine, WorkerStep};
use crate::chaos::kind::LockKind;

/// Sends one line to the director at once. If the director is gone, there is nothing to do.
pub(super) fn say(lane: usize, kind: LockKind, token: Option<u64>, what: WorkerStep) {
    let said = WorkerLine {
        lane,
        kind,
        own_ns: BootClock.now().as_nanos(),
        token,
        what,
    };
    let Ok(mut line) = serde_json::to_vec(&said) else {
        return;
    };
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

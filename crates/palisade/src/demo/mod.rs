//! `palisade demo`: the story of the paused holder with real processes, drawn from their records.
//!
//! ```text
//!   acts: three, each with a retry ─► environment: serve, store, network, workers  (processes of this program)
//!                                driver: runs the schedule, from event to event
//!                                │  workers, network and a watcher of the lock service report
//!                                ▼
//!                                recorder ─► schedule: did it happen as planned? ─► timeline: the picture
//!                                                                                └► report: what was lost
//! ```
//!
//! Text and picture show only recorded events. If the recorded times of an act do not follow the schedule, the act
//! is reported as inconclusive and proves nothing.

mod acts;
mod authority;
mod clock;
mod driver;
mod environment;
mod error;
mod http;
mod network;
mod process;
mod progress;
mod recorder;
mod report;
mod schedule;
mod settings;
mod timeline;
mod worker;

use std::fs;
use std::path::Path;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use error::Error;
pub(crate) use settings::{MAX_TTL, MIN_TTL, Settings};
pub(crate) use timeline::ActName;

/// Runs the acts, prints the events, and writes `palisade-demo.html` and `palisade-demo.svg`.
///
/// # Errors
/// Also when an act was inconclusive twice or had an unexpected result; the pictures are written in that case too.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    if !(MIN_TTL..=MAX_TTL).contains(&settings.ttl) {
        return Err(Error::Ttl(settings.ttl));
    }
    // Check this first: three acts take half a minute.
    prepare(&settings.out)?;
    // The kernel kills children when the thread that started them ends, so this thread has to start them.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            shown = acts::run_all(settings) => shown,
            _ = interrupt.recv() => Err(Error::Interrupted),
            _ = terminate.recv() => Err(Error::Interrupted),
        }
    })
}

/// The hidden command behind each worker.
///
/// # Errors
/// If the argument does not come from the demo.
pub(crate) fn work(part: &str) -> Result<(), Error> {
    Ok(worker::run(&serde_json::from_str(part)?)?)
}

/// Checks that the pictures can be written there. Leaves nothing behind and does not touch older pictures.
fn prepare(out: &Path) -> Result<(), Error> {
    let trial = out.join(format!(".palisade-demo-{}", std::process::id()));
    let written = fs::create_dir_all(out)
        .and_then(|()| fs::write(&trial, ""))
        .and_then(|()| fs::remove_file(&trial));
    written.map_err(|source| Error::Write {
        path: out.to_owned(),
        source,
    })
}

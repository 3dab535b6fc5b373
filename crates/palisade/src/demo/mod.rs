//! `palisade demo`: the story of the paused holder, told with real processes, and drawn from what was recorded.
//!
//! ```text
//!   acts: three, each with a retry ─► stage: serve, store, network, workers  (processes of this program)
//!                                story: the schedule, from event to event
//!                                │  workers, network and a watcher of the lock service tell
//!                                ▼
//!                                ledger ─► schedule: did it happen as planned? ─► timeline: the picture
//!                                                                              └► report: what was lost
//! ```
//!
//! Text and picture show only what was recorded. An act whose recorded times do not follow the schedule is reported as
//! inconclusive, and proves nothing.

mod acts;
mod authority;
mod clock;
mod http;
mod ledger;
mod network;
mod process;
mod progress;
mod report;
mod schedule;
mod stage;
mod story;
mod timeline;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use timeline::ActName;

/// What the command line says about a demonstration.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The acts to play; all three if empty.
    pub(crate) acts: Vec<ActName>,
    /// How long the leases last without renewal: [`MIN_TTL`] to [`MAX_TTL`].
    pub(crate) ttl: Duration,
    /// Where the pictures go; made if it is not there.
    pub(crate) out: PathBuf,
    /// Leave the data and the logs of all processes where they are.
    pub(crate) keep: bool,
    /// Print one JSON object instead of the account.
    pub(crate) json: bool,
}

/// Shorter, and a busy machine could not act in time.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(200);
/// Longer, and a run takes too long to watch.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);

/// Why the demo did not run, or did not show what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the demo takes a ttl of {MIN_TTL:?} – {MAX_TTL:?}, not {0:?}")]
    Ttl(Duration),
    #[error("cannot start `palisade {what}`: {why}")]
    Start { what: String, why: String },
    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "inconclusive: the act “{act}” did not take place as planned, twice: {why}; is the machine very busy? Try a longer --ttl"
    )]
    Inconclusive { act: &'static str, why: String },
    #[error("the act “{act}” did not end as it must: {headline}; this is a bug in Palisade")]
    Unexpected { act: &'static str, headline: String },
    #[error("interrupted; everything that was started is stopped")]
    Interrupted,
    #[error("`demo-worker` is started by `palisade demo` only: {0}")]
    Assignment(#[from] serde_json::Error),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl Error {
    fn start(what: &str, why: &str) -> Error {
        Error::Start {
            what: what.to_owned(),
            why: why.to_owned(),
        }
    }
}

/// Runs the acts, prints what happens, and writes `palisade-demo.html` and `palisade-demo.svg`.
///
/// # Errors
/// Also when an act was inconclusive twice, or ended otherwise than it must; the pictures are written then too.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    if !(MIN_TTL..=MAX_TTL).contains(&settings.ttl) {
        return Err(Error::Ttl(settings.ttl));
    }
    // Checked first: three acts take half a minute.
    prepare(&settings.out)?;
    // Children die with the thread that started them: it has to be this one.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            shown = acts::play_all(settings) => shown,
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
    Ok(worker::play(&serde_json::from_str(part)?)?)
}

/// Checks that a picture can be written there. Leaves nothing behind, and does not touch an older picture.
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

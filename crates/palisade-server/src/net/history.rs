//! The history beside the server.
//!
//! ```text
//!   recorder ──► batches of events ──► one thread: the ledger ──► history.redb
//!                     reports  ──────►                                  │
//!                     questions ◄── any thread, at any time ◄───────────┘
//! ```
//!
//! No answer of the authority waits for it. The recorder hands it one round of events at a time, so what it cannot take
//! stays in the ring; what leaves the ring unseen is a gap. If its disk takes nothing, the server says so and goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use palisade_core::{AuthorityId, Event};
use palisade_history::{Bounds, Ledger, Page, Query, Reader, Refusal as LateWrite, Why};
use palisade_pipeline::clock::wall;
use palisade_proto::Code;
use tokio::sync::oneshot;

use super::convert::Refusal;
use super::settings::{HistorySettings, Past};

/// The history, or nothing where it is switched off.
#[derive(Debug, Default)]
pub(super) struct History(Option<Open>);

#[derive(Debug)]
struct Open {
    jobs: SyncSender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Set when the file is open.
    reader: OnceLock<Reader>,
    unwritable: AtomicBool,
    recorded: AtomicU64,
    unknown: AtomicU64,
}

enum Job {
    /// Batches of events, in order; then the recorder is told that it may bring more.
    Take(Vec<Arc<[Event]>>, oneshot::Sender<()>),
    /// A report of a refused write.
    Report(Box<Report>, oneshot::Sender<bool>),
    /// Everything taken is to be on the disk.
    Sync(oneshot::Sender<()>),
}

struct Report {
    lock: String,
    token: u64,
    late: LateWrite,
}

/// What the metrics show of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) unwritable: bool,
    pub(super) recorded: u64,
    pub(super) unknown: u64,
}

impl History {
    /// Starts the thread, which opens the file. Without settings there is no history.
    pub(super) fn start(
        settings: Option<&HistorySettings>,
        authority: &AuthorityId,
    ) -> std::io::Result<History> {
        let Some(settings) = settings.cloned() else {
            return Ok(History(None));
        };
        let (jobs, queue) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let writer = Writer {
            settings,
            authority: authority.as_str().to_owned(),
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("palisade-past".into())
            .spawn(move || writer.work(&queue))?;
        Ok(History(Some(Open { jobs, shared })))
    }

    /// Takes events. Returns when the next ones may come.
    pub(super) async fn take(&self, batches: &[Arc<[Event]>]) {
        self.ask(|done| Job::Take(batches.to_vec(), done)).await;
    }

    /// Writes everything that was taken to the disk.
    pub(super) async fn sync(&self) {
        self.ask(Job::Sync).await;
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let open = self.0.as_ref()?;
        let (done, answer) = oneshot::channel();
        // A full queue: reports come faster than the disk takes them, and they are the part that may be lost.
        open.jobs.try_send(job(done)).ok()?;
        answer.await.ok()
    }

    /// Keeps a report of a refused write, if the history knows the grant. `None`: nobody can say now.
    pub(super) async fn report(&self, lock: &str, token: u64, late: LateWrite) -> Option<bool> {
        let report = Box::new(Report {
            lock: lock.to_owned(),
            token,
            late,
        });
        self.ask(|done| Job::Report(report, done)).await
    }

    /// One page.
    pub(super) async fn page(&self, query: Query, limit: usize) -> Result<Page, Refusal> {
        let unavailable = |why: &str| Refusal::new(Code::Unavailable, why.to_owned());
        let Some(open) = &self.0 else {
            return Err(Refusal::new(
                Code::Refused,
                "this server keeps no history: it was started with --no-history",
            ));
        };
        let Some(reader) = open.shared.reader.get().cloned() else {
            return Err(unavailable(match open.shared.unwritable.load(Relaxed) {
                true => "the history cannot be opened; the server's log says why",
                false => "the history is being opened; ask again in a moment",
            }));
        };
        let read = tokio::task::spawn_blocking(move || reader.page(&query, limit));
        match read.await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                let why = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(why, "the history cannot be read");
                Err(unavailable(
                    "the history cannot be read; the server's log says why",
                ))
            }
            Err(_) => Err(unavailable("the server stops")),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let Some(open) = &self.0 else {
            return Counts::default();
        };
        Counts {
            unwritable: open.shared.unwritable.load(Relaxed),
            recorded: open.shared.recorded.load(Relaxed),
            unknown: open.shared.unknown.load(Relaxed),
        }
    }
}

/// The thread's part.
struct Writer {
    settings: HistorySettings,
    authority: String,
    shared: Arc<Shared>,
}

impl Writer {
    fn work(self, queue: &Receiver<Job>) {
        let bounds = Bounds {
            age: self.settings.age,
            bytes: self.settings.bytes,
        };
        let opened = Ledger::open(&self.settings.file, &self.authority, bounds);
        let Some(mut ledger) = self.noted("cannot be opened", opened) else {
            // Nobody waits for it.
            while let Ok(job) = queue.recv() {
                drop(job);
            }
            return;
        };
        if let Some(past) = &self.settings.past {
            self.refill(&mut ledger, past);
        }
        let _ = self.shared.reader.set(ledger.reader());
        let (mut committed, mut synced) = (Instant::now(), Instant::now());
        loop {
            let job = queue.recv_timeout(COMMIT_EVERY);
            let over = matches!(job, Err(RecvTimeoutError::Disconnected));
            let mut told = None;
            match job {
                Ok(Job::Take(batches, done)) => {
                    for batch in &batches {
                        ledger.take(batch, Why::TooFast, wall().0);
                    }
                    let _ = done.send(());
                }
                Ok(Job::Report(report, done)) => {
                    let _ = done.send(self.record(&mut ledger, &report));
                }
                Ok(Job::Sync(done)) => told = Some(done),
                Err(_) => {}
            }
            let due = committed.elapsed() >= COMMIT_EVERY || ledger.waiting() >= COMMIT_ROWS;
            if (due && ledger.has_news()) || told.is_some() || over {
                let durable = synced.elapsed() >= SYNC_EVERY || told.is_some() || over;
                let outcome = ledger.commit(wall().0, durable);
                if self.noted("cannot be written", outcome).is_none()
                    && ledger.waiting() >= MOST_ROWS
                {
                    ledger.drop_waiting(wall().0);
                }
                committed = Instant::now();
                if durable {
                    synced = committed;
                }
            }
            if let Some(done) = told {
                let _ = done.send(());
            }
            if over {
                return;
            }
        }
    }

    /// What happened while there was no history to see it, from the log.
    fn refill(&self, ledger: &mut Ledger, past: &Past) {
        let after = ledger.last();
        let read = (past.0)(after, &mut |base, events| {
            ledger.miss(
                base,
                if after == 0 {
                    Why::New
                } else {
                    Why::LogDropped
                },
                wall().0,
            );
            ledger.take(events, Why::LogDropped, wall().0);
            if ledger.waiting() >= COMMIT_ROWS {
                let outcome = ledger.commit(wall().0, false);
                self.noted("cannot be written", outcome);
            }
        });
        if let Err(why) = read {
            tracing::warn!(
                why,
                "the history cannot be refilled from the log; it has a gap"
            );
        }
    }

    fn record(&self, ledger: &mut Ledger, report: &Report) -> bool {
        let outcome = ledger.refused(&report.lock, report.token, &report.late);
        let recorded = self.noted("cannot be written", outcome).unwrap_or(false);
        let count = if recorded {
            &self.shared.recorded
        } else {
            &self.shared.unknown
        };
        count.fetch_add(1, Relaxed);
        recorded
    }

    /// Says once that it does not work, and once that it works again.
    fn noted<T>(&self, what: &str, outcome: Result<T, palisade_history::Error>) -> Option<T> {
        match outcome {
            Ok(value) => {
                if self.shared.unwritable.swap(false, Relaxed) {
                    tracing::warn!("the history can be written again");
                }
                Some(value)
            }
            Err(error) => {
                if !self.shared.unwritable.swap(true, Relaxed) {
                    let why = std::error::Error::source(&error).map(ToString::to_string);
                    let file = self.settings.file.display().to_string();
                    tracing::warn!(
                        file,
                        why,
                        "the history {what}; locks are granted all the same"
                    );
                }
                None
            }
        }
    }
}

/// Jobs that may wait for the thread.
const QUEUE: usize = 1_024;

/// Rows are committed so often, and when so many wait.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
const COMMIT_ROWS: usize = 20_000;

/// A commit survives a crash of the machine at least so often.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// So many rows wait for a disk that takes nothing; then they become a gap.
const MOST_ROWS: usize = 200_000;

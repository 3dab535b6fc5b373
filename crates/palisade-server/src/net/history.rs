//! The history beside the server.
//!
//! ```text
//!   ring of recent events ──► this task ──► one thread: the ledger ──► history.redb
//!                             reports   ──►    ▲                            │
//!   the authority's log ─── what it missed ────┘                            │
//!                             questions ◄── any thread, at any time ◄───────┘
//! ```
//!
//! No answer of the authority waits for it. The thread is handed one round of events at a time, so what it cannot take
//! stays in the ring. It reads from the log what it missed: while the server was away, while events came too fast, while
//! its disk took nothing. Each time it replays the log, so it does that seldom, and says meanwhile what it left out. Changes
//! that the log no longer has are a gap. It leaves room on the disk, which may be the log's.

use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade_core::{Event, Machine};
use palisade_history::{
    Bounds, Gap, GapReason, LateRefusal, Ledger, LedgerOwner, Page, Query, Reader,
};
use palisade_pipeline::clock::{boottime, wall};
use palisade_pipeline::replay::Told;
use palisade_pipeline::{Handle, Identity};
use palisade_proto::Code;
use tokio::sync::{Semaphore, oneshot};

use super::convert::Refusal;
use super::settings::{HistorySettings, PastEvents};

/// The history, or nothing where it is switched off.
pub(super) struct History(Option<OpenHistory>);

struct OpenHistory {
    handle: Handle,
    jobs: SyncSender<Job>,
    /// Questions leave room in the queue for events.
    shows: Semaphore,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Events up to here were handed over; 0 again if some of them were lost with a file that failed.
    seen: AtomicU64,
    /// While the file is open.
    reader: Mutex<Option<Reader>>,
    /// The first and the last revision of what is to be read from the log later.
    left: Mutex<Option<(u64, u64)>>,
    unwritable: AtomicBool,
    recorded: AtomicU64,
    /// The same by the first part of the lock's name, for a bounded number of them.
    by_prefix: Mutex<BTreeMap<String, u64>>,
    unknown: AtomicU64,
    gaps: AtomicU64,
}

enum Job {
    /// Events up to `from` do not come; the batches follow, in order. Then the next ones may come.
    Take {
        from: u64,
        batches: Vec<Arc<[Event]>>,
        taken: oneshot::Sender<()>,
    },
    /// A report of a refused write.
    Report(Box<QueuedReport>, oneshot::Sender<bool>),
    /// Readers are to see everything taken.
    Show(oneshot::Sender<()>),
    /// Everything taken is to be on the disk, and the file is to be closed.
    Close(oneshot::Sender<()>),
}

struct QueuedReport {
    lock: String,
    token: u64,
    late: LateRefusal,
}

/// The figures that the metrics show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HistoryFigures {
    pub(super) unwritable: bool,
    pub(super) recorded: u64,
    pub(super) unknown: u64,
    pub(super) gaps: u64,
}

impl History {
    /// Begins the file, and starts the thread that opens it. Without settings there is no history.
    pub(super) fn start(
        settings: Option<&HistorySettings>,
        handle: &Handle,
    ) -> std::io::Result<History> {
        let Some(settings) = settings.cloned() else {
            return Ok(History(None));
        };
        let Identity {
            authority,
            incarnation,
        } = handle.identity();
        let (jobs, queue) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let writer = Writer {
            settings,
            owner: LedgerOwner {
                authority: authority.as_str().to_owned(),
                incarnation: incarnation.clone(),
            },
            shared: Arc::clone(&shared),
            gap: GapReason::LogDropped,
            refill: Pause::default(),
        };
        // Before anybody is served: `cp` fails if the file gets its name while it copies the directory.
        if writer.look_for_room().is_ok() {
            let _told_when_it_opens = Ledger::begin(&writer.settings.file);
        }
        std::thread::Builder::new()
            .name("palisade-past".into())
            .spawn(move || writer.work(&queue))?;
        Ok(History(Some(OpenHistory {
            handle: handle.clone(),
            jobs,
            shows: Semaphore::new(SHOWS),
            shared,
        })))
    }

    /// Follows the events. Does not end.
    pub(super) async fn follow(&self) {
        let Some(open) = &self.0 else {
            return pending().await;
        };
        let mut news = open.handle.news();
        loop {
            while !open.catch_up().await {
                // A full queue, or a disk that takes nothing: the log has what leaves the ring meanwhile.
                tokio::time::sleep(AGAIN).await;
            }
            // Under load, one round serves many batches.
            tokio::time::sleep(PAUSE).await;
            // Also a quiet server's file may have failed.
            if let Ok(Err(_)) = tokio::time::timeout(QUIET, news.changed()).await {
                return pending().await;
            }
        }
    }

    /// Takes the last events, writes everything to the disk, and closes the file.
    pub(super) async fn finish(&self) {
        let Some(open) = &self.0 else { return };
        let last = async {
            open.catch_up().await;
            open.ask(Job::Close).await;
        };
        let _ = tokio::time::timeout(FAREWELL, last).await;
    }

    /// Keeps a report of a refused write, if the history knows the grant. `None`: nobody can say now.
    pub(super) async fn report(&self, lock: &str, token: u64, late: LateRefusal) -> Option<bool> {
        let Some(open) = &self.0 else {
            return Some(false);
        };
        // The grant may be younger than the last round.
        open.catch_up().await;
        let report = Box::new(QueuedReport {
            lock: lock.to_owned(),
            token,
            late,
        });
        open.ask(|done| Job::Report(report, done)).await
    }

    /// One page, of all changes that were acknowledged before the question. If the thread is busy for long, of those of a
    /// moment ago.
    pub(super) async fn page(&self, query: Query, limit: usize) -> Result<Page, Refusal> {
        let unavailable = |why: &str| Refusal::new(Code::Unavailable, why.to_owned());
        let Some(open) = &self.0 else {
            return Err(Refusal::new(
                Code::Refused,
                "this server keeps no history: it was started with --no-history",
            ));
        };
        let mut patience = OPENING.as_millis() / PAUSE.as_millis();
        while open.shared.reader().is_none()
            && patience > 0
            && !open.shared.unwritable.load(Relaxed)
        {
            patience -= 1;
            tokio::time::sleep(PAUSE).await;
        }
        let shown = async {
            open.catch_up().await;
            let _permit = open.shows.acquire().await;
            open.ask(Job::Show).await;
        };
        let _ = tokio::time::timeout(SHOWING, shown).await;
        let Some(reader) = open.shared.reader().clone() else {
            return Err(unavailable(if open.shared.unwritable.load(Relaxed) {
                "the history cannot be opened or written; the server's log says why"
            } else {
                "the history is being opened; ask again in a moment"
            }));
        };
        let left = query.after.is_none().then(|| *open.shared.left()).flatten();
        let read = tokio::task::spawn_blocking(move || {
            let mut page = reader.page(&query, limit);
            if let Ok(page) = &mut page {
                page.gaps.extend(left.map(too_fast));
            }
            page
        });
        match read.await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                let why = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(why, "the history cannot be read");
                Err(unavailable(
                    "the history cannot be read; the server's log says why",
                ))
            }
            Err(_) => Err(unavailable("the server is stopping")),
        }
    }

    /// Whether there is one.
    pub(super) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Refused writes that were recorded, by the first part of the lock's name.
    pub(super) fn recorded_by_prefix(&self) -> BTreeMap<String, u64> {
        let open = self.0.as_ref();
        open.map_or_else(BTreeMap::new, |open| open.shared.by_prefix().clone())
    }

    pub(super) fn counts(&self) -> HistoryFigures {
        let Some(open) = &self.0 else {
            return HistoryFigures::default();
        };
        HistoryFigures {
            unwritable: open.shared.unwritable.load(Relaxed),
            recorded: open.shared.recorded.load(Relaxed),
            unknown: open.shared.unknown.load(Relaxed),
            gaps: open.shared.gaps.load(Relaxed),
        }
    }
}

impl OpenHistory {
    /// Hands over the events that are new now. `false`: not all were taken.
    async fn catch_up(&self) -> bool {
        let latest = self.handle.revision();
        loop {
            let seen = self.shared.seen.load(Relaxed);
            if seen > 0 && latest <= seen {
                return true;
            }
            let since = self.handle.since(seen);
            let first = since.batches.first().and_then(|batch| batch.first());
            let from = first.map_or(since.latest, |first| first.revision - 1);
            let last = since.batches.last().and_then(|batch| batch.last());
            let upto = last.map_or(since.latest, |last| last.revision);
            let batches = since.batches;
            let taken = self.ask(|taken| Job::Take {
                from,
                batches,
                taken,
            });
            if taken.await.is_none() {
                return false;
            }
            self.shared.seen.fetch_max(upto, Relaxed);
            if upto == 0 {
                return true;
            }
        }
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.jobs.try_send(job(done)).ok()?;
        answer.await.ok()
    }
}

impl Shared {
    fn by_prefix(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.by_prefix
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, prefix: &str) {
        let mut counts = self.by_prefix();
        let is_room = counts.len() < PREFIXES || counts.contains_key(prefix);
        let prefix = if is_room { prefix } else { "" };
        *counts.entry(prefix.to_owned()).or_default() += 1;
    }

    fn reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes that were left out, until they are read from the log.
fn too_fast((from, to): (u64, u64)) -> Gap {
    Gap {
        from,
        to,
        found_ms: wall().0,
        why: GapReason::TooFast,
    }
}

/// The thread's part.
struct Writer {
    settings: HistorySettings,
    owner: LedgerOwner,
    shared: Arc<Shared>,
    /// The reason of the next gap.
    gap: GapReason,
    refill: Pause,
}

/// It cannot go on with this file; what it took is in the log.
struct Closed;

impl Writer {
    fn work(mut self, queue: &Receiver<Job>) {
        // Where processors are few, the threads that grant locks go first.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        loop {
            let outcome = self.serve(queue);
            *self.shared.reader() = None;
            if outcome.is_ok() {
                return;
            }
            self.shared.seen.store(0, Relaxed);
            self.gap = GapReason::Unwritable;
            self.refill = Pause::default();
            let failed = now();
            // The callers hear at once that nothing is taken now.
            while let Some(left) = RETRY.checked_sub(since(failed)) {
                match queue.recv_timeout(left) {
                    Ok(Job::Close(_)) => return,
                    Ok(Job::Take { .. } | Job::Report(..) | Job::Show(_)) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    /// Opens the file and works until the server stops, or until the file fails.
    fn serve(&mut self, queue: &Receiver<Job>) -> Result<(), Closed> {
        self.look_for_room()?;
        let bounds = Bounds {
            age: self.settings.age,
            bytes: self.settings.bytes,
        };
        let opened = Ledger::open(&self.settings.file, &self.owner, bounds);
        let mut ledger = self.noted("cannot be opened", opened)?;
        if let Some(aside) = ledger.set_aside() {
            tracing::warn!(
                aside = %aside.display(),
                "the history's file is damaged, or of another authority; it was renamed, and a new history begins"
            );
        }
        if ledger.is_restored() {
            self.gap = GapReason::Restored;
        }
        *self.shared.reader() = Some(ledger.reader());
        *self.shared.left() = None;
        let (mut committed, mut synced) = (now(), now());
        // Since when there is something to sync.
        let mut changed = None;
        let (mut reported, mut asked) = (Vec::new(), Vec::new());
        loop {
            let mut over = None;
            let patience = match (asked.is_empty(), reported.is_empty()) {
                (false, _) => SHOW_EVERY,
                (true, false) => REPORTS_EVERY,
                (true, true) => IDLE,
            };
            match queue.recv_timeout(patience) {
                Ok(Job::Take {
                    from,
                    batches,
                    taken,
                }) => {
                    self.take(&mut ledger, from, &batches)?;
                    let _ = taken.send(());
                }
                Ok(Job::Report(report, done)) => {
                    if self.record(&mut ledger, &report)? {
                        reported.push(done)
                    } else {
                        let _ = done.send(false);
                    }
                }
                Ok(Job::Show(done)) => asked.push(done),
                Ok(Job::Close(done)) => over = Some(Some(done)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => over = Some(None),
            }
            let is_behind = ledger.has_doubt() || self.shared.left().is_some();
            if is_behind && self.refill.is_over() {
                self.refill(&mut ledger)?;
                self.note_left(&ledger, 0);
            }
            // The log does not have them, so they are on the disk before their reporters hear so.
            let kept = !reported.is_empty() && since(synced) >= REPORTS_EVERY;
            if ledger.is_synced() {
                changed = None;
            }
            let due = !ledger.is_synced() && since(*changed.get_or_insert_with(now)) >= SYNC_EVERY;
            let shows = !asked.is_empty() && ledger.has_news() && since(committed) >= SHOW_EVERY;
            if due || kept || shows || ledger.is_full() || over.is_some() {
                let durable = due || kept || over.is_some();
                self.commit(&mut ledger, durable)?;
                committed = now();
                if durable {
                    synced = committed;
                    for done in reported.drain(..) {
                        let _ = done.send(true);
                    }
                }
            }
            if !ledger.has_news() {
                for done in asked.drain(..) {
                    let _ = done.send(());
                }
            }
            if let Some(closed) = over {
                *self.shared.reader() = None;
                drop(ledger);
                let _ = closed.map(|closed| closed.send(()));
                return Ok(());
            }
        }
    }

    fn take(
        &mut self,
        ledger: &mut Ledger,
        from: u64,
        batches: &[Arc<[Event]>],
    ) -> Result<(), Closed> {
        if self.take_now(ledger, from, batches)? {
            // A later gap has another reason than the start.
            self.gap = GapReason::LogDropped;
        }
        let last = batches.last().and_then(|batch| batch.last());
        self.note_left(ledger, last.map_or(from, |last| last.revision));
        Ok(())
    }

    /// Events up to this revision were handed over. Those that were not taken are left for the log.
    fn note_left(&self, ledger: &Ledger, upto: u64) {
        let mut left = self.shared.left();
        let upto = left.map_or(upto, |(_, before)| before.max(upto));
        *left = (ledger.last() < upto).then(|| (ledger.last() + 1, upto));
    }

    /// `false`: not all, because something before them is missing, and the log was read a moment ago.
    fn take_now(
        &mut self,
        ledger: &mut Ledger,
        from: u64,
        batches: &[Arc<[Event]>],
    ) -> Result<bool, Closed> {
        if !self.reach(ledger, from)? {
            return Ok(false);
        }
        for batch in batches {
            let later = batch.iter().find(|event| event.revision > ledger.last());
            if let Some(first) = later
                && !self.reach(ledger, first.revision - 1)?
            {
                return Ok(false);
            }
            ledger.take(batch, self.gap, wall().0);
        }
        Ok(true)
    }

    /// Takes what is missing up to this revision from the log; what the log does not have is a gap. `false`: not yet.
    fn reach(&mut self, ledger: &mut Ledger, revision: u64) -> Result<bool, Closed> {
        if ledger.last() < revision {
            if !self.refill.is_over() {
                return Ok(false);
            }
            let why = self.refill(ledger)?;
            self.miss(ledger, revision, why);
        }
        Ok(true)
    }

    fn miss(&self, ledger: &mut Ledger, upto: u64, why: GapReason) {
        if ledger.last() < upto {
            self.shared.gaps.fetch_add(1, Relaxed);
            ledger.miss(upto, why, wall().0);
        }
    }

    /// Reads what the history missed from the log, and asks its machine about grants in doubt. Returns the reason of a gap
    /// that is left.
    fn refill(&mut self, ledger: &mut Ledger) -> Result<GapReason, Closed> {
        let after = ledger.last();
        let why = match after {
            0 => GapReason::New,
            _ => self.gap,
        };
        let Some(PastEvents(past)) = self.settings.past.clone() else {
            return Ok(why);
        };
        let mut outcome = Ok(());
        let read = past(after, &mut |told| {
            if outcome.is_err() {
                return;
            }
            match told {
                Told::Begins(revision) => self.miss(ledger, revision, why),
                Told::Events(events) => {
                    ledger.take(events, why, wall().0);
                    if ledger.is_full() {
                        outcome = self.commit(ledger, false);
                    }
                }
                Told::Now(machine) => outcome = self.reconcile(ledger, machine),
            }
        });
        self.refill.begin();
        outcome?;
        if let Err(why) = read {
            tracing::warn!(why, "the history cannot read what it missed from the log");
        }
        Ok(why)
    }

    /// Ends the grants that last in the history and not in the machine. A node's log says a moment late what is committed,
    /// so its machine may be behind; then the next refill does it.
    fn reconcile(&self, ledger: &mut Ledger, machine: &Machine) -> Result<(), Closed> {
        if !ledger.has_doubt() || machine.revision() != ledger.last() {
            return Ok(());
        }
        self.commit(ledger, false)?;
        let mut live = HashSet::new();
        let mut page = Some(0);
        while let Some(cursor) = page {
            let (held, next) = machine.grants(cursor, machine.now());
            live.extend(held.into_iter().map(|held| (held.lock, held.number.get())));
            page = next;
        }
        let is_live = |lock: &str, grant: u64| {
            palisade_core::LockName::new(lock).is_ok_and(|lock| live.contains(&(lock, grant)))
        };
        let ended = ledger.reconcile(is_live, wall().0);
        let ended = self.noted("cannot be written", ended)?;
        tracing::debug!(ended, "grants ended while the history did not see it");
        Ok(())
    }

    fn commit(&self, ledger: &mut Ledger, durable: bool) -> Result<(), Closed> {
        self.look_for_room()?;
        self.noted("cannot be written", ledger.commit(wall().0, durable))
    }

    /// The log may be on the same disk.
    fn look_for_room(&self) -> Result<(), Closed> {
        let dir = self.settings.file.parent().unwrap_or(Path::new("."));
        let Ok(disk) = rustix::fs::statvfs(dir) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let all = disk.f_blocks.saturating_mul(disk.f_frsize);
        let least = self.settings.leaves_free;
        let least = least.unwrap_or((all / 10).min(LEAVES_FREE));
        if free >= least {
            return Ok(());
        }
        self.fails(&format!(
            "its disk has {} MiB free, and the last {} MiB are reserved for the log",
            free >> 20,
            least >> 20
        ));
        Err(Closed)
    }

    fn record(&self, ledger: &mut Ledger, report: &QueuedReport) -> Result<bool, Closed> {
        self.look_for_room()?;
        // Only a lower token is late.
        let recorded = report.token < report.late.highest && {
            let outcome = ledger.refused(&report.lock, report.token, &report.late);
            self.noted("cannot be written", outcome)?
        };
        if recorded {
            self.shared.count(prefix(&report.lock));
        }
        let count = if recorded {
            &self.shared.recorded
        } else {
            &self.shared.unknown
        };
        count.fetch_add(1, Relaxed);
        Ok(recorded)
    }

    /// Says once that it does not work, and once that it works again.
    fn noted<T>(
        &self,
        what: &str,
        outcome: Result<T, palisade_history::Error>,
    ) -> Result<T, Closed> {
        match outcome {
            Ok(value) => {
                if self.shared.unwritable.swap(false, Relaxed) {
                    tracing::warn!("the history can be written again");
                }
                Ok(value)
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                self.fails(&format!("it {what}: {}", cause.unwrap_or_default()));
                Err(Closed)
            }
        }
    }

    fn fails(&self, why: &str) {
        if !self.shared.unwritable.swap(true, Relaxed) {
            let file = self.settings.file.display().to_string();
            tracing::warn!(
                file,
                why,
                "the history stops until its disk takes writes again; locks are still granted"
            );
        }
    }
}

/// The lock's name up to its first slash or colon, or all of it.
fn prefix(lock: &str) -> &str {
    let end = lock.find(['/', ':']);
    end.map_or(lock, |end| &lock[..=end])
}

/// A clock that counts sleep.
fn now() -> Duration {
    Duration::from_nanos(boottime())
}

fn since(then: Duration) -> Duration {
    now().saturating_sub(then)
}

/// Keeps the time between two refills, because each replays the log.
#[derive(Debug, Default)]
struct Pause {
    last: Option<Duration>,
    length: Duration,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.last.is_none_or(|last| since(last) >= self.length)
    }

    /// Each is twice as long as the one before it, unless that was over for long.
    fn begin(&mut self) {
        let quiet = self.last.is_none_or(|last| since(last) > LONGEST);
        self.length = if quiet {
            SHORTEST
        } else {
            (self.length * 2).min(LONGEST)
        };
        self.last = Some(now());
    }
}

/// Prefixes that are counted by themselves; all others count together.
const PREFIXES: usize = 64;

/// How much the thread gives way to others.
const NICE: i32 = 10;

/// Jobs that may wait for the thread.
const QUEUE: usize = 1_024;

/// Rows are on the disk after so long. A grant that ended meanwhile is written once, and one that is not yet there after a
/// crash comes from the log.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// Questions share a commit that comes so often.
const SHOW_EVERY: Duration = Duration::from_millis(50);

/// Questions that wait for it in the queue.
const SHOWS: usize = 64;

/// How long a question waits for the thread; then it is answered with what the file has.
const SHOWING: Duration = Duration::from_secs(1);

/// The thread looks so often for what is due.
const IDLE: Duration = Duration::from_secs(1);

/// The history leaves so much free of its disk; of a small one a tenth.
const LEAVES_FREE: u64 = 256 << 20;

/// Reports of refused writes share a sync that comes so often.
const REPORTS_EVERY: Duration = Duration::from_millis(100);

/// After an error the file is opened again so much later.
const RETRY: Duration = Duration::from_secs(10);

/// Between two refills from the log.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3_600);

/// How long a question waits for the file after a start.
const OPENING: Duration = Duration::from_secs(5);

/// Between two rounds of events, and after one that was not taken.
const PAUSE: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(10);

/// How long the end of the server waits for the history's disk.
const FAREWELL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;

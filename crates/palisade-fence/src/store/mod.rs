//! The durable object store under `palisade store`: resource → path → bytes, each resource under its
//! own fence, both in one log (rules F1 and F4).
//!
//! ```text
//!   callers ──► queue ──► writer thread: take everything that waits
//!                           │  plan each against the table in memory, apply, encode
//!                           │  one frame, one fdatasync                       (palisade-wal)
//!                           └─ answer all of them
//!   compactor thread: newest snapshot + sealed log ──► next snapshot
//! ```
//!
//! Every answer, even a rejection or a read, waits until the state on which it was decided is on stable
//! storage. A failed write or sync is never retried: the store stops, [`Store::stopped`] returns the reason,
//! and a restart recovers the state from the disk.
//!
//! The mode is recorded when the directory is created and never changes: a fence that was off for a while
//! proves nothing. A directory whose log is damaged is refused with file and offset (rule F7). If the whole
//! log is gone, the objects are gone with it.

mod codec;
mod compaction;
mod counts;
mod error;
mod look;
mod operator;
mod resource;
mod settings;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use palisade_core::Code;
use palisade_core::fence::Mode;
use palisade_wal::{
    CreateOptions, DirStorage, Identity, InPlace, RecoveryReport, ReplayError, Storage, Wal,
};
use tokio::sync::{Semaphore, oneshot, watch};
use tracing::Span;

pub use counts::Counts;
pub use error::OpenError;
pub use look::FencesOnDisk;
pub use resource::Resource;
pub use settings::Settings;

use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::name::ResourceId;
use crate::objects::{Bytes, Request, ResourceTable, View};
use counts::Counters;
use writer::{Job, RequestResult, Writer};

/// Gives a store's directory a new identity, with the same objects and fences. Use it for a directory whose files were
/// changed, or replaced by an older copy. Returns the number of resources.
///
/// In an older copy a fence may be lower than it was (rule F7): before the store is opened again, re-arm every
/// fence that a later holder may have raised. A crash leaves the directory unchanged.
///
/// # Errors
/// [`OpenError`]; the directory is unchanged.
pub fn restore_in_place(dir: &Path) -> Result<usize, OpenError> {
    let in_place = InPlace::begin(dir)?;
    // Nothing is decided here, so the rule does not matter, and the log's records were admitted within the limits.
    let mut replica = compaction::Replica::of_all();
    if let Some(mut snapshot) = in_place.snapshot().map_err(ReplayError::Read)? {
        replica.read(&mut snapshot).map_err(OpenError::Snapshot)?;
    }
    in_place.replay(|_, payload| replica.frame(payload))?;
    in_place.finish(&Settings::default().log, |out| {
        replica.write(out).map_err(std::io::Error::other)
    })?;
    Ok(replica.table.resources())
}

/// A durable store of fenced objects. Clones share it; dropping the last clone closes the log.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mode: Mode,
    identity: Identity,
    recovered: RecoveryReport,
    /// `None` only during the drop.
    queue: Option<mpsc::Sender<Job>>,
    /// Bounds the queue, in KiB.
    room: Arc<Semaphore>,
    room_kib: u32,
    counters: Arc<Counters>,
    stopped: watch::Receiver<Option<String>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store in `dir`, or creates it. Everything that it returns afterwards is on stable storage.
    ///
    /// # Errors
    /// [`OpenError`] names the obstacle: another process, damage, another mode, or a setting out of range.
    pub fn open(dir: &Path, settings: &Settings) -> Result<Store, OpenError> {
        settings.check()?;
        Store::open_on(Arc::new(DirStorage::create(dir)?), settings)
    }

    /// Like [`open`](Store::open), on any storage; simulations use it.
    ///
    /// # Errors
    /// As [`open`](Store::open).
    pub fn open_on(storage: Arc<dyn Storage>, settings: &Settings) -> Result<Store, OpenError> {
        settings.check()?;
        let opened = Wal::open_or_create_on(storage, &CreateOptions::default(), &settings.log)?;
        let (identity, recovered) = (*opened.identity(), opened.report().clone());
        let (queue, inbox) = mpsc::channel();
        let (stop, stopped) = watch::channel(None);
        let counters = Arc::new(Counters::default());
        let writer = Writer::recover(opened, settings, counters.clone(), inbox, stop)?;
        let writer = Mutex::new(Some(writer.start()?));
        let (room_kib, mode) = (settings.pending_kib, settings.rule.mode);
        let room = Arc::new(Semaphore::new(room_kib as usize));
        let queue = Some(queue);
        let inner = Inner {
            mode,
            identity,
            recovered,
            queue,
            room,
            room_kib,
            counters,
            stopped,
            writer,
        };
        Ok(Store(Arc::new(inner)))
    }

    /// Returns a handle to one resource, which need not exist.
    ///
    /// # Errors
    /// [`Error::Name`] if the name is not valid.
    pub fn resource(&self, name: &str) -> Result<Resource> {
        Ok(Resource::new(self.clone(), ResourceId::new(name)?))
    }

    /// Returns at most `limit` resources whose names start with `prefix`, in name order, after the name `after`.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(ResourceId, View)>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.inspect(move |table| {
            let found = table.list(&prefix, after.as_deref());
            found
                .take(limit)
                .map(|(name, view)| (name.clone(), view))
                .collect()
        })
        .await
    }

    /// Returns the mode of all fences in this store.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Returns the identity of the data directory.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Returns what recovery found when the store was opened.
    #[must_use]
    pub fn recovered(&self) -> &RecoveryReport {
        &self.0.recovered
    }

    /// Returns the counts since the store was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }

    /// Records a request that was refused before it reached the store, in the store's counts and as
    /// [`audit::refused`] does (rule F13).
    pub fn refused(&self, at: &str, resource: Option<&str>, reason: Code, why: &str) {
        self.0.counters.rejected.count(reason);
        audit::refused(at, resource, None, reason, why);
    }

    /// Waits until the store has stopped for good, and returns the reason. The process should then end: a
    /// restart recovers the state from the disk (rule A6).
    pub async fn stopped(&self) -> String {
        let mut stopped = self.0.stopped.clone();
        match stopped.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => WRITER_GONE.to_owned(),
        }
    }

    /// Puts an operation in the queue and waits for its answer.
    pub(crate) async fn submit(&self, request: Request) -> Result<Admitted<Option<Bytes>>> {
        let kib = u32::try_from(request.size() / 1024 + 1).unwrap_or(u32::MAX);
        // An operation larger than the whole queue waits until the queue is empty.
        let permits = self
            .0
            .room
            .clone()
            .acquire_many_owned(kib.min(self.0.room_kib))
            .await;
        let permit = permits.map_err(|_| self.gone())?;
        let (reply, answer) = oneshot::channel::<RequestResult>();
        self.send(Job::Decide {
            request,
            reply,
            span: Span::current(),
            _permit: permit,
        })?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Runs `f` on the table between two batches, when all of it is on stable storage.
    pub(crate) async fn inspect<T: Send + 'static>(
        &self,
        f: impl FnOnce(&ResourceTable) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Inspect(Box::new(move |table| {
            // The caller may have stopped waiting.
            let _ = reply.send(f(table));
        })))?;
        answer.await.map_err(|_| self.gone())
    }

    fn send(&self, job: Job) -> Result<()> {
        let queue = self.0.queue.as_ref().ok_or_else(|| self.gone())?;
        queue.send(job).map_err(|_| self.gone())
    }

    /// The error if the writer never took the operation from the queue.
    fn gone(&self) -> Error {
        let why = self.0.stopped.borrow().clone();
        Error::Stopped(why.unwrap_or_else(|| WRITER_GONE.to_owned()))
    }
}

impl Drop for Inner {
    /// Closes the queue and waits until the log is closed, so that the directory can be opened again.
    fn drop(&mut self) {
        drop(self.queue.take());
        let writer = self
            .writer
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take() {
            // If the writer panicked, the log is as after a crash.
            let _ = writer.join();
        }
    }
}

const WRITER_GONE: &str = "the store's writer thread has ended; restart the process";

//! The thread that decides every operation and writes the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade_core::fence::Reject;
use palisade_wal::{Full, Opened, PreparationWatch, Wal};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tracing::Span;

use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::name::{ObjectPath, ResourceId};
use crate::objects::{Bytes, Credentials, Plan, Record, Request, ResourceTable};
use crate::store::codec;
use crate::store::compaction::{Compaction, Replica};
use crate::store::counts::Counters;
use crate::store::{OpenError, Settings};

pub(super) type RequestResult = Result<Admitted<Option<Bytes>>>;

/// A job in the queue.
pub(super) enum Job {
    Decide {
        request: Request,
        reply: oneshot::Sender<RequestResult>,
        /// The caller's, which a rejection is logged in.
        span: Span,
        _permit: OwnedSemaphorePermit,
    },
    Inspect(Box<dyn FnOnce(&ResourceTable) + Send>),
}

pub(super) struct Writer {
    table: ResourceTable,
    wal: Wal,
    compaction: Compaction,
    preparation: PreparationWatch,
    /// Once this many bytes of the log are sealed, a snapshot is made.
    snapshot_after: u64,
    counters: Arc<Counters>,
    inbox: Receiver<Job>,
    stop: watch::Sender<Option<String>>,
    frame: Vec<u8>,
}

impl Writer {
    /// Rebuilds the table from the disk; a new directory gets its first frame.
    pub(super) fn recover(
        opened: Opened,
        settings: &Settings,
        counters: Arc<Counters>,
        inbox: Receiver<Job>,
        stop: watch::Sender<Option<String>>,
    ) -> Result<Writer, OpenError> {
        let rule = settings.rule;
        let mut replica = Replica::new(rule, settings.limits);
        if let Some(mut snapshot) = opened.snapshot().map_err(palisade_wal::ReplayError::Read)? {
            replica.read(&mut snapshot).map_err(OpenError::Snapshot)?;
        }
        opened.replay(|_, payload| replica.frame(payload))?;
        let mut wal = opened.into_wal();
        match replica.mode {
            None => drop(wal.commit(&codec::header(rule.mode))?),
            Some(recorded) if recorded == rule.mode => {}
            Some(recorded) => {
                return Err(OpenError::Mode {
                    recorded,
                    asked: rule.mode,
                });
            }
        }
        let preparation = wal.compactor().watch_preparation();
        let compaction = Compaction::start(wal.compactor(), rule).map_err(OpenError::Thread)?;
        let (snapshot_after, table) = (2 * settings.log.segment_bytes, replica.table);
        let frame = Vec::new();
        let writer = Writer {
            table,
            wal,
            compaction,
            preparation,
            snapshot_after,
            counters,
            inbox,
            stop,
            frame,
        };
        writer.update_gauges();
        Ok(writer)
    }

    pub(super) fn start(self) -> Result<JoinHandle<()>, OpenError> {
        let thread = thread::Builder::new().name("store-writer".to_owned());
        thread.spawn(move || self.run()).map_err(OpenError::Thread)
    }

    fn run(mut self) {
        loop {
            let served = match self.inbox.recv_timeout(DIRECTORY_CHECK) {
                Ok(first) => self.serve(first),
                Err(RecvTimeoutError::Timeout) => self.check(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Err(why) = served {
                tracing::error!(%why, "the store stops");
                let _ = self.stop.send(Some(why));
                return;
            }
            self.log_preparation();
            if self.wal.compactor().sealed_bytes() > self.snapshot_after.max(self.table.bytes()) {
                self.compaction.nudge();
            }
        }
        if let Err(error) = self.wal.close() {
            tracing::warn!(%error, "the log was not closed cleanly; the next start replays it");
        }
    }

    /// Fails if the log has stopped, for example because its directory is gone.
    fn check(&self) -> Result<(), String> {
        self.wal
            .poisoned()
            .map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn log_preparation(&mut self) {
        match self.preparation.change() {
            Some(Err(why)) => tracing::warn!(
                why,
                "the next segment of the log cannot be prepared; it is retried every second, and writes are \
                 refused once the current segment is full"
            ),
            Some(Ok(())) => tracing::warn!("the next segment of the log can be prepared again"),
            None => {}
        }
    }

    /// Handles one batch: decide, make durable, answer.
    fn serve(&mut self, first: Job) -> Result<(), String> {
        let batch = self.gather(first);
        let wanted = batch.iter().map(Job::size).sum::<usize>();
        let room = self.wal.reserve(wanted);
        codec::start_frame(&mut self.frame);
        let (mut replies, mut inspections) = (Vec::with_capacity(batch.len()), Vec::new());
        for job in batch {
            match job {
                Job::Decide {
                    request,
                    reply,
                    span,
                    _permit,
                } => {
                    let answer = span.in_scope(|| self.decide(request, room.as_ref().err()));
                    replies.push((reply, answer, _permit));
                }
                Job::Inspect(inspect) => inspections.push(inspect),
            }
        }
        let durable = self.check().and_then(|()| self.commit());
        for (reply, answer, _permit) in replies {
            let answer = match &durable {
                Ok(()) => answer,
                Err(why) => Err(Error::UnknownOutcome(format!(
                    "it is not known whether this was written: {why}"
                ))),
            };
            // The caller may be gone; the decision stands.
            let _ = reply.send(answer);
        }
        durable?;
        inspections
            .into_iter()
            .for_each(|inspect| inspect(&self.table));
        Ok(())
    }

    /// Returns the first job and those that wait behind it, up to the bounds of a batch.
    fn gather(&self, first: Job) -> Vec<Job> {
        let mut size = first.size();
        let mut batch = vec![first];
        while size < BATCH_BYTES && batch.len() < BATCH_JOBS {
            let Ok(job) = self.inbox.try_recv() else {
                break;
            };
            size += job.size();
            batch.push(job);
        }
        batch
    }

    /// Decides one operation against everything before it in the batch, and applies it.
    fn decide(&mut self, request: Request, full: Option<&Full>) -> RequestResult {
        let summary = Summary::of(&request);
        let repeat = match self.table.plan(request)? {
            Plan::Admit(record) => {
                self.apply(record, full)?;
                false
            }
            Plan::Repeat => true,
            Plan::Reject(reject) => {
                self.counters.rejected.count(reject.code());
                summary.rejected(&reject);
                return Err(Error::Rejected(reject));
            }
        };
        let counter = if repeat {
            &self.counters.repeats
        } else {
            &self.counters.admitted
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let value = summary
            .reads
            .and_then(|path| self.table.object(&summary.resource, &path));
        let highest = self.table.highest(&summary.resource);
        Ok(Admitted {
            value,
            highest,
            repeat,
        })
    }

    fn apply(&mut self, record: Record, full: Option<&Full>) -> Result<()> {
        match full {
            _ if record.is_empty() => Ok(()),
            Some(full) => Err(Error::DiskFull(full.to_string())),
            None => {
                codec::write_record(&mut self.frame, &record);
                self.table.apply(record);
                Ok(())
            }
        }
    }

    /// Makes the batch durable. After an error the table is ahead of the log and must not be used.
    fn commit(&mut self) -> Result<(), String> {
        if self.frame.len() > 1 {
            self.wal
                .commit(&self.frame)
                .map_err(|error| error.to_string())?;
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.update_gauges();
        }
        self.frame.shrink_to(BATCH_BYTES);
        Ok(())
    }

    fn update_gauges(&self) {
        self.counters
            .bytes
            .store(self.table.bytes(), Ordering::Relaxed);
        self.counters
            .resources
            .store(self.table.resources() as u64, Ordering::Relaxed);
    }
}

impl Job {
    /// An upper bound on the size of its record in the log.
    fn size(&self) -> usize {
        match self {
            Job::Decide { request, .. } => request.size(),
            Job::Inspect(_) => 0,
        }
    }
}

/// The parts of a request that its answer needs; [`ResourceTable::plan`] consumes the rest.
struct Summary {
    resource: ResourceId,
    by: Option<Credentials>,
    reads: Option<ObjectPath>,
}

impl Summary {
    fn of(request: &Request) -> Summary {
        Summary {
            resource: request.resource.clone(),
            by: request.by.clone(),
            reads: request.operation.reads().cloned(),
        }
    }

    fn rejected(&self, reject: &Reject) {
        let pass = self.by.as_ref().map(Credentials::as_pass);
        audit::rejected(self.resource.as_str(), pass, reject);
    }
}

/// How often an idle store checks that its directory still exists.
const DIRECTORY_CHECK: Duration = Duration::from_millis(500);

/// The bounds of a batch: its frame stays small, and its callers do not wait long.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_JOBS: usize = 4_096;

//! A leadership as the pipeline sees it: elections, and a log that is replicated.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use palisade_core::Machine;
use palisade_pipeline::{Elected, Elections, Failure, Log, LogError, Writable, codec};

use super::writer::LogDisk;
use crate::applier::Applier;
use crate::engine::{Engine, NotCommitted, Tokio};
use crate::lead::Leadership;

/// A quorum that answers and is slow is waited for no longer than this: callers then learn that their outcome is
/// unknown.
const SLOW: Duration = Duration::from_secs(5);

/// A node that may be elected.
pub(super) struct Candidate {
    engine: Engine<Tokio>,
    applier: Arc<Applier>,
    disk: Arc<LogDisk>,
    readable: Arc<Readable>,
}

impl Candidate {
    pub(super) fn new(
        engine: Engine<Tokio>,
        applier: Arc<Applier>,
        disk: Arc<LogDisk>,
        readable: Arc<Readable>,
    ) -> Candidate {
        Candidate {
            engine,
            applier,
            disk,
            readable,
        }
    }
}

/// The batches that all members read, as far as this node has heard from them (rule R21). Until then, only those that
/// every build reads.
#[derive(Debug)]
pub struct Readable(Mutex<Writable>);

impl Default for Readable {
    fn default() -> Readable {
        Readable(Mutex::new(Writable {
            version: codec::VERSION,
            refusal: Failure::Unavailable(
                "this node leads, and does not know yet whether all members read this kind of request"
                    .to_owned(),
            ),
        }))
    }
}

impl Readable {
    /// From now on a leadership may write these versions, and in any case those that the log contains already: every
    /// member must read them.
    pub fn set(&self, by_all: Writable) {
        *self.hold() = by_all;
    }

    fn hold(&self) -> MutexGuard<'_, Writable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Elections for Candidate {
    fn won(&mut self) -> Pin<Box<dyn Future<Output = Result<Elected, LogError>> + Send + '_>> {
        Box::pin(async {
            let led = Leadership::wait(&self.engine, &self.applier).await;
            let (leadership, machine) = led.map_err(log_error)?;
            tracing::info!(leader = %leadership.leader().node, term = leadership.leader().term, "this node leads");
            let log = Box::new(ReplicatedLog {
                leadership,
                engine: self.engine.clone(),
                disk: Arc::clone(&self.disk),
                readable: Arc::clone(&self.readable),
                no_room: String::new(),
                serves: false,
            });
            Ok(Elected { machine, log })
        })
    }
}

/// The log of one leadership.
struct ReplicatedLog {
    leadership: Leadership<Tokio>,
    engine: Engine<Tokio>,
    disk: Arc<LogDisk>,
    readable: Arc<Readable>,
    no_room: String,
    /// Its first batch is committed.
    serves: bool,
}

impl Log for ReplicatedLog {
    fn has_room(&mut self, _: usize) -> bool {
        match self.disk.full() {
            None => true,
            Some(why) => {
                self.no_room = why;
                false
            }
        }
    }

    fn no_room(&self) -> String {
        self.no_room.clone()
    }

    fn writable(&self) -> Writable {
        let by_all = self.readable.hold();
        if by_all.version >= codec::newest_version() {
            return Writable::default();
        }
        Writable {
            version: by_all.version.max(self.leadership.version()),
            refusal: by_all.refusal.clone(),
        }
    }

    fn check(&self) -> Result<(), LogError> {
        // An idle leader commits nothing, and would go on to say that it leads.
        let (heard, patience) = (self.engine.quorum_heard(), self.engine.timers().patience());
        let is_heard = heard.is_none_or(|heard| heard < patience);
        if is_heard && self.engine.leads(self.leadership.leader()) {
            Ok(())
        } else {
            Err(LogError::Deposed)
        }
    }

    fn commit(&mut self, batch: &[u8]) -> Result<(), LogError> {
        let engine = &self.engine;
        wait(engine, self.leadership.commit(batch.into()))?;
        if !std::mem::replace(&mut self.serves, true)
            && let Some(takeover) = engine.takeover()
        {
            tracing::info!(term = takeover.term, "this node serves; {takeover}");
        }
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), LogError> {
        let engine = &self.engine;
        wait(engine, self.leadership.confirm())
    }

    fn end(self: Box<Self>, machine: Machine) -> Result<(), LogError> {
        tracing::info!("this node leads no longer");
        let ended = self.leadership.end(machine);
        ended.map_err(|error| LogError::Failed(error.to_string()))
    }
}

fn log_error(error: NotCommitted) -> LogError {
    match error {
        NotCommitted::NotLeader | NotCommitted::Unknown => LogError::Deposed,
        NotCommitted::Stopped(why) => LogError::Failed(why),
    }
}

/// Waits on this thread for the engine's: nothing else happens on it meanwhile, as during a sync. Gives up when no quorum
/// was heard for too long (rule R5); a quorum that answers and is slow is waited for, because giving up would only begin again.
fn wait(
    engine: &Engine<Tokio>,
    work: impl Future<Output = Result<(), NotCommitted>>,
) -> Result<(), LogError> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut work = pin!(work);
    let began = now();
    let patience = engine.timers().patience();
    assert!(patience < SLOW, "a slow quorum would not be waited for");
    let mut longest = patience;
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done.map_err(log_error);
        }
        match longest.checked_sub(now() - began) {
            Some(left) if !left.is_zero() => thread::park_timeout(left),
            _ => match engine.quorum_heard() {
                Some(heard) if heard < patience && longest < SLOW => longest += patience - heard,
                _ => return Err(LogError::Deposed),
            },
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a bound on a wait; nothing is stamped with it"
)]
fn now() -> Instant {
    Instant::now()
}

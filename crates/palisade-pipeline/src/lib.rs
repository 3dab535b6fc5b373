//! The heart of the server: order, stamp, apply, sync, answer – one thread, which never waits for a
//! socket.
//!
//! ```text
//!   faces (gRPC, HTTP, in-process)
//!      │ Request                                  ▲ Answer, only when it is durable
//!      ▼                                          │
//!   Handle ──► inbox ──► Driver { Orderer { Machine }, Log, LogClock } ──► callers
//!                                                 │
//!                                                 └──► events ──► watchers
//! ```
//!
//! All decisions are made in [`orderer`], which does no I/O. The driver gives it messages and time, makes its batches
//! durable, and sends the answers that it releases.
//!
//! The thread runs other tasks between two rounds, if it is asked to ([`Handle::near`]). A session that lives there
//! submits its requests and gets its answers without waking another thread, which costs more than the rest of a round.
//!
//! It knows neither sockets nor how the log is made durable: the one side is [`Handle`], the other
//! the trait [`Log`]. `durable` (feature) is the pipeline on a write-ahead log.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.

pub mod clock;
pub mod codec;
mod driver;
#[cfg(feature = "durable")]
pub mod durable;
mod election;
mod handle;
mod listening;
mod log;
pub mod orderer;
mod random;
mod recent;
pub mod replay;
pub mod request;
pub mod round;
mod stats;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use palisade_core::{Away, Command, Limits, Machine, Span, Timestamp};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

pub use clock::{LogClock, Running};
pub use election::{Elected, Elections, take_over};
pub use handle::{Answers, Handle, Identity, Leading, Session, Stopped};
pub use listening::{Heard, Listener, News};
pub use log::{Forgetful, Log, LogError, Writable};
pub use random::MARK;
pub use recent::{Since, bytes_of};
pub use request::{
    Answer, Asked, Failure, KeepsPlace, Listened, MetricResult, Operation, Request, Status,
};
pub use stats::{Counter, Histogram, Stats, request_place};

use driver::Driver;
use handle::{Message, Shared};

/// The parts and settings that a pipeline starts with.
pub struct PipelineStart {
    /// Which authority this is.
    pub identity: Identity,
    /// The state its log ends in.
    pub machine: Machine,
    /// Where batches become durable.
    pub log: Box<dyn Log>,
    /// Whether the clock moves only when it is set.
    pub manual_clock: bool,
    /// The operator's bounds.
    pub limits: Limits,
    /// Whether this authority was here before: its leases then get their full time again (rule A7),
    /// and its counter perhaps a leap (rule A5).
    pub returning: Option<Returning>,
}

/// How an authority comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returning {
    /// Its process was started again, and nothing is known of the time since the log's last entry.
    Restarted,
    /// As [`Returning::Restarted`], within one boot of the machine.
    Resumed {
        /// How long the former process was there after the log's last entry.
        served: Span,
        /// How long there was none.
        down: Span,
    },
    /// It was restored from a backup: the counter leaps.
    Restored {
        /// How far; [`palisade_core::limits::restore_leap`] unless a test says otherwise.
        leap: u64,
    },
}

impl Returning {
    /// How an authority comes back that gave a sign of life within this boot of the machine: its clock showed `at` when
    /// CLOCK_BOOTTIME showed `then`. It starts at `now` of CLOCK_BOOTTIME, on a log that ends at `last`. `None` if the log is
    /// not the one that this clock stamped.
    #[must_use]
    pub fn resumed((at, then): (Timestamp, u64), last: Timestamp, now: u64) -> Option<Returning> {
        let passed = Span::from_nanos(now.checked_sub(then)?);
        let there = at.max(last);
        let shows = at.after(passed);
        // A log that is ahead of the clock is another one.
        (shows >= there).then(|| Returning::Resumed {
            served: there.since(last),
            down: shows.since(there),
        })
    }

    /// What its clock shows at first, on a log that ends at `last`: the time as without the restart, where that is known.
    #[must_use]
    pub fn clock(self, last: Timestamp) -> Timestamp {
        match self {
            Returning::Resumed { served, down } => last.after(served).after(down),
            Returning::Restarted | Returning::Restored { .. } => last,
        }
    }

    /// The commands that have to be logged before any request is accepted.
    fn commands(self) -> Vec<Command> {
        match self {
            Returning::Restarted => vec![Command::Grace(Away::Restarted)],
            Returning::Resumed { down, .. } => vec![Command::Grace(Away::Down(down))],
            Returning::Restored { leap } => {
                // Grace first: otherwise a lease that is due would end with the leap's entry, and its lock would be
                // granted under a token from before the leap.
                vec![Command::Grace(Away::Restored), Command::Leap { by: leap }]
            }
        }
    }
}

/// The commands of an authority's first batch, which it records before it accepts any request.
#[must_use]
pub fn first_commands(returning: Option<Returning>, limits: Limits) -> Vec<Command> {
    let mut first = returning.map_or_else(Vec::new, Returning::commands);
    first.push(Command::Configure(limits));
    first
}

/// The parts and settings of a pipeline that serves whenever its node is elected.
pub struct InTurns {
    /// Which authority this is.
    pub identity: Identity,
    /// The revision of the state that the node's log ends in.
    pub revision: u64,
    /// When this node leads.
    pub elections: Box<dyn Elections>,
    /// The operator's bounds, which are in force while this node leads.
    pub limits: Limits,
}

/// A running pipeline: the way in, and its thread.
pub struct Pipeline {
    /// The way in.
    pub handle: Handle,
    /// Ends after [`Handle::stop`] or when the log fails, and when the tasks near it have ended.
    pub thread: JoinHandle<()>,
}

/// An assertion failed in the first batch, for this reason and at this entry: there is no pipeline. [`Stopped::Broken`] is the
/// same for one that was running.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its own state contradicts itself ({0}), so it stopped before anything was written or answered. Start it again; if it stops \
     again, keep a copy of its directory and report this message"
)]
pub struct FailedAssertion(pub String);

/// A random seed for the machine's hash tables.
#[must_use]
pub fn seed() -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = random::bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Starts the pipeline. The clock resumes where the log ended, or shows the time as without the restart where that is
/// known. The commands of a return are durable when this returns.
///
/// # Errors
/// If the log takes nothing, the operating system gives no thread, or an assertion fails ([`FailedAssertion`]).
pub fn start(start: PipelineStart) -> io::Result<Pipeline> {
    let PipelineStart {
        identity,
        machine,
        log,
        manual_clock,
        limits,
        returning,
    } = start;
    let last = machine.now();
    let resumed = returning.map_or(last, |returning| returning.clock(last));
    let clock = if manual_clock {
        LogClock::manual_from(resumed)
    } else {
        LogClock::running_from(resumed)
    };
    let first = first_commands(returning, limits);
    let parts = Parts::new(identity, machine.revision(), Leading::Here)?;
    let (inbox, shared) = (parts.inbox, Arc::clone(&parts.shared));
    let mut driver = Driver::new(planted(machine), log, clock, inbox, shared);
    if let Err(error) = open(&mut driver, first) {
        // The caller may be a task of another runtime, where dropping one is a panic.
        parts.runtime.shutdown_background();
        return Err(error);
    }
    run(parts.runtime, parts.handle, parts.shared, driver.run())
}

/// Records the first batch.
fn open(driver: &mut Driver, first: Vec<Command>) -> io::Result<()> {
    match catch_unwind(AssertUnwindSafe(|| driver.open(first))) {
        Ok(opened) => opened.map_err(io::Error::other),
        Err(panic) => {
            let why = replay::message_of(&*panic);
            Err(io::Error::other(FailedAssertion(why)))
        }
    }
}

#[cfg(not(feature = "testing"))]
fn planted(machine: Machine) -> Machine {
    machine
}

/// With PALISADE_TEST_USED_TOKEN the next token was drawn before: see [`Machine::plant_used_token`].
#[cfg(feature = "testing")]
fn planted(mut machine: Machine) -> Machine {
    if std::env::var_os("PALISADE_TEST_USED_TOKEN").is_some() {
        machine.plant_used_token();
    }
    machine
}

/// Starts a pipeline that serves whenever its node leads.
///
/// # Errors
/// If the operating system gives no thread.
pub fn start_in_turns(start: InTurns) -> io::Result<Pipeline> {
    let InTurns {
        identity,
        revision,
        elections,
        limits,
    } = start;
    let parts = Parts::new(identity, revision, Leading::Nowhere)?;
    let shared = Arc::clone(&parts.shared);
    let turns = election::run(elections, limits, parts.inbox, shared);
    run(parts.runtime, parts.handle, parts.shared, turns)
}

/// The parts of every pipeline.
struct Parts {
    runtime: Runtime,
    shared: Arc<Shared>,
    handle: Handle,
    inbox: mpsc::UnboundedReceiver<Message>,
}

impl Parts {
    fn new(identity: Identity, revision: u64, leading: Leading) -> io::Result<Parts> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let shared = Shared::new(identity, runtime.handle().clone(), revision, leading);
        let (sender, inbox) = mpsc::unbounded_channel();
        Ok(Parts {
            handle: Handle::new(sender, Arc::clone(&shared)),
            runtime,
            shared,
            inbox,
        })
    }
}

/// Runs the pipeline's work on a thread of its own.
fn run(
    runtime: Runtime,
    handle: Handle,
    shared: Arc<Shared>,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Pipeline> {
    let thread = std::thread::Builder::new()
        .name("palisade-order".into())
        .spawn(move || {
            // Runs as a task like its neighbours, so that they have their turn before it accepts a round.
            let work = runtime.spawn(work);
            runtime.block_on(async {
                if let Err(failed) = work.await
                    && let Ok(panic) = failed.try_into_panic()
                {
                    let why = replay::message_of(&*panic);
                    shared.stopped.send_replace(Some(Stopped::Broken(why)));
                    std::panic::resume_unwind(panic);
                }
                shared.neighbours.close();
                shared.neighbours.wait().await;
            });
        })?;
    Ok(Pipeline { handle, thread })
}

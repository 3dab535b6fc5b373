//! The suite that every authority must pass.
//!
//! ```text
//!   Subject (makes connections; may crash its server, cut its wires, count wake-ups)
//!      │                      ┌ racing   exclusion, tokens in grant order, order of waiters, wake-ups
//!      ▼                      ├ holding  renewal, expiry, release, repeats, `show`
//!      │                      ├ sharing  readers and writers
//!      │                      ├ permits  semaphores
//!      │                      ├ delays   locks that stay closed after a grant
//!      │                      ├ elections  the value of a holder
//!      │                      ├ sets     several locks at once
//!   run(subject, habit) ──────┤ leaving  cancelled, abandoned, dead and stopped clients
//!      │                      └ away     a server that is killed, a connection that is cut
//!      ▼
//!   Report: which checks passed, failed, or do not apply, by name
//! ```
//!
//! An adapter implements [`Subject`] and calls [`run`]:
//!
//! ```
//! use std::sync::Arc;
//! use palisade_authorities::conformance::{self, Habit, Subject};
//! use palisade_client::{Fault, LockService, in_process::InProcess};
//!
//! struct Here(Arc<InProcess>);
//!
//! impl Subject for Here {
//!     async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
//!         Ok(self.0.clone())
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Fault> {
//! let subject = Arc::new(Here(Arc::new(InProcess::start()?)));
//! let habit = Habit { grants: 10, ..Habit::FULL };
//! conformance::run(&subject, habit).await.assert_passed();
//! # Ok(())
//! # }
//! # main().unwrap();
//! ```
//!
//! A control arm breaks rules on purpose: compare [`Report::failed`] with the failures that you expect.

mod away;
mod delays;
mod elections;
mod holding;
mod leaving;
mod permits;
mod racing;
mod report;
mod sets;
mod sharing;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use palisade_client::Fault;
use palisade_client::service::LockService;

pub use report::Report;

/// An authority under test.
pub trait Subject: Send + Sync + 'static {
    /// Opens a connection to the authority that is independent of all others. It is called on several
    /// runtimes.
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn LockService>, Fault>> + Send;

    /// Opens a connection that [`Subject::cut`] can cut; `None` if there are no such connections.
    fn connect_through(
        &self,
    ) -> impl Future<Output = Option<Result<Arc<dyn LockService>, Fault>>> + Send {
        async { None }
    }

    /// Breaks every connection made by [`Subject::connect_through`]; new ones work again.
    fn cut(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Kills the server (SIGKILL) and starts it again with the same state and address; `false` if there is no
    /// server to kill.
    fn crash(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// The number of times that waiting requests of all connections so far have been woken to check whether
    /// the lock is theirs; `None` if waiters do not check, because the authority itself grants.
    fn wake_ups(&self) -> Option<u64> {
        None
    }
}

/// The properties of the authority under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habit {
    /// A little more than the shortest lease that it grants; the expiry checks wait for the end of such a lease.
    pub brief: Duration,
    /// A lease that outlasts a restart of the server; checks that wait for a renewal wait for a third of it.
    pub long: Duration,
    /// How long to wait for an event before the check fails.
    pub patience: Duration,
    /// Waiting requests are granted in the order in which they arrived.
    pub fifo: bool,
    /// A client with the same client id gets its own lock back at once.
    pub takes_back: bool,
    /// A repeated release is recognised as a repeat.
    pub remembers: bool,
    /// Locks can be listed.
    pub lists: bool,
    /// Whether it supports readers, semaphores, changes of metadata, and several locks at once.
    pub shares: bool,
    /// The number of clients that race.
    pub racers: u32,
    /// The number of grants that each of them gets.
    pub grants: u32,
}

impl Habit {
    /// The properties of a Palisade server; 16 clients race for 125 grants each, 2,000 in total.
    pub const FULL: Habit = Habit {
        brief: Duration::from_millis(400),
        long: Duration::from_secs(6),
        patience: Duration::from_secs(60),
        fifo: true,
        takes_back: true,
        remembers: true,
        lists: true,
        shares: true,
        racers: 16,
        grants: 125,
    };

    /// Returns these properties with the number of grants for each racer taken from the environment variable
    /// `PALISADE_CONFORMANCE_GRANTS`, if it is set: 2000 for the full battery.
    ///
    /// # Errors
    /// If the variable is set to something that is not a number.
    pub fn scaled(self) -> Result<Habit, String> {
        let Ok(given) = std::env::var(GRANTS) else {
            return Ok(self);
        };
        match given.parse() {
            Ok(grants) => Ok(Habit { grants, ..self }),
            Err(_) => Err(format!("{GRANTS} must be 1 ..= 4294967295, not {given:?}")),
        }
    }
}

const GRANTS: &str = "PALISADE_CONFORMANCE_GRANTS";

/// Runs every check, each on its own locks. Needs a runtime with several threads.
pub async fn run<S: Subject>(subject: &Arc<S>, habit: Habit) -> Report {
    let mut report = Report::default();
    let context = steps::Context::new(subject, habit);
    racing::checks(&context, &mut report).await;
    holding::checks(&context, &mut report).await;
    sharing::checks(&context, &mut report).await;
    permits::checks(&context, &mut report).await;
    delays::checks(&context, &mut report).await;
    elections::checks(&context, &mut report).await;
    sets::checks(&context, &mut report).await;
    leaving::checks(&context, &mut report).await;
    away::checks(&context, &mut report).await;
    report
}

//! The suite that every authority must pass.
//!
//! ```text
//!   Subject (makes connections; may crash its server, cut its wires, count wake-ups)
//!      │                      ┌ racing   exclusion, tokens in grant order, order of waiters, wake-ups
//!      ▼                      ├ holding  renewal, expiry, release, repeats, what is shown
//!   run(subject, habit) ──────┤ leaving  cancelled, abandoned, dead and stopped clients
//!      │                      └ away     a server that is killed, a connection that is cut
//!      ▼
//!   Report: which checks passed, failed, or do not apply, by name
//! ```
//!
//! An adapter says how to reach an authority and runs [`run`]:
//!
//! ```
//! # #[cfg(feature = "in-process")] {
//! use std::sync::Arc;
//! use palisade_client::conformance::{self, Habit, Subject};
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
//! # }
//! ```
//!
//! An authority that breaks a rule must fail: [`Report::failed`] names what went wrong, so that a
//! control arm can be held against what it is expected to get wrong.

mod away;
mod holding;
mod leaving;
mod racing;
mod report;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use crate::fault::Fault;
use crate::service::LockService;

pub use report::Report;

/// An authority under test.
pub trait Subject: Send + Sync + 'static {
    /// A way to the authority that shares no connection with any other; it is called on several
    /// runtimes.
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn LockService>, Fault>> + Send;

    /// The same through wires that [`Subject::cut`] can cut; `None` if there are none.
    fn connect_through(
        &self,
    ) -> impl Future<Output = Option<Result<Arc<dyn LockService>, Fault>>> + Send {
        async { None }
    }

    /// Breaks every connection made by [`Subject::connect_through`]; new ones go through again.
    fn cut(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Kills the server (SIGKILL) and starts it again on the same state and address; `false` if there
    /// is none to kill.
    fn crash(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// How many waiting requests of the connections made so far have been woken to look whether the
    /// lock is theirs; `None` if waiters do not look, because the authority itself grants.
    fn wake_ups(&self) -> Option<u64> {
        None
    }
}

/// What the authority under test does by its nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habit {
    /// The shortest lease it grants, or a little more: the checks of expiry wait for it.
    pub brief: Duration,
    /// A lease that outlasts a restart of its server; where renewals are waited for, a third of it.
    pub long: Duration,
    /// How long an event is waited for; one that does not come by then never will.
    pub patience: Duration,
    /// Waiting requests are granted in the order in which they came.
    pub fifo: bool,
    /// The same client id takes its own lock back at once.
    pub takes_back: bool,
    /// A release that is repeated is recognised as one.
    pub remembers: bool,
    /// Locks can be listed.
    pub lists: bool,
    /// Clients that race.
    pub racers: u32,
    /// Grants that each of them gets.
    pub grants: u32,
}

impl Habit {
    /// Everything a Palisade server does; 16 clients race for 125 grants each, 2,000 together.
    pub const FULL: Habit = Habit {
        brief: Duration::from_millis(400),
        long: Duration::from_secs(6),
        patience: Duration::from_secs(60),
        fifo: true,
        takes_back: true,
        remembers: true,
        lists: true,
        racers: 16,
        grants: 125,
    };

    /// The same with as many grants for each racer as the environment variable
    /// `PALISADE_CONFORMANCE_GRANTS` says, if it is set: 2000 for the full battery.
    ///
    /// # Errors
    /// If it is set to something that is not a number.
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

/// Runs every check, each on locks of its own. Needs a runtime with several threads.
pub async fn run<S: Subject>(subject: &Arc<S>, habit: Habit) -> Report {
    let mut report = Report::default();
    let place = steps::Place::new(subject, habit);
    racing::checks(&place, &mut report).await;
    holding::checks(&place, &mut report).await;
    leaving::checks(&place, &mut report).await;
    away::checks(&place, &mut report).await;
    report
}

//! Serving in turns: in a cluster, a pipeline serves while its node leads and turns requests away otherwise.
//!
//! ```text
//!            ┌──────────── won: machine and log ───────────┐
//!            │                                             ▼
//!   following: requests are answered          leading: a Driver, as on a single server
//!   "another node leads"                                   │
//!            ▲                                             │
//!            └──────── deposed: the log gets the machine back
//! ```
//!
//! The inbox, the sessions, the counters and the recent events outlast a leadership.

use std::pin::Pin;
use std::sync::Arc;

use palisade_core::{Away, Command, Limits, Machine};
use tokio::sync::mpsc::UnboundedReceiver;

use super::clock::LogClock;
use super::driver::{Driver, close, turn_away};
use super::handle::{Message, Shared, Stopped};
use super::log::{Log, LogError};

/// Decides when this node may serve.
pub trait Elections: Send {
    /// Waits until this node leads and its machine contains everything that was committed before (rule R9).
    ///
    /// # Errors
    /// [`LogError::Failed`] if it never will: the pipeline stops.
    fn won(&mut self) -> Pin<Box<dyn Future<Output = Result<Elected, LogError>> + Send + '_>>;
}

/// The means of one leadership. [`Log::end`] gives the machine back.
pub struct Elected {
    /// The state as of the last committed batch.
    pub machine: Machine,
    /// The log, as long as this leadership lasts.
    pub log: Box<dyn Log>,
}

/// Serves whenever this node leads, until it is asked to stop or its log fails.
pub(super) async fn run(
    mut elections: Box<dyn Elections>,
    limits: Limits,
    mut inbox: UnboundedReceiver<Message>,
    shared: Arc<Shared>,
) {
    let stopped = loop {
        let Elected { machine, log } = match follow(&mut *elections, &mut inbox, &shared).await {
            Ok(elected) => elected,
            Err(stopped) => break stopped,
        };
        let clock = LogClock::running_from(machine.now());
        let mut driver = Driver::new(machine, log, clock, inbox, Arc::clone(&shared));
        let stopped = driver.lead(take_over(limits)).await;
        let (machine, log);
        (machine, log, inbox) = driver.into_parts();
        match (log.end(machine), stopped) {
            (Ok(()), Stopped::Deposed) => {}
            (Err(why), Stopped::Deposed) => break Stopped::LogFailed(why.to_string()),
            (_, stopped) => break stopped,
        }
    };
    close(inbox, &shared, stopped);
}

/// The commands that a new leader records before it accepts a request (rules R9, R10).
#[must_use]
pub fn take_over(limits: Limits) -> Vec<Command> {
    vec![Command::Grace(Away::Led), Command::Configure(limits)]
}

/// Turns requests away until this node leads.
async fn follow(
    elections: &mut dyn Elections,
    inbox: &mut UnboundedReceiver<Message>,
    shared: &Shared,
) -> Result<Elected, Stopped> {
    let mut won = elections.won();
    loop {
        let message = tokio::select! {
            biased;
            elected = &mut won => {
                return elected.map_err(|error| Stopped::LogFailed(error.to_string()));
            }
            message = inbox.recv() => message,
        };
        match message {
            None | Some(Message::Stop) => return Err(Stopped::Asked),
            Some(message) => turn_away(message, &shared.not_leader()),
        }
    }
}

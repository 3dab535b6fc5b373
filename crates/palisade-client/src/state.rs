//! The state shared by a client's guards and its background task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::Span;
use palisade_core::holder::Caution;

use crate::clock::Clock;
use crate::listening::Unnamed;
use crate::reports::Reports;
use crate::schedule::Schedule;
use crate::service::LockService;

/// The shared state.
pub(crate) struct Core {
    pub(crate) service: Arc<dyn LockService>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) caution: Caution,
    /// How long an operation is retried without an answer.
    pub(crate) patience: Span,
    pub(crate) schedule: Mutex<Schedule>,
    /// The grants that the authority is still to be asked to tell about.
    pub(crate) unnamed: Unnamed,
    pub(crate) reports: Reports,
}

impl Core {
    pub(crate) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

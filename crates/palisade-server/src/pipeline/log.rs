//! What the pipeline asks of whatever makes its batches durable.

use std::fmt;

/// A durable sequence of batches.
///
/// The pipeline's thread owns it and calls nothing else that blocks.
pub trait Log: Send {
    /// Whether a batch of up to `bytes` will find room. Asked before anything is applied, so that a
    /// full disk refuses requests instead of losing them.
    fn has_room(&mut self, bytes: usize) -> bool;

    /// Why there was no room when last asked, and what to do.
    fn no_room(&self) -> String {
        "the disk has no room for the log".into()
    }

    /// Whether the log may still be written to. Asked before each batch and at each heartbeat, so it makes no
    /// system call.
    ///
    /// # Errors
    /// [`LogFailed`] if nothing may be acknowledged any more: the pipeline stops.
    fn check(&self) -> Result<(), LogFailed> {
        Ok(())
    }

    /// Writes a batch and returns when it is on stable storage.
    ///
    /// # Errors
    /// [`LogFailed`] if that is not certain. It is never retried: the pipeline stops.
    fn commit(&mut self, batch: &[u8]) -> Result<(), LogFailed>;

    /// Nothing is going on: time for small housekeeping.
    fn idle(&mut self) {}
}

/// A log that could not make sure that a batch is durable; says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFailed(pub String);

impl fmt::Display for LogFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for LogFailed {}

/// No log: the authority forgets everything when its process ends. For tests and for locks among the
/// tasks of one process.
#[derive(Debug, Default)]
pub struct Forgetful;

impl Log for Forgetful {
    fn has_room(&mut self, _bytes: usize) -> bool {
        true
    }

    fn commit(&mut self, _batch: &[u8]) -> Result<(), LogFailed> {
        Ok(())
    }
}

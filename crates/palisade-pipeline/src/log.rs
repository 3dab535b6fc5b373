//! The interface between the pipeline and the log that makes its batches durable.

use std::fmt;

use palisade_core::{Machine, Timestamp};

use super::Failure;
use super::codec::newest_version;

/// A durable sequence of batches.
///
/// The pipeline's thread owns it and calls nothing else that blocks.
pub trait Log: Send {
    /// Whether a batch of up to `bytes` will find room. Asked before anything is applied, so that a
    /// full disk refuses requests instead of losing them.
    fn has_room(&mut self, bytes: usize) -> bool;

    /// The reason there was no room when last asked, with the remedy.
    fn no_room(&self) -> String {
        "the disk has no room for the log".into()
    }

    /// Whether the log may still be written to. Asked before each batch and at each heartbeat, so it makes no
    /// system call.
    ///
    /// # Errors
    /// [`LogError`] if nothing may be acknowledged any more: the pipeline stops.
    fn check(&self) -> Result<(), LogError> {
        Ok(())
    }

    /// Which batches may be written (rule R21). Asked before each batch.
    fn writable(&self) -> Writable {
        Writable::default()
    }

    /// Writes a batch and returns when it is on stable storage, with every node it must be on.
    ///
    /// # Errors
    /// [`LogError`] if that is not certain. It is never retried: the pipeline stops.
    fn commit(&mut self, batch: &[u8]) -> Result<(), LogError>;

    /// Makes sure that this node has led until now. Called before answers leave that rest on no entry of their own batch; a
    /// commit already proves it. Without other nodes there is nothing to ask.
    ///
    /// # Errors
    /// [`LogError`] if it is not certain: the pipeline stops.
    fn confirm(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// The pipeline is there, and everything that was due by `at` is durable; CLOCK_BOOTTIME showed `boottime` then. Called
    /// after each batch and at each heartbeat, so it waits for nothing.
    fn alive(&mut self, _at: Timestamp, _boottime: u64) {}

    /// The pipeline is idle: time for small housekeeping.
    fn idle(&mut self) {}

    /// The pipeline serves no longer. The machine may be one batch ahead of the committed ones.
    ///
    /// # Errors
    /// [`LogError`] if this node cannot go on.
    fn end(self: Box<Self>, machine: Machine) -> Result<(), LogError> {
        drop(machine);
        Ok(())
    }
}

/// The batches that every reader of the log understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writable {
    /// Their newest version.
    pub version: u8,
    /// The refusal of a request that needs a newer one.
    pub refusal: Failure,
}

impl Default for Writable {
    /// Nobody else reads the log.
    fn default() -> Writable {
        Writable {
            version: newest_version(),
            refusal: Failure::Refused(String::new()),
        }
    }
}

/// Why a batch must not be acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// Another node leads. Whether the batch survives is for that one to say.
    Deposed,
    /// It is not certain that the batch is durable; says why.
    Failed(String),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Deposed => f.write_str("another node leads"),
            LogError::Failed(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for LogError {}

/// No log: the authority forgets everything when its process ends. For tests and for locks among the
/// tasks of one process.
#[derive(Debug, Default)]
pub struct Forgetful;

impl Log for Forgetful {
    fn has_room(&mut self, _bytes: usize) -> bool {
        true
    }

    fn commit(&mut self, _batch: &[u8]) -> Result<(), LogError> {
        Ok(())
    }
}

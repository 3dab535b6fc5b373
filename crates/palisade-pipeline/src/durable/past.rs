//! The events that a log still has, for a history that missed some.

use std::path::Path;

use palisade_wal::{DirStorage, Observed, Purpose, ReadError, observe, purpose};

use super::{Error, from_snapshot, not_replayed};
use crate::replay::{Replay, Told};
use crate::seed;

/// Reads the events after a revision from the log in `dir`, which may be in use.
///
/// It replays the log into a machine of its own, as a start does, beside the one that serves.
///
/// # Errors
/// [`Error`]. For the log of a cluster's node, which only the node's own crate can read, it tells nothing.
pub fn events_after(dir: &Path, after: u64, each: &mut dyn FnMut(Told<'_>)) -> Result<(), Error> {
    let storage = DirStorage::observe(dir)?;
    let Purpose::Single(identity) = purpose(&storage)? else {
        return Ok(());
    };
    observe(&storage, identity.incarnation, unreadable, |log| {
        read(log, after, each)
    })
}

fn read(log: &Observed<'_>, after: u64, each: &mut dyn FnMut(Told<'_>)) -> Result<(), Error> {
    let mut replay = read_into(log, seed())?;
    each(Told::Begins(replay.machine().revision()));
    log.replay(|_, batch| replay.tell(batch, after, each))
        .map_err(not_replayed)?;
    each(Told::Now(replay.machine()));
    Ok(())
}

/// The state in the log's newest snapshot; that of nothing without one.
pub(super) fn read_into(log: &Observed<'_>, seed: u64) -> Result<Replay, Error> {
    match log.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot, seed),
        None => Ok(Replay::from_nothing(seed)),
    }
}

pub(super) fn unreadable(error: &Error) -> Option<&ReadError> {
    match error {
        Error::Read(error) => Some(error),
        _ => None,
    }
}

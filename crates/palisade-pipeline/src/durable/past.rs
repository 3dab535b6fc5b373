//! The events that a log still has, for a history that missed some.

use std::path::Path;

use palisade_core::Event;
use palisade_wal::{DirStorage, Observed, Purpose, ReadError, observe, purpose};

use super::{Error, from_snapshot, not_replayed};
use crate::replay::Replay;
use crate::seed;

/// Reads the events after a revision from the log in `dir`, which may be in use. `each` gets the events of a batch, and the
/// revision before the first event that the log has: the log itself begins at its newest snapshot. Files that go away
/// meanwhile make it begin again, so events may come twice.
///
/// It replays the log into a machine of its own, as a start does, beside the one that serves.
///
/// # Errors
/// [`Error`], also for a node of a cluster, whose log only the node can read.
pub fn events_after(
    dir: &Path,
    after: u64,
    each: &mut dyn FnMut(u64, &[Event]),
) -> Result<(), Error> {
    let storage = DirStorage::observe(dir)?;
    let Purpose::Single(identity) = purpose(&storage)? else {
        return Ok(());
    };
    observe(&storage, identity.incarnation, unreadable, |log| {
        read(log, after, each)
    })
}

fn read(log: &Observed<'_>, after: u64, each: &mut dyn FnMut(u64, &[Event])) -> Result<(), Error> {
    let mut replay = match log.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot)?,
        None => Replay::from_nothing(seed()),
    };
    let base = replay.machine().revision();
    each(base, &[]);
    log.replay(|_, batch| {
        let events = replay.follow(batch)?;
        if events.last().is_some_and(|event| event.revision > after) {
            each(base, &events);
        }
        Ok(())
    })
    .map_err(not_replayed)
}

fn unreadable(error: &Error) -> Option<&ReadError> {
    match error {
        Error::Read(error) => Some(error),
        _ => None,
    }
}

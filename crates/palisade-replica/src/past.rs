//! The events that a node's log still has, for a history that missed some.

use std::path::Path;

use palisade_pipeline::replay::Told;
use palisade_pipeline::seed;
use palisade_wal::{DirStorage, observe};

use crate::directory::{DirectoryError, not_replayed};
use crate::recovery::{member, unreadable};
use crate::state::{State, StateError};
use crate::store::read_all;

/// Reads the events after a revision from the log of the node in `dir`, which may be in use: those of entries that the log
/// knows to be committed. A running node writes that down a moment later.
///
/// # Errors
/// [`DirectoryError`]
pub fn events_after(
    dir: &Path,
    after: u64,
    each: &mut dyn FnMut(Told<'_>),
) -> Result<(), DirectoryError> {
    let storage = DirStorage::observe(dir)?;
    let (identity, _) = member(&storage)?;
    observe(&storage, identity.incarnation, unreadable, |log| {
        let mut state = match log.snapshot()? {
            Some(mut snapshot) => {
                let bytes = read_all(&mut snapshot).map_err(StateError::Io)?;
                State::load(seed(), &bytes, false)?
            }
            None => State::new(seed(), false),
        };
        each(Told::Begins(state.machine.machine().revision()));
        let tell =
            |_, frame: &[u8]| state.take(frame, |machine, batch| machine.tell(batch, after, each));
        log.replay(tell).map_err(not_replayed)?;
        each(Told::Now(state.machine.machine()));
        Ok(())
    })
}

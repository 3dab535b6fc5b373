//! Uses a member's directory without its cluster: a look, a backup, and the recovery from a lost majority.
//!
//! ```text
//!   member, running or not ──back_up──► backup ──palisade restore──► a single server's (rule R25)
//!   member, stopped        ──recover──► a single server's, in the same directory      (rule R26)
//! ```
//!
//! A backup has the committed entries only. A recovery takes the whole log: the lost nodes may have acknowledged entries
//! that this node does not know to be committed. Both lead to a new incarnation of the same authority. Its counter has
//! leapt above every token that was issued, and it does not let the old members in.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_pipeline::durable::{self, Contents, Restored};
use palisade_pipeline::seed;
use palisade_wal::{
    DirStorage, Identity, InPlace, OpenError, Options, Purpose, ReadError, ReplayError,
    SnapshotReader, Storage, observe,
};

use crate::directory::{DirectoryError, not_replayed};
use crate::entry::{LogId, Members, NodeId, Payload};
use crate::log::Log;
use crate::mark;
use crate::peers::HISTORY;
use crate::record;
use crate::state::{SnapshotHead, State, StateError};
use crate::store::read_all;

/// A running node with a quorum writes down which entries are committed within [`LOOKS`] looks, [`BETWEEN`] apart.
const LOOKS: u32 = 40;
const BETWEEN: Duration = Duration::from_millis(125);

/// How far a member's log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The node.
    pub node: NodeId,
    /// Its cluster, and the life of that.
    pub identity: Identity,
    /// The last entry. Among nodes that lost nothing, the one with the greatest is furthest ahead: the term is compared
    /// first, then the index.
    pub last: Option<LogId>,
    /// Up to here entries are known to be committed.
    pub committed: Option<LogId>,
    /// The members as of the last entry.
    pub members: Members,
    /// Where the entries of the newest leaderships begin ([`Log::history`]).
    pub history: Vec<LogId>,
}

impl Look {
    /// The entries that are not known to be committed.
    #[must_use]
    pub fn uncommitted(&self) -> u64 {
        count(self.last).saturating_sub(count(self.committed))
    }
}

/// The entries up to this one.
fn count(to: Option<LogId>) -> u64 {
    to.map_or(0, |id| id.index + 1)
}

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// The cluster.
    pub identity: Identity,
    /// The committed entries that it was made of.
    pub entries: u64,
    /// The entries behind them that this node did not know to be committed.
    pub left_out: u64,
}

/// Looks at the log of the member in `dir`, whether it runs or not. Nothing is changed.
///
/// # Errors
/// [`DirectoryError`].
pub fn look(dir: &Path) -> Result<Look, DirectoryError> {
    look_on(&DirStorage::observe(dir)?)
}

/// [`look`] on any storage.
///
/// # Errors
/// As [`look`].
pub fn look_on(storage: &dyn Storage) -> Result<Look, DirectoryError> {
    let (identity, node) = member(storage)?;
    let (log, members) = observe(storage, identity.incarnation, unreadable, |seen| {
        let mut head = match seen.snapshot()? {
            Some(mut snapshot) => {
                SnapshotHead::take(&read_all(&mut snapshot).map_err(StateError::Io)?)?.0
            }
            None => SnapshotHead {
                log: Log::default(),
                members: (None, Members::default()),
            },
        };
        let take = |_, frame: &[u8]| {
            let mut records = record::read(frame)?.into_iter();
            records.try_for_each(|record| head.log.record(record))?;
            Ok::<(), StateError>(())
        };
        seen.replay(take).map_err(not_replayed)?;
        Ok((head.log, head.members.1))
    })?;
    let newest = log.entries().rev().find_map(|entry| match &entry.payload {
        Payload::Members(members) => Some(members.clone()),
        Payload::Blank | Payload::Batch(_) => None,
    });
    Ok(Look {
        node,
        identity,
        last: log.last(),
        committed: log.committed(),
        history: log.history(HISTORY),
        members: newest.unwrap_or(members),
    })
}

/// Reads the committed entries of the member in `dir`, whether it runs or not. Nothing is changed.
///
/// # Errors
/// [`DirectoryError`].
pub fn contents(dir: &Path) -> Result<Contents, DirectoryError> {
    let storage = DirStorage::observe(dir)?;
    let (identity, _) = member(&storage)?;
    observe(&storage, identity.incarnation, unreadable, |seen| {
        let state = read(seen.snapshot()?, |state| {
            seen.replay(|_, frame| state.frame(frame))
        })?;
        Ok(Contents::of(seen, &state.machine))
    })
}

/// Makes a backup of the member in `from`, running or not, in the empty directory `to`. It is a backup as of a single
/// server.
///
/// It has every entry that this node knew to be committed and had on its disk at the call. A running node writes commits
/// down a moment later, so its log is looked at again for up to five seconds. Entries that are not known to be committed
/// then are left out. Durable on return.
///
/// # Errors
/// [`DirectoryError`]; [`OpenError::NotEmpty`] for the target.
pub fn back_up(from: &Path, to: &Path) -> Result<BackupReport, DirectoryError> {
    let to = DirStorage::create_for_copy(to)?;
    back_up_on(&DirStorage::observe(from)?, &to, pause)
}

#[expect(
    clippy::disallowed_methods,
    reason = "another process writes the log and announces nothing"
)]
fn pause() {
    std::thread::sleep(BETWEEN);
}

/// [`back_up`] on any storage; `wait` lets time pass between two looks.
///
/// # Errors
/// As [`back_up`].
pub fn back_up_on(
    from: &dyn Storage,
    to: &dyn Storage,
    mut wait: impl FnMut(),
) -> Result<BackupReport, DirectoryError> {
    let mut look = look_on(from)?;
    let asked_for = look.last;
    for _ in 0..LOOKS {
        if look.committed >= asked_for {
            break;
        }
        wait();
        look = look_on(from)?;
    }
    let state = observe(from, look.identity.incarnation, unreadable, |seen| {
        read(seen.snapshot()?, |state| {
            seen.replay(|_, frame| state.frame(frame))
        })
    })?;
    let of = (look.identity.owner, look.identity.incarnation);
    palisade_wal::backup_state_on(to, of, |out| {
        state.machine.snapshot(|bytes| out.write_all(bytes))
    })?;
    let entries = count(state.applied);
    Ok(BackupReport {
        identity: look.identity,
        entries,
        left_out: count(look.last).saturating_sub(entries),
    })
}

/// Turns a member's directory into a single server's, for a cluster whose majority is lost for good. It keeps the whole log
/// of this node, including entries that are not known to be committed; entries that this node does not have are lost. The
/// authority stays, the incarnation is new, and the counter leaps. The result is durable on return. A crash before that
/// leaves the member's directory, and the recovery can be repeated.
///
/// # Errors
/// [`DirectoryError`]: in use, not a member's, damaged, I/O, a wall clock before 2026. The directory is as it was.
pub fn recover(dir: &Path) -> Result<Restored, DirectoryError> {
    let recovered = recover_on(Arc::new(DirStorage::lock_log(dir)?), &Options::default())?;
    // It begins anew, even after a loss.
    mark::clear(dir).map_err(StateError::Io)?;
    Ok(recovered)
}

/// [`recover`] on any storage.
///
/// # Errors
/// As [`recover`].
pub fn recover_on(
    storage: Arc<dyn Storage>,
    options: &Options,
) -> Result<Restored, DirectoryError> {
    let begun = InPlace::begin_member_on(storage)?;
    let mut state = read(begun.snapshot()?, |state| {
        begun.replay(|_, frame| state.frame(frame))
    })?;
    state.commit_all()?;
    Ok(durable::begin_again(begun, state.machine, options)?)
}

fn read(
    snapshot: Option<SnapshotReader>,
    replay: impl FnOnce(&mut State) -> Result<(), ReplayError<StateError>>,
) -> Result<State, DirectoryError> {
    let mut state = match snapshot {
        Some(mut snapshot) => {
            let bytes = read_all(&mut snapshot).map_err(StateError::Io)?;
            State::load(seed(), &bytes, false)?
        }
        None => State::new(seed(), false),
    };
    replay(&mut state).map_err(not_replayed)?;
    Ok(state)
}

pub(crate) fn member(storage: &dyn Storage) -> Result<(Identity, NodeId), OpenError> {
    let dir = storage.path();
    match palisade_wal::purpose(storage)? {
        Purpose::Member { identity, node } => Ok((identity, NodeId(node.get()))),
        Purpose::Single(_) => Err(OpenError::NotMember { dir }),
        Purpose::Blank => Err(OpenError::Missing { dir }),
    }
}

pub(crate) fn unreadable(error: &DirectoryError) -> Option<&ReadError> {
    match error {
        DirectoryError::Read(error) => Some(error),
        _ => None,
    }
}

//! Keeps the machine while this node follows, and lends it to the pipeline while it leads.

use std::mem;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use palisade_core::{Event, Machine};
use palisade_pipeline::Handle;
use palisade_pipeline::replay::Replay;
use tokio::sync::Notify;

use crate::entry::{Entry, Leader, LogId, Members, Payload};
use crate::log::Log;
use crate::state::{SnapshotHead, State, StateError};
use crate::store::Store;

/// Applies committed entries to the machine, in order, while this node follows. While it leads, the machine is lent:
/// the pipeline applies each batch before it proposes it.
pub struct Applier {
    inner: Mutex<Inner>,
    returned: Notify,
    store: Store,
    /// Shows applied entries to this node's watchers and in its counters.
    shown: OnceLock<Handle>,
}

struct Inner {
    /// The last entry that the engine handed over.
    applied: Option<LogId>,
    members: (Option<LogId>, Members),
    machine: Custody,
    /// The last entry that is in the machine. It is ahead of `applied` when the machine has just come back.
    contains: Option<LogId>,
}

enum Custody {
    Here(Box<Replay>),
    /// The pipeline of this leadership has it, and applies its own batches to it.
    Lent(Leader),
    /// It is being built anew as of `applied`, so nothing may be applied.
    Rebuilt,
}

/// The machine of a node that leads.
pub struct Lent {
    /// It contains every committed entry.
    pub machine: Machine,
    /// The last of them.
    pub contains: LogId,
    /// The newest version of a batch among them.
    pub version: u8,
}

impl Applier {
    /// Goes on from a state that was read.
    #[must_use]
    pub fn new(state: State, store: Store) -> Applier {
        let State {
            applied,
            members,
            machine,
            ..
        } = state;
        Applier {
            inner: Mutex::new(Inner {
                applied,
                members,
                machine: Custody::Here(Box::new(machine)),
                contains: applied,
            }),
            returned: Notify::new(),
            store,
            shown: OnceLock::new(),
        }
    }

    /// From now on, the watchers of this pipeline see applied entries. While the pipeline has the machine, it shows
    /// them itself.
    pub fn show_to(&self, handle: Handle) {
        let inner = self.inner();
        let handle = self.shown.get_or_init(|| handle);
        if let Custody::Here(machine) = &inner.machine {
            handle.show(Vec::new(), machine.machine());
        }
    }

    fn show(&self, events: Vec<Event>, machine: &Replay) {
        if let Some(handle) = self.shown.get() {
            handle.show(events, machine.machine());
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last entry that was applied, and the cluster's members as of it.
    #[must_use]
    pub fn applied(&self) -> (Option<LogId>, (Option<LogId>, Members)) {
        let inner = self.inner();
        (inner.applied, inner.members.clone())
    }

    /// Applies a committed entry. Waits for the machine if it is lent and the entry is not its borrower's.
    ///
    /// # Errors
    /// [`StateError`] if the entry is no batch: this node cannot go on.
    pub async fn apply(&self, entry: Entry) -> Result<(), StateError> {
        loop {
            let returned = self.returned.notified();
            if self.try_apply(&entry)? {
                return Ok(());
            } else {
                returned.await
            }
        }
    }

    fn try_apply(&self, entry: &Entry) -> Result<bool, StateError> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        match (&mut inner.machine, &entry.payload) {
            (Custody::Rebuilt, _) => return Ok(false),
            (_, Payload::Blank) => {}
            (_, Payload::Members(members)) => inner.members = (Some(entry.id), members.clone()),
            (Custody::Lent(leader), Payload::Batch(_)) if entry.id.leader == *leader => {}
            (Custody::Lent(_), Payload::Batch(_)) => return Ok(false),
            (Custody::Here(machine), Payload::Batch(batch)) => {
                if inner
                    .contains
                    .is_none_or(|last| last.index < entry.id.index)
                {
                    let events = machine.follow(batch)?;
                    self.show(events, machine);
                }
            }
        }
        inner.applied = Some(entry.id);
        if matches!(inner.machine, Custody::Here(_)) {
            inner.contains = inner.contains.max(Some(entry.id));
        }
        Ok(true)
    }

    /// A snapshot of the state applied now.
    ///
    /// # Errors
    /// [`StateError`] if the machine is lent and cannot be built anew from the log.
    pub fn snapshot(&self) -> Result<Vec<u8>, StateError> {
        let inner = self.inner();
        let mut bytes = Vec::new();
        let mut write = |part: &[u8]| -> Result<(), StateError> {
            bytes.extend_from_slice(part);
            Ok(())
        };
        match &inner.machine {
            // Entries that it contains beyond `applied` are committed too.
            Custody::Here(machine) => {
                let mut head = Vec::new();
                let put =
                    |log: &Log| SnapshotHead::put(&mut head, inner.contains, &inner.members, log);
                self.store.look(put);
                write(&head)?;
                machine.snapshot(write)?;
            }
            Custody::Lent(_) | Custody::Rebuilt => {
                let applied = inner.applied;
                drop(inner);
                self.store.rebuild(applied)?.save(write)?;
            }
        }
        Ok(bytes)
    }

    /// Another node's snapshot takes the place of everything before it.
    pub(crate) async fn replace(&self, state: State) {
        let State {
            applied,
            members,
            machine,
            ..
        } = state;
        loop {
            let returned = self.returned.notified();
            {
                let mut inner = self.inner();
                if matches!(inner.machine, Custody::Here(_)) {
                    self.show(Vec::new(), &machine);
                    *inner = Inner {
                        applied,
                        members,
                        machine: Custody::Here(Box::new(machine)),
                        contains: applied,
                    };
                    return;
                }
            }
            returned.await;
        }
    }

    /// Lends the machine to the pipeline of `leader`, which is this node, once `from` and everything in the log is
    /// applied. `None` until then, and while the machine is already lent.
    ///
    /// The log behind `from` may contain a batch that this node proposed earlier under the same leadership, and gave
    /// up.
    #[must_use]
    pub fn lend(&self, leader: Leader, from: LogId) -> Option<Lent> {
        let mut inner = self.inner();
        if inner.applied < Some(from).max(self.store.look(Log::last)) {
            return None;
        }
        match mem::replace(&mut inner.machine, Custody::Lent(leader)) {
            Custody::Here(machine) => Some(Lent {
                version: machine.version(),
                machine: machine.finish(),
                contains: inner.contains.map_or(from, |last| last.max(from)),
            }),
            lent => {
                inner.machine = lent;
                None
            }
        }
    }

    /// Whether the log has a batch between these two.
    pub(crate) fn has_batch_between(&self, after: LogId, before: u64) -> bool {
        let is_batch = |entry: &Entry| matches!(entry.payload, Payload::Batch(_));
        self.store
            .look(|log| log.range(after.index + 1..before).any(is_batch))
    }

    /// Takes the machine back. `None` if it is not certain that everything in it is committed: then it is built anew
    /// (rule R3).
    ///
    /// # Errors
    /// [`StateError`] if it cannot be built: this node cannot go on.
    pub fn take_back(&self, lent: Option<Lent>) -> Result<(), StateError> {
        let (machine, contains) = match lent {
            Some(lent) => (
                Replay::from_machine(lent.machine, lent.version),
                Some(lent.contains),
            ),
            None => {
                let applied = {
                    let mut inner = self.inner();
                    inner.machine = Custody::Rebuilt;
                    inner.applied
                };
                let state = self.store.rebuild(applied)?;
                (state.machine, state.applied)
            }
        };
        let mut inner = self.inner();
        self.show(Vec::new(), &machine);
        inner.machine = Custody::Here(Box::new(machine));
        inner.contains = contains;
        drop(inner);
        self.returned.notify_waiters();
        Ok(())
    }
}

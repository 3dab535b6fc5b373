//! What happens within the fence: one holder at a time, from the lock to the answer.
//!
//! ```text
//!   lock ─► load ─► finish what is pending ─► judge ─► stage ─► sidecar ─► carry out
//!                                                              ▲
//!                        before: nothing happened ────────────┴─ after: it will have happened
//! ```
//!
//! The sidecar is replaced in one step, by a rename. It says what is decided and carries the raised fence;
//! what is to be written lies staged beside it, synced. A crash before that step leaves the old state; after
//! it, whoever comes next finds the staged file and carries the write out. Carrying out twice does no harm,
//! and the staged file goes last.

use std::os::fd::OwnedFd;

use palisade_core::fence::{FenceState, Op, Pass, Reject, Rule, Verdict};

use super::disk::Disk;
use super::fault::Fault;
use super::sidecar::{Effect, Left, Pending, Sidecar};
use crate::objects::Alter;

/// Names with this beginning are the fence's own.
pub(super) const OWN: &str = ".palisade-";

pub(super) const LOCK: &str = ".palisade-lock";
const SIDECAR: &str = ".palisade-fence";
const NEXT_SIDECAR: &str = ".palisade-fence-next";

fn staged(revision: u64) -> String {
    format!("{OWN}staged-{revision}")
}

/// The state of a folder, if it has one.
pub(super) fn load(disk: &Disk, folder: &str) -> Result<Option<Sidecar>, Fault> {
    let Some(bytes) = disk.read(SIDECAR)? else {
        return Ok(None);
    };
    let sidecar = Sidecar::decode(&bytes).map_err(|problem| Fault::Corrupt {
        folder: folder.to_owned(),
        problem,
    })?;
    Ok(Some(sidecar))
}

/// A folder while its lock is held.
pub(super) struct Within<'a> {
    disk: &'a Disk,
    _lock: OwnedFd,
    held: Sidecar,
}

/// What is to be done.
pub(super) enum Judged {
    /// Admitted; this is the state from now on.
    Admit(Sidecar),
    /// It was carried out before.
    Repeat,
    /// Nothing changes.
    Reject(Reject),
}

impl<'a> Within<'a> {
    /// Goes in: finishes what a crash left, and looks whether all is as the fence left it.
    pub(super) fn enter(disk: &'a Disk, lock: OwnedFd, folder: &str) -> Result<Within<'a>, Fault> {
        let held = match load(disk, folder)? {
            Some(sidecar) => sidecar,
            None if is_empty(disk)? => Sidecar::default(),
            None => {
                return Err(Fault::Lost {
                    folder: folder.to_owned(),
                });
            }
        };
        let within = Within {
            disk,
            _lock: lock,
            held,
        };
        within.finish()?;
        within.is_as_it_was_left(folder)?;
        Ok(within)
    }

    /// Goes in to re-arm: what is there may be lost, damaged or changed.
    pub(super) fn enter_anyway(disk: &'a Disk, lock: OwnedFd) -> Result<Within<'a>, Fault> {
        let held = disk.read(SIDECAR)?;
        let held = held.and_then(|bytes| Sidecar::decode(&bytes).ok());
        let within = Within {
            disk,
            _lock: lock,
            held: held.unwrap_or_default(),
        };
        within.finish()?;
        Ok(within)
    }

    pub(super) const fn fence(&self) -> &FenceState {
        &self.held.fence
    }

    pub(super) fn judge(
        &self,
        rule: Rule,
        pass: Option<Pass<'_>>,
        op: Op,
        digest: Option<u64>,
    ) -> Judged {
        let before = &self.held;
        let verdict = match pass {
            Some(pass) => rule.decide(&before.fence, pass, op),
            None => before.fence.decide_tokenless_write(),
        };
        match (verdict, op) {
            (Verdict::Reject(reject), _) => Judged::Reject(reject),
            (Verdict::Repeat, Op::Write(Some(last))) if before.digest != digest => {
                Judged::Reject(Reject::SequenceReused { last })
            }
            (Verdict::Repeat, _) => Judged::Repeat,
            (Verdict::Admit(next), _) => {
                let fence = next.unwrap_or_else(|| before.fence.clone());
                let same_grant = fence.highest() == before.fence.highest();
                Judged::Admit(Sidecar {
                    digest: digest.or(before.digest.filter(|_| same_grant)),
                    fence,
                    pending: None,
                    last: before.last.clone(),
                    revision: before.revision,
                })
            }
        }
    }

    /// Makes a state without a write durable, unless it is the one there already.
    pub(super) fn raise(&mut self, next: Sidecar) -> Result<(), Fault> {
        if next.fence == self.held.fence {
            return Ok(());
        }
        self.replace(next)
    }

    /// Replaces the state whatever was there, for a re-arming: the length of a file is forgotten.
    pub(super) fn rearm(&mut self, fence: FenceState) -> Result<(), Fault> {
        self.replace(Sidecar {
            fence,
            revision: self.held.revision,
            ..Sidecar::default()
        })
    }

    /// Writes, under a new state. `None`: there was nothing to delete, and nothing was done.
    pub(super) fn write(
        &mut self,
        next: Sidecar,
        name: &str,
        alter: &Alter,
    ) -> Result<Option<()>, Fault> {
        let before = self.disk.length(name)?;
        let effect = match (alter, before) {
            (Alter::Delete, None) => return Ok(None),
            (Alter::Delete, Some(_)) => Effect::Delete,
            (Alter::Put(_), _) => Effect::Put,
            (Alter::Append(_), before) => Effect::Append(before.unwrap_or(0)),
        };
        let bytes = alter.bytes();
        let offset = match effect {
            Effect::Append(offset) => offset,
            Effect::Put | Effect::Delete => 0,
        };
        let left = Left {
            length: offset + bytes.len() as u64,
            name: name.to_owned(),
        };
        let stage = staged(self.held.revision + 1);
        let staging = self.disk.write(&stage, bytes, Some(name));
        if let Err(fault) = staging.and_then(|()| self.disk.sync_names()) {
            // Nothing is decided yet. If it cannot be removed either, the next one writes over it.
            let _ = self.disk.remove(&stage);
            return Err(fault);
        }
        self.replace(Sidecar {
            pending: Some(Pending {
                name: name.to_owned(),
                effect,
            }),
            last: (effect != Effect::Delete).then_some(left),
            ..next
        })?;
        self.finish()?;
        self.disk.step("answer");
        Ok(Some(()))
    }

    /// The step that decides.
    fn replace(&mut self, next: Sidecar) -> Result<(), Fault> {
        let next = Sidecar {
            revision: self.held.revision + 1,
            ..next
        };
        self.disk.write(NEXT_SIDECAR, &next.encode(), None)?;
        self.disk.rename(NEXT_SIDECAR, SIDECAR)?;
        self.disk.sync_names()?;
        self.held = next;
        Ok(())
    }

    /// Carries out what is decided and staged, and removes what was staged and never decided.
    fn finish(&self) -> Result<(), Fault> {
        let stage = staged(self.held.revision);
        if let Some(pending) = &self.held.pending
            && self.disk.length(&stage)?.is_some()
        {
            self.carry_out(pending, &stage)?;
        }
        let undecided = staged(self.held.revision + 1);
        match self.disk.length(&undecided)? {
            Some(_) => self.disk.remove(&undecided),
            None => Ok(()),
        }
    }

    fn carry_out(&self, pending: &Pending, stage: &str) -> Result<(), Fault> {
        let (disk, name) = (self.disk, &pending.name);
        match pending.effect {
            Effect::Put => {
                disk.rename(stage, name)?;
                disk.sync_names()
            }
            Effect::Append(offset) => {
                let bytes = disk.read(stage)?.unwrap_or_default();
                let is_new = disk.length(name)?.is_none();
                disk.write_at(name, &bytes, offset)?;
                if is_new {
                    disk.sync_names()?;
                }
                disk.remove(stage)
            }
            Effect::Delete => {
                disk.remove(name)?;
                disk.sync_names()?;
                disk.remove(stage)
            }
        }
    }

    fn is_as_it_was_left(&self, folder: &str) -> Result<(), Fault> {
        let Some(Left { length, name }) = &self.held.last else {
            return Ok(());
        };
        let found = self.disk.length(name)?;
        if found == Some(*length) {
            return Ok(());
        }
        Err(Fault::Changed {
            folder: folder.to_owned(),
            file: name.clone(),
            left: *length,
            found: found.unwrap_or(0),
        })
    }
}

fn is_empty(disk: &Disk) -> Result<bool, Fault> {
    Ok(disk.names()?.iter().all(|name| name.starts_with(OWN)))
}

//! The steps under the fence's lock: one holder at a time, from the lock to the answer.
//!
//! ```text
//!   lock ─► load ─► finish a pending write ─► decide ─► stage ─► sidecar ─► carry out
//!                                                                ▲
//!                        before: nothing happened ──────────────┴─ after: it will have happened
//! ```
//!
//! The sidecar is replaced in one step, by a rename. It contains the decision and the raised fence; the new
//! data is staged beside it, synced. A crash before that step leaves the old state. After a crash that follows it,
//! the next operation finds the staged file and carries the write out. Carrying a write out twice does no
//! harm, and the staged file is removed last.

use std::os::fd::OwnedFd;

use palisade_core::fence::{FenceRecord, FenceState, Op, Pass, Rule, Verdict};

use super::disk::{OpenFolder, bad_name};
use super::sidecar::{Effect, LastFile, PendingWrite, Sidecar};
use crate::error::{Error, Result};
use crate::objects::Alter;

/// The prefix of the fence's own files.
pub(super) const OWN: &str = ".palisade-";

pub(super) const LOCK: &str = ".palisade-lock";
const SIDECAR: &str = ".palisade-fence";
const NEXT_SIDECAR: &str = ".palisade-fence-next";

fn staged(revision: u64) -> String {
    format!("{OWN}staged-{revision}")
}

/// Reads the state of a folder, if it has one.
pub(super) fn load(disk: &OpenFolder, folder: &str) -> Result<Option<Sidecar>> {
    let Some(bytes) = disk.read(SIDECAR)? else {
        return Ok(None);
    };
    let sidecar = Sidecar::decode(&bytes).map_err(|problem| {
        Error::Damaged(format!("{folder}: the fence state is damaged: {problem}"))
    })?;
    Ok(Some(sidecar))
}

/// A folder while its lock is held.
pub(super) struct Locked<'a> {
    disk: &'a OpenFolder,
    _lock: OwnedFd,
    held: Sidecar,
}

impl<'a> Locked<'a> {
    /// Takes over the lock, completes a write that a crash interrupted, and checks that the folder is as the fence
    /// left it.
    pub(super) fn enter(disk: &'a OpenFolder, lock: OwnedFd, folder: &str) -> Result<Locked<'a>> {
        let held = match load(disk, folder)? {
            Some(sidecar) => sidecar,
            None if is_empty(disk)? => Sidecar::default(),
            None => {
                return Err(Error::FenceLost(format!(
                    "{folder}: there are files without their fence state; an operator must re-arm the fence with a floor"
                )));
            }
        };
        let locked = Locked {
            disk,
            _lock: lock,
            held,
        };
        locked.finish()?;
        locked.check_unchanged(folder)?;
        Ok(locked)
    }

    /// Takes over the lock for a re-arming: the state may be lost, damaged or changed.
    pub(super) fn enter_for_rearm(disk: &'a OpenFolder, lock: OwnedFd) -> Result<Locked<'a>> {
        let held = disk.read(SIDECAR)?;
        let held = held.and_then(|bytes| Sidecar::decode(&bytes).ok());
        let locked = Locked {
            disk,
            _lock: lock,
            held: held.unwrap_or_default(),
        };
        locked.finish()?;
        Ok(locked)
    }

    pub(super) const fn fence(&self) -> &FenceState {
        &self.held.fence.state
    }

    pub(super) fn decide(
        &self,
        rule: Rule,
        pass: Option<Pass<'_>>,
        op: Op,
        digest: Option<u64>,
    ) -> Verdict<FenceRecord> {
        self.held.fence.decide(rule, pass, op, digest)
    }

    /// Makes a raised fence durable; `None` leaves the stored one.
    pub(super) fn raise(&mut self, next: Option<FenceRecord>) -> Result<()> {
        match next {
            Some(fence) => self.replace(Sidecar {
                fence,
                pending: None,
                ..self.held.clone()
            }),
            None => Ok(()),
        }
    }

    /// Replaces any state for a re-arming: the length of a file is forgotten.
    pub(super) fn rearm(&mut self, fence: FenceState) -> Result<()> {
        self.replace(Sidecar {
            fence: fence.into(),
            revision: self.held.revision,
            ..Sidecar::default()
        })
    }

    /// Writes under the next fence, or under the stored one. `None`: there was nothing to delete, and nothing
    /// was done.
    pub(super) fn write(
        &mut self,
        next: Option<FenceRecord>,
        name: &str,
        alter: &Alter,
    ) -> Result<Option<()>> {
        let before = self.disk.length(name)?;
        let effect = match (alter, before) {
            (Alter::Delete, None) => return Ok(None),
            (Alter::Delete, Some(_)) => Effect::Delete,
            (Alter::Put(_), _) => Effect::Put,
            (Alter::Append(_), Some(_)) if self.disk.has_other_names(name)? => {
                return Err(bad_name(
                    name,
                    "has other names (hard links), and an append would change those files too: put it whole",
                ));
            }
            (Alter::Append(_), before) => Effect::Append(before.unwrap_or(0)),
        };
        let bytes = alter.bytes();
        let offset = match effect {
            Effect::Append(offset) => offset,
            Effect::Put | Effect::Delete => 0,
        };
        let left = LastFile {
            length: offset + bytes.len() as u64,
            name: name.to_owned(),
        };
        let stage = staged(self.held.revision + 1);
        let staging = self.disk.write(&stage, bytes, Some(name));
        if let Err(error) = staging.and_then(|()| self.disk.sync_names()) {
            // Nothing is decided yet. If the removal fails too, the next write overwrites the staged file.
            let _ = self.disk.remove(&stage);
            return Err(error);
        }
        self.replace(Sidecar {
            pending: Some(PendingWrite {
                name: name.to_owned(),
                effect,
            }),
            last: (effect != Effect::Delete).then_some(left),
            fence: next.unwrap_or_else(|| self.held.fence.clone()),
            revision: self.held.revision,
        })?;
        self.finish()?;
        self.disk.step("answer");
        Ok(Some(()))
    }

    /// Replaces the sidecar, which is the step that decides.
    fn replace(&mut self, next: Sidecar) -> Result<()> {
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

    /// Carries out the decided and staged write, and removes staged files that were never decided.
    fn finish(&self) -> Result<()> {
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

    fn carry_out(&self, pending: &PendingWrite, stage: &str) -> Result<()> {
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

    fn check_unchanged(&self, folder: &str) -> Result<()> {
        let Some(LastFile { length, name }) = &self.held.last else {
            return Ok(());
        };
        let found = self.disk.length(name)?;
        if found == Some(*length) {
            return Ok(());
        }
        let found = found.map_or("is missing".to_owned(), |bytes| {
            format!("has {bytes} bytes")
        });
        Err(Error::Damaged(format!(
            "{folder}: {name} {found}, and the fence left it with {length}: it was changed by code that \
             does not use the fence; an operator must look, and re-arm the fence"
        )))
    }
}

fn is_empty(disk: &OpenFolder) -> Result<bool> {
    Ok(disk.names()?.iter().all(|name| name.starts_with(OWN)))
}

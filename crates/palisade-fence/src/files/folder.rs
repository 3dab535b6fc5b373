//! A fenced folder with blocking calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::fence::{
    FenceRecord, FenceState, Op, Pass, Rearm, Reject, Rule, Sequence, Verdict,
};

use super::disk::{OpenFolder, StepHook, bad_name};
use super::locked::{LOCK, Locked, OWN, load};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::fence::{Edit, Write};
use crate::lock_holder::{FileLock, LockHolder, holders, in_the_way};
use crate::name::ObjectPath;
use crate::objects::{Alter, digest};

/// A folder whose files are written under a fence. Clones share the folder.
///
/// Any number of threads and processes may open the same folder; the fence admits one call at a time. Every call
/// blocks for several disk syncs.
#[derive(Clone)]
pub struct Folder {
    disk: Arc<OpenFolder>,
    name: Arc<str>,
    rule: Rule,
    patience: Duration,
}

/// The longest file name of the common file systems, in bytes.
const NAME_BYTES: usize = 255;

impl Folder {
    /// The default time to wait for another holder of the fence's lock; [`Folder::patience`] changes it.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Opens an existing folder. Files in it without a fence are refused at the first operation;
    /// [`Root`](super::Root) re-arms it.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no such folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Folder> {
        let path = path.as_ref();
        Ok(Folder {
            disk: Arc::new(OpenFolder::open(path)?),
            name: path.display().to_string().into(),
            rule: Rule::CLAIM,
            patience: Folder::PATIENCE,
        })
    }

    /// Returns the same folder with another rule. Use one rule for the whole life of a folder.
    #[must_use]
    pub fn under(self, rule: Rule) -> Folder {
        Folder { rule, ..self }
    }

    /// Returns the same folder with another time to wait for the fence's lock.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Folder {
        Folder { patience, ..self }
    }

    /// Opens a folder for a crash test: `watch` runs just before every step.
    ///
    /// # Errors
    /// As [`Folder::open`].
    #[doc(hidden)]
    pub fn watched(path: impl AsRef<Path>, watch: StepHook) -> Result<Folder> {
        let folder = Folder::open(&path)?;
        let disk = OpenFolder::open(path.as_ref())?.watched(watch);
        Ok(Folder {
            disk: Arc::new(disk),
            ..folder
        })
    }

    /// Raises the fence, before the first read (rule F2): durable when this returns.
    ///
    /// # Errors
    /// [`Error::Rejected`] for a stale token; [`Error::Busy`]; [`Error::FenceLost`] and [`Error::Damaged`], until an operator
    /// re-arms the folder; errors of the file system.
    pub fn claim<'p>(&self, pass: impl Into<Pass<'p>>) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        let mut locked = self.enter()?;
        let verdict = locked.decide(self.rule, Some(pass), Op::Claim, None);
        self.answer(&mut locked, verdict, Some(pass), |locked, next| {
            locked.raise(next)?;
            Ok(Some(()))
        })
    }

    /// Reads a file in order to write (rule F3). `key` is a slash and the file's name.
    ///
    /// # Errors
    /// As [`Folder::claim`]; [`Error::Name`] and [`Error::Argument`] for a file that cannot be one of the folder.
    pub fn read<'p>(
        &self,
        pass: impl Into<Pass<'p>>,
        key: &str,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let (path, pass) = (path(key)?, pass.into().doing("read"));
        let mut locked = self.enter()?;
        let verdict = locked.decide(self.rule, Some(pass), Op::Read, None);
        self.answer(&mut locked, verdict, Some(pass), |locked, next| {
            locked.raise(next)?;
            self.disk.read(file(&path)).map(Some)
        })
    }

    /// Writes a file. A put replaces it in one step and keeps its permissions; an append or a put creates it
    /// if it is missing. Durable when this returns.
    ///
    /// # Errors
    /// As [`Folder::claim`]; [`Error::Name`] and [`Error::Argument`] for a file that cannot be one of the folder.
    pub fn write<'p>(&self, pass: impl Into<Pass<'p>>, write: Write<'_>) -> Result<Admitted<()>> {
        let alter = write.change.into();
        self.change(
            Some(pass.into().doing("write")),
            write.key,
            &alter,
            write.sequence,
        )
    }

    /// A write by code without a token: rejected once the folder is fenced (rule F9). Such code calls this
    /// voluntarily; the file system does not enforce it.
    ///
    /// # Errors
    /// As [`Folder::claim`]; [`Error::Name`] and [`Error::Argument`] for a file that cannot be one of the folder.
    pub fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        self.change(None, key, &change.into(), None)
    }

    /// A plain read for observers, which never waits. It may see part of an append that is in progress, or
    /// that a crash cut short and that is not completed yet.
    ///
    /// # Errors
    /// A name that is not valid; errors of the file system.
    pub fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.disk.read(file(&path(key)?))
    }

    /// The folder's name at rejections.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn change(
        &self,
        pass: Option<Pass<'_>>,
        key: &str,
        alter: &Alter,
        sequence: Option<Sequence>,
    ) -> Result<Admitted<()>> {
        let path = path(key)?;
        let checksum = sequence.map(|_| digest(&path, alter));
        let mut locked = self.enter()?;
        let verdict = locked.decide(self.rule, pass, Op::Write(sequence), checksum);
        self.answer(&mut locked, verdict, pass, |locked, next| {
            locked.write(next, file(&path), alter)
        })
    }

    /// Reads the fence state without taking the lock.
    pub(super) fn show(&self) -> Result<Option<FenceState>> {
        Ok(load(&self.disk, &self.name)?.map(|sidecar| sidecar.fence.state))
    }

    pub(super) fn rearm(&self, with: &Rearm<'_>) -> Result<()> {
        let mut locked = Locked::enter_for_rearm(&self.disk, self.lock()?)?;
        let fence = locked.fence().rearmed(with)?;
        locked.rearm(fence)
    }

    fn enter(&self) -> Result<Locked<'_>> {
        Locked::enter(&self.disk, self.lock()?, &self.name)
    }

    /// Takes the lock. It ends with its holder's process, so it never has to be broken.
    fn lock(&self) -> Result<std::os::fd::OwnedFd> {
        let (mut waited, mut pause) = (Duration::ZERO, Duration::from_micros(100));
        loop {
            if let Some(lock) = self.disk.lock(LOCK)? {
                return Ok(lock);
            }
            if waited >= self.patience {
                return Err(self.busy(waited));
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "a lock of the file system can be waited for with a bound only by asking again"
            )]
            std::thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn busy(&self, waited: Duration) -> Error {
        let holders = self.holders();
        let (parent, resource) = match self.name.trim_end_matches('/').rsplit_once('/') {
            Some((parent, name)) => (parent, name),
            None => (".", &*self.name),
        };
        let in_the_way = in_the_way(&holders, resource, &format!("file://{parent}"));
        let folder = &self.name;
        Error::Busy(format!(
            "{folder}: the fence was not free for {waited:?}; {in_the_way}"
        ))
    }

    /// Returns the processes that hold the fence's lock now. A process holds it for one call, unless it is stopped in
    /// it.
    pub(super) fn holders(&self) -> Vec<LockHolder> {
        let lock = self.disk.status(LOCK);
        lock.map_or_else(Vec::new, |lock| holders(&lock, FileLock::Whole))
    }

    /// Carries out an admitted operation; `None` from it means that there was nothing to change.
    fn answer<T: Default>(
        &self,
        locked: &mut Locked<'_>,
        verdict: Verdict<FenceRecord>,
        pass: Option<Pass<'_>>,
        carry_out: impl FnOnce(&mut Locked<'_>, Option<FenceRecord>) -> Result<Option<T>>,
    ) -> Result<Admitted<T>> {
        let repeat = matches!(verdict, Verdict::Repeat);
        let done = match verdict {
            Verdict::Admit(next) => carry_out(locked, next)?.ok_or(Reject::Missing),
            Verdict::Repeat => Ok(T::default()),
            Verdict::Reject(reject) => Err(reject),
        };
        match done {
            Ok(value) => Ok(Admitted {
                value,
                highest: locked.fence().highest(),
                repeat,
            }),
            Err(reject) => Err(audit::reject(&self.name, pass, reject)),
        }
    }
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder")
            .field("name", &self.name)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

/// Parses a slash and one name: every file of a fenced folder is directly in the folder.
fn path(key: &str) -> Result<ObjectPath> {
    let path = ObjectPath::new(key)?;
    let name = file(&path);
    let problem = if name.contains('/') {
        "is in a subfolder, which would have its own fence"
    } else if folded(name).starts_with(OWN) {
        "belongs to the fence: names that begin with .palisade- are not data"
    } else if name.len() > NAME_BYTES {
        "is too long; a file name has 1 ..= 255 bytes"
    } else {
        return Ok(path);
    };
    Err(bad_name(name, problem))
}

/// Folds a name as a file system may that ignores case and invisible characters.
fn folded(name: &str) -> String {
    let plain = name
        .chars()
        .map(|char| if char == 'ſ' { 's' } else { char });
    plain
        .filter(char::is_ascii)
        .map(|char| char.to_ascii_lowercase())
        .collect()
}

fn file(path: &ObjectPath) -> &str {
    path.as_str().trim_start_matches('/')
}

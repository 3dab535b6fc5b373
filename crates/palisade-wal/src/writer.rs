//! The one writer: a frame, a sync, a sequence number.

use std::io;
use std::sync::Arc;

use crate::compact::{Compacted, Compactor, Shared};
use crate::error::{CommitError, CompactError, Full};
use crate::frame::{self, FrameContent, FrameKind, Seed};
use crate::id::Id;
use crate::identity::Identity;
use crate::opening::Opening;
use crate::prepare::{NEXT, Prepared, Preparer};
use crate::segment::{self, SegmentInfo};
use crate::snapshot::SnapshotWriter;
use crate::storage::{File, Storage};
use crate::{MAX_PAYLOAD, Seq};

/// An open log; its owner is the single writer.
///
/// Dropping it stops without the closing mark, as a crash would. [`close`](Wal::close) leaves the mark, so that the next
/// open can distinguish a flipped bit in the last frame from a torn frame.
pub struct Wal {
    shared: Arc<Shared>,
    preparer: Preparer,
    active: Active,
    next_seq: u64,
    /// The frame being written; its allocation is reused by every commit.
    buffer: Vec<u8>,
    /// The first failure. Set once.
    poison: Option<String>,
}

/// The segment that is written to.
pub(crate) struct Active {
    pub(crate) file: Box<dyn File>,
    pub(crate) first: u64,
    pub(crate) len: u64,
    /// Where the next frame goes.
    pub(crate) end: u64,
    pub(crate) seed: Seed,
    /// The last entry is a mark, or there is none.
    pub(crate) settled: bool,
}

impl Active {
    /// Whether a data frame fits, with room for a mark and the seal behind it.
    fn fits(&self, payload: usize) -> bool {
        self.end + (frame::size(payload) + segment::RESERVE) as u64 <= self.len
    }

    /// Appends the frame of an opening; durable on return.
    ///
    /// The rename of a new segment made its times differ. Before the frame they are made equal, durably, so that also after
    /// a power loss they say that the file was written last.
    pub(crate) fn open(
        &mut self,
        opening: &Opening,
        next_seq: u64,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let entry = FrameContent {
            kind: FrameKind::Opening,
            seq: next_seq - 1,
            synced_upto: next_seq - 1,
            payload: &opening.encode(),
        };
        self.file.write_at(self.end, &[0; frame::ALIGN])?;
        self.file.sync_all()?;
        frame::encode(buffer, self.seed, self.end, &entry);
        self.file.write_at(self.end, buffer)?;
        self.file.sync_data()?;
        self.end += buffer.len() as u64;
        self.settled = true;
        Ok(())
    }
}

impl Wal {
    pub(crate) fn new(
        shared: Arc<Shared>,
        preparer: Preparer,
        active: Active,
        next_seq: u64,
    ) -> Wal {
        Wal {
            shared,
            preparer,
            active,
            next_seq,
            buffer: Vec::new(),
            poison: None,
        }
    }

    /// The identity of the directory.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// The last committed frame, also when it is in a snapshot by now.
    pub fn last_seq(&self) -> Option<Seq> {
        Seq::new(self.next_seq - 1)
    }

    /// The first failure, when the log is poisoned; also that its directory was found to be gone.
    pub fn poisoned(&self) -> Option<&str> {
        self.poison.as_deref().or(self.shared.lost())
    }

    /// Checks that the directory is still where it was opened, and poisons the log when it is not. With
    /// [`Preparation::Background`](crate::Preparation::Background) a thread does so twice a second.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`].
    pub fn check_directory(&self) -> Result<(), CommitError> {
        self.shared.check_directory();
        self.check_alive()
    }

    /// A handle for a background thread that makes snapshots.
    pub fn compactor(&self) -> Compactor {
        Compactor::new(self.shared.clone())
    }

    /// Whether a payload of `bytes` can be committed right now, without waiting for the next segment.
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= MAX_PAYLOAD
            && (self.active.fits(bytes) || self.preparer.is_ready(segment::len_for(bytes)))
    }

    /// Makes sure that the next commit of up to `bytes` cannot fail for want of disk space.
    ///
    /// Call it before applying the payload's effects. It may wait until the next segment is filled, when that has
    /// not kept up.
    ///
    /// # Errors
    /// [`Full`] when neither this segment nor a prepared next one can take the bytes. The log goes on, and
    /// looks for room again in the background.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Full> {
        if self.active.fits(bytes) {
            return Ok(());
        }
        let ensured = self.preparer.ensure(segment::len_for(bytes));
        ensured.map_err(|cause| Full { bytes, cause })
    }

    /// Appends a payload as one frame. It is on stable storage when this returns `Ok` (one write, one fdatasync).
    ///
    /// # Errors
    /// [`CommitError::TooLarge`] and [`CommitError::Full`]: nothing was written and the log goes on.
    /// [`CommitError::Io`]: a write or sync failed, whether the payload survives is unknown, and every later
    /// commit is [`CommitError::Poisoned`].
    pub fn commit(&mut self, payload: &[u8]) -> Result<Seq, CommitError> {
        self.check_alive()?;
        if payload.len() > MAX_PAYLOAD {
            return Err(CommitError::TooLarge {
                bytes: payload.len(),
                max: MAX_PAYLOAD,
            });
        }
        if !self.active.fits(payload.len()) {
            self.rotate(payload.len())?;
        }
        let Some(seq) = Seq::new(self.next_seq) else {
            unreachable!("the first frame of a log has the number 1");
        };
        self.append(FrameKind::Data, self.next_seq, payload)?;
        self.next_seq += 1;
        Ok(seq)
    }

    /// Writes a mark that says "everything so far is synced", durable on return, when the last entry is not
    /// one already. Meant for when the log goes idle.
    ///
    /// # Errors
    /// As [`commit`](Wal::commit); never `Full`.
    pub fn seal_mark(&mut self) -> Result<(), CommitError> {
        self.check_alive()?;
        if self.active.settled {
            return Ok(());
        }
        self.append(FrameKind::Mark, self.next_seq - 1, &[])
    }

    /// Leaves the mark of a clean end.
    ///
    /// # Errors
    /// As [`seal_mark`](Wal::seal_mark).
    pub fn close(mut self) -> Result<(), CommitError> {
        self.seal_mark()
    }

    /// Makes a snapshot of everything committed so far, on the caller's thread. Waits for a compaction under way.
    ///
    /// Durable on return; segments that are sealed go away, the active one stays. `None` when nothing
    /// was ever committed.
    ///
    /// # Errors
    /// As [`Compactor::compact`].
    pub fn snapshot<E>(
        &mut self,
        save: impl FnOnce(&mut SnapshotWriter) -> Result<(), E>,
    ) -> Result<Option<Compacted>, CompactError<E>> {
        match self.last_seq() {
            Some(seq) => self.shared.snapshot_at(seq, save).map(Some),
            None => Ok(None),
        }
    }

    fn check_alive(&self) -> Result<(), CommitError> {
        match self.poisoned() {
            Some(cause) => Err(CommitError::Poisoned {
                cause: cause.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Records the first failure; nothing is written or acknowledged after it.
    fn fail(&mut self, what: String, source: io::Error) -> CommitError {
        self.poison = Some(format!("{what}: {source}"));
        CommitError::Io { what, source }
    }

    /// Writes the frame of this opening; durable on return. Called once, before anything is committed.
    pub(crate) fn begin(&mut self) -> Result<(), CommitError> {
        if !self.active.fits(Opening::LEN) {
            return self.rotate(0);
        }
        let opening = &self.shared.opening;
        if let Err(error) = self.active.open(opening, self.next_seq, &mut self.buffer) {
            let name = segment::name(self.active.first);
            return Err(self.fail(format!("write of the opening to {name}"), error));
        }
        Ok(())
    }

    /// Writes one frame at the end of the active segment and syncs it.
    fn append(&mut self, kind: FrameKind, seq: u64, payload: &[u8]) -> Result<(), CommitError> {
        let active = &mut self.active;
        assert!(
            self.poison.is_none(),
            "a log that failed is written to (A6)"
        );
        assert!(
            active.first <= self.next_seq,
            "a segment begins behind its next frame"
        );
        assert!(
            active.end.is_multiple_of(frame::ALIGN as u64),
            "a frame begins where none may"
        );
        // Each frame is synced before the next is written, so all before this one are.
        let entry = FrameContent {
            kind,
            seq,
            synced_upto: self.next_seq - 1,
            payload,
        };
        frame::encode(&mut self.buffer, active.seed, active.end, &entry);
        let end = active.end + self.buffer.len() as u64;
        assert!(
            end <= active.len,
            "a frame goes beyond its segment, which ends at {}",
            active.len
        );
        let done = active
            .file
            .write_at(active.end, &self.buffer)
            .map_err(|e| ("write to", e));
        let done = done.and_then(|()| active.file.sync_data().map_err(|e| ("sync of", e)));
        if let Err((call, error)) = done {
            let path = self
                .shared
                .storage
                .path()
                .join(segment::name(self.active.first));
            return Err(self.fail(format!("{call} {}", path.display()), error));
        }
        active.end = end;
        active.settled = kind != FrameKind::Data;
        Ok(())
    }

    /// Moves on to the prepared segment, then seals the one before.
    ///
    /// In this order a seal proves that its successor was durably there.
    fn rotate(&mut self, payload: usize) -> Result<(), CommitError> {
        let prepared = self.preparer.take(payload, segment::len_for(payload))?;
        let name = segment::name(self.next_seq);
        let fresh = match go_live(&self.shared, prepared, self.next_seq, &mut self.buffer) {
            Ok(fresh) => fresh,
            Err(error) => return Err(self.fail(format!("start of segment {name}"), error)),
        };
        assert_eq!(
            fresh.first, self.next_seq,
            "a segment begins with another frame"
        );
        if self.next_seq == self.active.first {
            // The old one is empty, and the new one has just replaced it under the same name.
            self.active = fresh;
        } else {
            self.append(FrameKind::Seal, self.next_seq - 1, &[])?;
            let old = std::mem::replace(&mut self.active, fresh);
            self.shared.add_sealed(SegmentInfo {
                first: old.first,
                last: self.next_seq - 1,
                end: old.end,
            });
        }
        self.preparer.resume();
        Ok(())
    }
}

/// Gives a prepared segment its header, its name, and then the frame of this opening; durable on return.
fn go_live(
    shared: &Shared,
    prepared: Prepared,
    first: u64,
    buffer: &mut Vec<u8>,
) -> io::Result<Active> {
    let Prepared { file, len } = prepared;
    let incarnation = &shared.identity.incarnation;
    name_segment(&*shared.storage, &*file, incarnation, first, len)?;
    let mut active = Active {
        file,
        first,
        len,
        end: segment::HEADER as u64,
        seed: Seed::new(incarnation, first),
        settled: true,
    };
    active.open(&shared.opening, first, buffer)?;
    Ok(active)
}

/// Gives a prepared segment its header and its name; durable on return.
pub(crate) fn name_segment(
    storage: &dyn Storage,
    file: &dyn File,
    incarnation: &Id,
    first: u64,
    len: u64,
) -> io::Result<()> {
    file.write_at(0, &segment::encode_header(incarnation, first, len))?;
    file.sync_data()?;
    storage.rename(NEXT, &segment::name(first))?;
    storage.sync_dir()
}

#[cfg(feature = "testing")]
#[cfg(test)]
mod corruptions;

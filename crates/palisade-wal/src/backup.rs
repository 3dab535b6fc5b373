//! Copies of a log: a backup of a live one, a new life out of a backup.
//!
//! Both read a consistent prefix and write it to an empty directory, re-encoded for that directory's
//! incarnation. The identity is written last: without it nothing opens the copy.
//!
//! Only its reader knows the state that a member's log ends in. So the reader [observe]s the log, and writes the state
//! down as a backup with [`backup_state_on`], which is restored like any other.

use std::io;
use std::path::Path;

use crate::Seq;
use crate::error::{Damage, OpenError, ReadError, ReplayError};
use crate::frame::{self, FrameContent, Seed};
use crate::id::Id;
use crate::identity::{self, DirectoryKind, Identity};
use crate::open::{LOST_AND_FOUND, report};
use crate::recover::{self, RecoveryReport, Scan};
use crate::segment::{self, Image, replay};
use crate::snapshot::{self, SnapshotReader, SnapshotWriter};
use crate::storage::{DirStorage, LOCK, OpenMode, Storage};

/// How often a live directory is read anew when it changes under the reader. On a busy machine the reader may lose to
/// rotations and compactions many times in a row.
const ATTEMPTS: usize = 100;

/// A finished copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The identity of the copy.
    pub identity: Identity,
    /// The last frame in it.
    pub last: Option<Seq>,
}

/// Copies the log in `from`, live or stopped, to the empty directory `to`, as a backup.
///
/// It holds everything acknowledged before this was called, and maybe more: every whole frame is taken, as an open
/// would take it. That the last one may not be synced yet does no harm, because a restore leaps above all of them.
/// No lock is taken on `from`. Durable on return.
///
/// # Errors
/// [`OpenError::NotEmpty`] for the target; damage in the source; I/O.
pub fn backup(from: &Path, to: &Path) -> Result<CopyReport, OpenError> {
    backup_on(
        &DirStorage::observe(from)?,
        &DirStorage::create_for_copy(to)?,
    )
}

/// Makes a live log in the empty directory `to` out of a backup (or any other copy) in `from`.
///
/// The owner stays, the incarnation is new. The caller then commits its own entry about the leap:
/// the backup lacks everything that the original acknowledged after it was made. Durable on return.
///
/// # Errors
/// [`OpenError::NotEmpty`] for the target; damage in the source; I/O.
pub fn restore(from: &Path, to: &Path) -> Result<CopyReport, OpenError> {
    let to = DirStorage::create_for_copy(to)?;
    let incarnation = Id::random(&to).map_err(OpenError::io("draw a random id"))?;
    restore_on(&DirStorage::observe(from)?, &to, incarnation)
}

/// [`backup`] on any storage.
///
/// # Errors
/// As [`backup`].
pub fn backup_on(from: &dyn Storage, to: &dyn Storage) -> Result<CopyReport, OpenError> {
    let source = source_identity(from)?;
    copy(
        from,
        to,
        &source,
        Identity {
            kind: DirectoryKind::Backup,
            ..source
        },
    )
}

/// [`restore`] on any storage, into the given incarnation.
///
/// # Errors
/// As [`restore`].
pub fn restore_on(
    from: &dyn Storage,
    to: &dyn Storage,
    incarnation: Id,
) -> Result<CopyReport, OpenError> {
    let source = source_identity(from)?;
    copy(
        from,
        to,
        &source,
        Identity {
            incarnation,
            kind: DirectoryKind::Live,
            ..source
        },
    )
}

fn source_identity(from: &dyn Storage) -> Result<Identity, OpenError> {
    match identity::read(from)? {
        // Its log is a node's: which of its entries count is not known here.
        Some(found) => match found.identity.kind {
            DirectoryKind::Member(node) => Err(OpenError::Member {
                dir: from.path(),
                node,
            }),
            DirectoryKind::Live | DirectoryKind::Backup => Ok(found.identity),
        },
        None => Err(OpenError::Missing { dir: from.path() }),
    }
}

fn copy(
    from: &dyn Storage,
    to: &dyn Storage,
    source: &Identity,
    target: Identity,
) -> Result<CopyReport, OpenError> {
    refuse_filled(to)?;
    let copied = copy_retrying(from, to, source, &target).and_then(|last| {
        to.sync_dir()
            .and_then(|()| write_identity(to, &target))
            .map_err(CopyError::Write)?;
        Ok(CopyReport {
            identity: target,
            last,
        })
    });
    copied.map_err(|error| {
        // Nothing opens the copy without an identity, so a failure here does no harm.
        let _ = clear(to);
        match error {
            CopyError::Read(error) => error.into(),
            CopyError::Write(source) => OpenError::Io {
                what: format!("write the copy in {}", to.path().display()),
                source,
            },
        }
    })
}

fn copy_retrying(
    from: &dyn Storage,
    to: &dyn Storage,
    source: &Identity,
    target: &Identity,
) -> Result<Option<Seq>, CopyError> {
    let attempt = || {
        clear(to).map_err(CopyError::Write)?;
        try_copy(from, to, source, target)
    };
    retrying(attempt, |error| match error {
        CopyError::Read(error) => Some(error),
        CopyError::Write(_) => None,
    })
}

/// Starts again when a rotation or a compaction removed files under the reader. Damage that is found twice is real.
fn retrying<T, F>(
    mut attempt: impl FnMut() -> Result<T, F>,
    cause: impl Fn(&F) -> Option<&ReadError>,
) -> Result<T, F> {
    let mut seen: Option<Damage> = None;
    for _ in 1..ATTEMPTS {
        let tried = attempt();
        match tried.as_ref().err().and_then(&cause) {
            Some(ReadError::Damaged(damage)) if seen.as_ref() != Some(damage) => {
                seen = Some(damage.clone());
            }
            Some(error) if is_gone(error) => {}
            _ => return tried,
        }
    }
    attempt()
}

/// The log of a directory as another process may have it open: read, never changed.
pub struct Observed<'a> {
    storage: &'a dyn Storage,
    incarnation: Id,
    scan: Scan,
}

/// Hands a consistent prefix of the log in `storage` to `read`: every whole frame that was there when this was called,
/// and maybe more. No lock is taken, so files may go away meanwhile: `read` is called again then, from the start.
/// `cause` returns the read error, if any, that made it fail.
///
/// # Errors
/// Those of `read`; [`ReadError`].
pub fn observe<T, F: From<ReadError>>(
    storage: &dyn Storage,
    incarnation: Id,
    cause: impl Fn(&F) -> Option<&ReadError>,
    mut read: impl FnMut(&Observed<'_>) -> Result<T, F>,
) -> Result<T, F> {
    let attempt = || {
        let scan = recover::scan(storage, &incarnation)?;
        read(&Observed {
            storage,
            incarnation,
            scan,
        })
    };
    retrying(attempt, cause)
}

impl Observed<'_> {
    /// The newest snapshot, if there is one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, ReadError> {
        let open = |seq| SnapshotReader::open(self.storage, &self.incarnation, seq);
        self.scan.snapshot.map(open).transpose()
    }

    /// The findings that an opening would have. Nothing is cut off or removed.
    #[must_use]
    pub fn report(&self) -> RecoveryReport {
        report(self.storage, &self.scan)
    }

    /// The segments with frames behind the snapshot.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.scan.segments.len()
    }

    /// Hands out the frames behind the snapshot, in order.
    ///
    /// # Errors
    /// [`ReplayError::Apply`] with the first error of `each`; [`ReplayError::Read`].
    pub fn replay<E>(
        &self,
        each: impl FnMut(Seq, &[u8]) -> Result<(), E>,
    ) -> Result<(), ReplayError<E>> {
        let Scan {
            segments, snapshot, ..
        } = &self.scan;
        replay(self.storage, &self.incarnation, segments, *snapshot, each)
    }
}

/// Makes a backup in the empty directory `to` that consists of the state that `save` writes, for a source with a log
/// that a restore cannot read. It has the source's owner and incarnation. Durable on return.
///
/// # Errors
/// [`OpenError::NotEmpty`]; I/O, also that of `save`.
pub fn backup_state_on(
    to: &dyn Storage,
    (owner, incarnation): (Id, Id),
    save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
) -> Result<Identity, OpenError> {
    refuse_filled(to)?;
    let identity = Identity {
        owner,
        incarnation,
        kind: DirectoryKind::Backup,
    };
    write_state(to, &identity, save).map_err(|source| {
        let _ = clear(to);
        OpenError::Io {
            what: format!("write the backup in {}", to.path().display()),
            source,
        }
    })?;
    Ok(identity)
}

/// A snapshot that takes the place of frame 1, and a segment without frames behind it.
fn write_state(
    to: &dyn Storage,
    identity: &Identity,
    save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
) -> io::Result<()> {
    const SEGMENT: usize = 64 << 10;
    let name = snapshot::name(Seq::FIRST);
    let mut writer = SnapshotWriter::create(to, &name, &identity.incarnation, Seq::FIRST)?;
    save(&mut writer)?;
    writer.finish()?;
    let first = Seq::FIRST.get() + 1;
    let mut segment = segment::encode_header(&identity.incarnation, first, SEGMENT as u64).to_vec();
    segment.resize(SEGMENT, 0);
    write_file(to, &segment::name(first), &segment)?;
    to.sync_dir()?;
    write_identity(to, identity)
}

fn write_identity(to: &dyn Storage, target: &Identity) -> io::Result<()> {
    match target.kind {
        DirectoryKind::Live | DirectoryKind::Member(_) => {
            identity::write_live(to, target, 1, None).map(drop)
        }
        DirectoryKind::Backup => identity::write_backup(to, target),
    }
}

fn is_gone(error: &ReadError) -> bool {
    matches!(error, ReadError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

enum CopyError {
    Read(ReadError),
    Write(io::Error),
}

impl From<ReadError> for CopyError {
    fn from(error: ReadError) -> CopyError {
        CopyError::Read(error)
    }
}

fn refuse_filled(to: &dyn Storage) -> Result<(), OpenError> {
    let names = to
        .list()
        .map_err(OpenError::io(format!("read {}", to.path().display())))?;
    if names
        .iter()
        .all(|name| name == LOCK || name == LOST_AND_FOUND)
    {
        Ok(())
    } else {
        Err(OpenError::NotEmpty { dir: to.path() })
    }
}

/// Removes the files of an unfinished attempt.
fn clear(to: &dyn Storage) -> io::Result<()> {
    let names = to.list()?;
    let ours = |name: &&String| {
        segment::parse_name(name).is_some() || snapshot::parse_name(name).is_some()
    };
    names
        .iter()
        .filter(ours)
        .try_for_each(|name| to.remove(name))
}

fn try_copy(
    from: &dyn Storage,
    to: &dyn Storage,
    source: &Identity,
    target: &Identity,
) -> Result<Option<Seq>, CopyError> {
    let scan = recover::scan(from, &source.incarnation)?;
    if let Some(seq) = scan.snapshot {
        copy_snapshot(from, to, source, target, seq)?;
    }
    copy_segments(from, to, source, target, &scan)?;
    Ok(Seq::new(scan.tail.next_seq - 1))
}

fn copy_snapshot(
    from: &dyn Storage,
    to: &dyn Storage,
    source: &Identity,
    target: &Identity,
    seq: Seq,
) -> Result<(), CopyError> {
    let mut reader = SnapshotReader::open(from, &source.incarnation, seq)?;
    let mut writer = SnapshotWriter::create(to, &snapshot::name(seq), &target.incarnation, seq)
        .map_err(CopyError::Write)?;
    // `io::copy` does not say which side failed. The scan has read the whole snapshot, so it was the write.
    io::copy(&mut reader, &mut writer).map_err(CopyError::Write)?;
    writer.finish().map_err(CopyError::Write)?;
    Ok(())
}

fn copy_segments(
    from: &dyn Storage,
    to: &dyn Storage,
    source: &Identity,
    target: &Identity,
    scan: &Scan,
) -> Result<(), CopyError> {
    let mut buffer = Vec::new();
    for (i, info) in scan.segments.iter().enumerate() {
        let image = Image::load(from, &source.incarnation, info.first, buffer)?;
        let is_last = i + 1 == scan.segments.len();
        let (bytes, last) = re_encode(&image, info.first, &target.incarnation, info.last, is_last);
        if last < info.last {
            let why = format!(
                "frame {} was valid a moment ago and is not any more",
                last + 1
            );
            return Err(ReadError::from(Damage {
                file: from.path().join(info.name()),
                offset: 0,
                why,
            })
            .into());
        }
        write_file(to, &info.name(), &bytes).map_err(CopyError::Write)?;
        buffer = image.bytes;
    }
    Ok(())
}

fn write_file(to: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = to.open(name, OpenMode::Create)?;
    file.write_at(0, bytes)?;
    // With its times: an opening looks at them.
    file.sync_all()
}

/// The frames up to `upto` in a segment of the same length for another incarnation, ended with a mark or a
/// seal: in a copy everything is known to be synced. Also says which frame is the last.
fn re_encode(
    image: &Image,
    first: u64,
    incarnation: &Id,
    upto: u64,
    is_last: bool,
) -> (Vec<u8>, u64) {
    let seed = Seed::new(incarnation, first);
    let mut out = Vec::with_capacity(image.bytes.len());
    out.extend_from_slice(&segment::encode_header(
        incarnation,
        first,
        image.bytes.len() as u64,
    ));
    let mut buffer = Vec::new();
    let mut push = |kind, seq, synced_upto, payload: &[u8]| {
        frame::encode(
            &mut buffer,
            seed,
            out.len() as u64,
            &FrameContent {
                kind,
                seq,
                synced_upto,
                payload,
            },
        );
        out.extend_from_slice(&buffer);
    };
    let mut last = first - 1;
    let Ok(_) = image.walk(|seq, payload| {
        if seq <= upto {
            push(frame::FrameKind::Data, seq, seq - 1, payload);
            last = seq;
        }
        Ok::<(), std::convert::Infallible>(())
    });
    if last >= first {
        push(
            if is_last {
                frame::FrameKind::Mark
            } else {
                frame::FrameKind::Seal
            },
            last,
            last,
            &[],
        );
    }
    out.resize(image.bytes.len(), 0);
    (out, last)
}

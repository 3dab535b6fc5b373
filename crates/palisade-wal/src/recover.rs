//! Recovery: finds the newest whole snapshot and the longest valid prefix of frames behind it.
//!
//! ```text
//!   snapshot ≤ S │ sealed segments: each frame must be there, up to the next segment's first
//!                │ last segment: frames … X ┐ nothing valid behind X → torn tail, cut off
//!                                           └ anything valid behind X → the frame at X was synced: damage
//! ```
//!
//! [`scan`] only reads; [`Tail::repair`] then prepares the end of the log for appends.

use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};

use crate::Seq;
use crate::error::{Damage, ReadError};
use crate::frame::Seed;
use crate::id::Id;
use crate::opening::Opening;
use crate::segment::{self, Extent, Image, SegmentInfo};
use crate::snapshot::{self, SnapshotReader};
use crate::storage::{File, OpenMode, Storage};

/// The findings at the opening of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last frame in the snapshot that was used.
    pub snapshot: Option<Seq>,
    /// How many frames there are behind the snapshot.
    pub frames: u64,
    /// How many bytes they and the headers before them take.
    pub bytes: u64,
    /// The last frame of the log, or of the snapshot when there is none behind it.
    pub last: Option<Seq>,
    /// An end that is no whole frame and was cut off.
    pub torn: Option<TornTail>,
    /// Newer snapshots that are damaged; the log had all they held.
    pub damaged_snapshots: Vec<PathBuf>,
    /// Left-over files that were removed.
    pub removed: Vec<String>,
}

/// The end of the log that was cut off, because it is no whole frame.
///
/// A frame that was being written when the machine or the process stopped looks like this, and nothing in it was
/// acknowledged. Damage to the last frame, when no mark is behind it, looks the same: then it was acknowledged.
/// Nothing on disk distinguishes the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub file: PathBuf,
    /// Where the valid frames end.
    pub offset: u64,
    /// How many bytes were dropped.
    pub bytes: u64,
}

/// The state on disk.
pub(crate) struct Scan {
    pub(crate) snapshot: Option<Seq>,
    pub(crate) damaged_snapshots: Vec<Damage>,
    /// The segments with frames behind the snapshot; the last one is the active one.
    pub(crate) segments: Vec<SegmentInfo>,
    /// File names of segments and snapshots that the snapshot replaces.
    pub(crate) superseded: Vec<String>,
    pub(crate) tail: Tail,
    /// The last opening that the log knows.
    pub(crate) opening: Option<Opening>,
}

/// The end of the last segment.
pub(crate) struct Tail {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) end: u64,
    pub(crate) next_seq: u64,
    pub(crate) seed: Seed,
    /// Where bytes that are not zero end, behind `end`.
    pub(crate) junk_end: u64,
    /// The start of the last data frame (of the first frame, when there is none), and the bytes from there to
    /// `end`, which may not be on the disk yet.
    last_frame: (u64, Vec<u8>),
}

impl Tail {
    /// The segment got its name and nothing more.
    pub(crate) fn is_blank(&self) -> bool {
        self.end == segment::HEADER as u64
    }

    /// Prepares the tail for appends; durable on return.
    ///
    /// Junk is overwritten with zeros, so that there is never any behind a later frame. The last frame (and the
    /// mark behind it) is written again: after a failed sync in an earlier process the cache may show it while the
    /// disk does not have it and nothing remembers to write it.
    pub(crate) fn repair(&self, file: &dyn File) -> io::Result<()> {
        zero(file, self.end, self.junk_end)?;
        let (at, bytes) = &self.last_frame;
        if !bytes.is_empty() {
            file.write_at(*at, bytes)?;
        }
        file.sync_data()
    }
}

/// Writes zeros from `from` to `to`.
pub(crate) fn zero(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    const STEP: u64 = 256 << 10;
    let zeros = vec![0; STEP.min(to.saturating_sub(from)) as usize];
    let mut at = from;
    while at < to {
        let len = (to - at).min(STEP);
        file.write_at(at, &zeros[..len as usize])?;
        at += len;
    }
    Ok(())
}

/// Reads the directory and decides which frames the log has.
pub(crate) fn scan(storage: &dyn Storage, incarnation: &Id) -> Result<Scan, ReadError> {
    let dir = storage.path();
    let names = storage.list().map_err(|source| ReadError::Io {
        file: dir.clone(),
        source,
    })?;
    let (snapshot, damaged_snapshots) = newest_snapshot(storage, incarnation, &names)?;
    let covered = snapshot.map_or(0, Seq::get);
    let mut firsts: Vec<u64> = names
        .iter()
        .filter_map(|name| segment::parse_name(name))
        .collect();
    firsts.sort_unstable();
    let Some(start) = firsts.iter().rposition(|first| *first <= covered + 1) else {
        return Err(
            nothing_reaches(&dir, covered, firsts.first().copied(), damaged_snapshots).into(),
        );
    };
    let (segments, tail, mut opening) =
        scan_segments(storage, incarnation, &firsts[start..], covered)?;
    if opening.is_none() && start > 0 {
        // This segment is only a header. The segment before it, which the snapshot covers, names the opening.
        let image = Image::load(storage, incarnation, firsts[start - 1], Vec::new())?;
        let Ok(extent) = image.walk(|_, _| Ok::<(), std::convert::Infallible>(()));
        opening = extent.opening;
    }
    let mut superseded: Vec<String> = firsts[..start]
        .iter()
        .map(|first| segment::name(*first))
        .collect();
    let older = |name: &&String| snapshot::parse_name(name).is_some_and(|seq| Some(seq) < snapshot);
    superseded.extend(names.iter().filter(older).cloned());
    Ok(Scan {
        snapshot,
        damaged_snapshots,
        segments,
        superseded,
        tail,
        opening,
    })
}

/// The newest snapshot that is whole, and the newer ones that are not.
fn newest_snapshot(
    storage: &dyn Storage,
    incarnation: &Id,
    names: &[String],
) -> Result<(Option<Seq>, Vec<Damage>), ReadError> {
    let mut seqs: Vec<Seq> = names
        .iter()
        .filter_map(|name| snapshot::parse_name(name))
        .collect();
    seqs.sort_unstable();
    let mut damaged = Vec::new();
    while let Some(seq) = seqs.pop() {
        match SnapshotReader::open(storage, incarnation, seq).and_then(SnapshotReader::verify) {
            Ok(()) => return Ok((Some(seq), damaged)),
            Err(ReadError::Damaged(damage)) => damaged.push(damage),
            Err(other) => return Err(other),
        }
    }
    Ok((None, damaged))
}

/// No segment continues the newest whole snapshot, or begins with frame 1 when there is none.
fn nothing_reaches(
    dir: &Path,
    covered: u64,
    oldest: Option<u64>,
    damaged_snapshots: Vec<Damage>,
) -> Damage {
    if let Some(damage) = damaged_snapshots.into_iter().next() {
        return damage;
    }
    let next = covered + 1;
    let why = match oldest {
        Some(oldest) => format!(
            "the file is missing: nothing holds the frames from {next} to {}",
            oldest - 1
        ),
        None => format!("the file is missing: no segment holds the frames from {next} on"),
    };
    Damage {
        file: dir.join(segment::name(next)),
        offset: 0,
        why,
    }
}

fn scan_segments(
    storage: &dyn Storage,
    incarnation: &Id,
    firsts: &[u64],
    covered: u64,
) -> Result<(Vec<SegmentInfo>, Tail, Option<Opening>), ReadError> {
    let mut segments = Vec::with_capacity(firsts.len());
    let mut opening = None;
    let mut buffer = Vec::new();
    let mut tail = None;
    for (i, first) in firsts.iter().enumerate() {
        let image = Image::load(storage, incarnation, *first, buffer)?;
        let Ok(extent) = image.walk(|_, _| Ok::<(), std::convert::Infallible>(()));
        opening = extent.opening.or(opening);
        let path = storage.path().join(segment::name(*first));
        match firsts.get(i + 1) {
            Some(next) => check_sealed(&extent, *next, &path)?,
            None => tail = Some(judge_tail(&image, &extent, covered, &path)?),
        }
        segments.push(SegmentInfo {
            first: *first,
            last: extent.next_seq - 1,
            end: extent.end as u64,
        });
        buffer = image.bytes;
    }
    match tail {
        Some(tail) => Ok((segments, tail, opening)),
        None => Err(nothing_reaches(&storage.path(), covered, None, Vec::new()).into()),
    }
}

/// A segment with a successor must hold every frame up to it: the successor was made after all were synced.
fn check_sealed(extent: &Extent, next_first: u64, path: &Path) -> Result<(), Damage> {
    match extent.next_seq.cmp(&next_first) {
        Ordering::Equal => Ok(()),
        Ordering::Less if extent.sealed => Err(Damage {
            file: path.with_file_name(segment::name(extent.next_seq)),
            offset: 0,
            why: format!(
                "the file is missing: the segment before it is sealed, the next one begins with frame {next_first}"
            ),
        }),
        _ => Err(Damage {
            file: path.to_owned(),
            offset: extent.end as u64,
            why: format!(
                "frame {} is not valid, and a segment that begins with frame {next_first} proves that it was synced",
                extent.next_seq
            ),
        }),
    }
}

/// Distinguishes a torn tail from damage.
fn judge_tail(image: &Image, extent: &Extent, covered: u64, path: &Path) -> Result<Tail, Damage> {
    let damage = |why| {
        Err(Damage {
            file: path.to_owned(),
            offset: extent.end as u64,
            why,
        })
    };
    if extent.sealed {
        let why = "the file is missing: the segment before it is sealed, so this one was there"
            .to_owned();
        return Err(Damage {
            file: path.with_file_name(segment::name(extent.next_seq)),
            offset: 0,
            why,
        });
    }
    if let Some(at) = image.proof_behind(extent) {
        return damage(format!(
            "what is here is not valid, and the frame at byte {at} proves that it was synced"
        ));
    }
    if extent.next_seq <= covered {
        return damage(format!(
            "frame {} is not valid, and the snapshot up to frame {covered} proves that it was synced",
            extent.next_seq
        ));
    }
    let at = extent.last_data.unwrap_or(segment::HEADER);
    let last_frame = (at as u64, image.bytes[at..extent.end].to_vec());
    Ok(Tail {
        first: image.first,
        len: image.bytes.len() as u64,
        end: extent.end as u64,
        next_seq: extent.next_seq,
        seed: image.seed,
        junk_end: image.junk_end(extent.end) as u64,
        last_frame,
    })
}

/// Whether the segment that begins with frame 1 is there and was never written to.
pub(crate) fn first_is_blank(storage: &dyn Storage) -> io::Result<bool> {
    let file = storage.open(&segment::name(1), OpenMode::Read)?;
    let mut bytes = Vec::new();
    crate::storage::read_all(&*file, &mut bytes)?;
    Ok(bytes.iter().skip(segment::HEADER).all(|byte| *byte == 0))
}

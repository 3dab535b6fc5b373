//! A segment: a header of 64 bytes, frames, and the zeros it was filled with.
//!
//! ```text
//!   0        8         12       16            32          40          48         60      64
//!   ┌────────┬─────────┬────────┬─────────────┬───────────┬───────────┬──────────┬───────┬──────────────────┐
//!   │ magic  │ version │ header │ incarnation │ first seq │ file      │ zeros    │ crc   │ frames … zeros   │
//!   │        │         │ length │             │           │ length    │          │       │                  │
//!   └────────┴─────────┴────────┴─────────────┴───────────┴───────────┴──────────┴───────┴──────────────────┘
//! ```
//!
//! The file has its full length, of zeros that were written and synced, before it is given its name. So a
//! file that is shorter than its header says, or a header that does not match, is damage.

use crate::Seq;
use crate::error::{Damage, ReadError, ReplayError};
use crate::frame::{self, FrameKind, Seed, u32_at, u64_at};
use crate::id::Id;
use crate::opening::Opening;
use crate::storage::{OpenMode, Storage, read_all};

/// The length of the header.
pub(crate) const HEADER: usize = 64;
/// Where the incarnation is in the header, of a snapshot as well.
pub(crate) const INCARNATION: u64 = 16;
/// The format version of segments.
pub(crate) const VERSION: u32 = 1;
/// Kept free behind every data frame: a mark, and the seal.
pub(crate) const RESERVE: usize = 2 * frame::HEADER;

const MAGIC: &[u8; 8] = b"PALISLOG";

/// The file name of the segment whose first frame is `first`.
pub(crate) fn name(first: u64) -> String {
    format!("log-{first:020}.seg")
}

/// The first frame of the segment with this file name, if it is one.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    parse_numbered(name, "log-", ".seg")
}

pub(crate) fn parse_numbered(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    (digits.len() == 20).then(|| digits.parse().ok())?
}

/// The length of a segment that holds the opening frame and one frame with this payload.
pub(crate) fn len_for(payload: usize) -> u64 {
    (HEADER + frame::size(Opening::LEN) + frame::size(payload) + RESERVE).next_multiple_of(4096)
        as u64
}

/// The header of a segment.
pub(crate) fn encode_header(incarnation: &Id, first: u64, len: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(HEADER as u32).to_le_bytes());
    bytes[16..32].copy_from_slice(incarnation.as_bytes());
    bytes[32..40].copy_from_slice(&first.to_le_bytes());
    bytes[40..48].copy_from_slice(&len.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A segment that holds frames `first..=last`, as the log remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) first: u64,
    /// `first - 1` while it is empty.
    pub(crate) last: u64,
    /// Where the frames end.
    pub(crate) end: u64,
}

impl SegmentInfo {
    pub(crate) fn name(&self) -> String {
        name(self.first)
    }
}

/// A segment read into memory, its header checked.
pub(crate) struct Image {
    pub(crate) first: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) seed: Seed,
}

/// How far the valid frames of a segment reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Where the first invalid frame begins.
    pub(crate) end: usize,
    /// The seq that would come there.
    pub(crate) next_seq: u64,
    /// The segment says that another one follows.
    pub(crate) sealed: bool,
    /// Where the last data frame begins.
    pub(crate) last_data: Option<usize>,
    /// The opening in which the last frames were written.
    pub(crate) opening: Option<Opening>,
}

impl Image {
    /// Reads a segment. `buffer` is reused for its bytes.
    pub(crate) fn load(
        storage: &dyn Storage,
        incarnation: &Id,
        first: u64,
        buffer: Vec<u8>,
    ) -> Result<Image, ReadError> {
        let mut bytes = buffer;
        let path = storage.path().join(name(first));
        let file = storage.open(&name(first), OpenMode::Read);
        let read = file.and_then(|file| read_all(&*file, &mut bytes));
        read.map_err(|source| ReadError::Io {
            file: path.clone(),
            source,
        })?;
        match check_header(&bytes, incarnation, first) {
            Ok(()) => Ok(Image {
                first,
                bytes,
                seed: Seed::new(incarnation, first),
            }),
            Err(SegmentFault::Version(found)) => Err(ReadError::Unsupported {
                file: path,
                found,
                supported: VERSION,
            }),
            Err(SegmentFault::Bad(offset, why)) => Err(Damage {
                file: path,
                offset,
                why,
            }
            .into()),
        }
    }

    /// Hands out the valid data frames in order and says how far they reach.
    pub(crate) fn walk<E>(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Extent, E> {
        let mut extent = Extent {
            end: HEADER,
            next_seq: self.first,
            sealed: false,
            last_data: None,
            opening: None,
        };
        while !extent.sealed && self.step(&mut extent, &mut each)? {}
        Ok(extent)
    }

    /// Adds the frame at the end of `extent` to it, if the frame is valid and belongs there.
    fn step<E>(
        &self,
        extent: &mut Extent,
        each: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(header) = frame::header_at(&self.bytes, self.seed, extent.end) else {
            return Ok(false);
        };
        let Some(payload) = frame::payload_at(&self.bytes, self.seed, extent.end, &header) else {
            return Ok(false);
        };
        let expected = if header.kind == FrameKind::Data {
            extent.next_seq
        } else {
            extent.next_seq - 1
        };
        if header.seq != expected {
            return Ok(false);
        }
        if header.kind == FrameKind::Data {
            each(header.seq, payload)?;
            extent.last_data = Some(extent.end);
            extent.next_seq += 1;
        }
        if header.kind == FrameKind::Opening {
            extent.opening = Opening::decode(payload);
        }
        extent.sealed = header.kind == FrameKind::Seal;
        extent.end += frame::size(header.len);
        Ok(true)
    }

    /// Looks for a frame that could only be written after the frame at the end of `extent` was synced.
    ///
    /// The writer syncs each frame before it writes the next, so any whole header further on is such a
    /// proof; so is one right there that is not the expected frame.
    pub(crate) fn proof_behind(&self, extent: &Extent) -> Option<usize> {
        let offsets = (extent.end..self.junk_end(extent.end)).step_by(frame::ALIGN);
        offsets.into_iter().find(|&at| {
            frame::header_at(&self.bytes, self.seed, at)
                .is_some_and(|h| at != extent.end || !expected_and_torn(&h, extent.next_seq))
        })
    }

    /// Where the bytes that are not zero end, behind `from`; `from` itself when there are none.
    pub(crate) fn junk_end(&self, from: usize) -> usize {
        const BLOCK: usize = 4096;
        let tail = self.bytes.get(from..).unwrap_or_default();
        // Most of a segment is zeros; whole blocks of them are skipped at the speed of memory.
        let is_zero = |block: &&[u8]| block.iter().fold(0, |all, byte| all | byte) == 0;
        let zeros: usize = tail
            .rchunks(BLOCK)
            .take_while(is_zero)
            .map(<[u8]>::len)
            .sum();
        let rest = &tail[..tail.len() - zeros];
        let end = rest.iter().rposition(|byte| *byte != 0);
        end.map_or(from, |at| from + at + 1)
    }
}

/// Hands out the frames of `segments` behind `after`. Each frame is checked again.
pub(crate) fn replay<E>(
    storage: &dyn Storage,
    incarnation: &Id,
    segments: &[SegmentInfo],
    after: Option<Seq>,
    mut each: impl FnMut(Seq, &[u8]) -> Result<(), E>,
) -> Result<(), ReplayError<E>> {
    let mut buffer = Vec::new();
    for info in segments {
        let image = Image::load(storage, incarnation, info.first, buffer)?;
        let extent = image.walk(|seq, payload| match Seq::new(seq) {
            Some(seq) if Some(seq) > after && seq.get() <= info.last => {
                each(seq, payload).map_err(|source| ReplayError::Apply { seq, source })
            }
            _ => Ok(()),
        })?;
        if extent.next_seq <= info.last {
            let why = format!(
                "frame {} was valid when the log was opened and is not any more",
                extent.next_seq
            );
            let file = storage.path().join(info.name());
            return Err(ReadError::from(Damage {
                file,
                offset: extent.end as u64,
                why,
            })
            .into());
        }
        buffer = image.bytes;
    }
    Ok(())
}

/// Whether this is the header of the frame that was being written when the process or the machine stopped.
fn expected_and_torn(header: &frame::FrameHeader, next_seq: u64) -> bool {
    match header.kind {
        FrameKind::Data => header.seq == next_seq && header.synced_upto < next_seq,
        // Marks and seals consist of a header only, so they are never torn.
        FrameKind::Mark | FrameKind::Seal => false,
        FrameKind::Opening => header.seq == next_seq - 1,
    }
}

enum SegmentFault {
    Version(u32),
    Bad(u64, String),
}

fn check_header(bytes: &[u8], incarnation: &Id, first: u64) -> Result<(), SegmentFault> {
    let bad = |offset, why: String| Err(SegmentFault::Bad(offset, why));
    let Some(head) = bytes.first_chunk::<HEADER>() else {
        return bad(
            0,
            format!(
                "it has {} bytes, which is less than its header",
                bytes.len()
            ),
        );
    };
    if &head[..8] != MAGIC {
        return bad(0, "its header does not begin as a segment's".to_owned());
    }
    if crc32fast::hash(&head[..60]) != u32_at(head, 60) {
        return bad(0, "its header does not match its checksum".to_owned());
    }
    if u32_at(head, 8) != VERSION {
        return Err(SegmentFault::Version(u32_at(head, 8)));
    }
    if &head[16..32] != incarnation.as_bytes() {
        return bad(
            16,
            format!("it does not belong to incarnation {incarnation} of this directory"),
        );
    }
    if u64_at(head, 32) != first {
        return bad(
            32,
            format!(
                "its header says that it begins with frame {}",
                u64_at(head, 32)
            ),
        );
    }
    if u64_at(head, 40) != bytes.len() as u64 {
        return bad(
            bytes.len() as u64,
            format!(
                "it ends here, its header says after {} bytes",
                u64_at(head, 40)
            ),
        );
    }
    Ok(())
}

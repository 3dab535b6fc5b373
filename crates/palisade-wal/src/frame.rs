//! One frame: a header of 32 bytes, the payload, zeros up to the next multiple of 8.
//!
//! ```text
//!   0       4       8               16              24      28      32
//!   ┌───────┬───────┬───────────────┬───────────────┬───────┬───────┬─────────────┬──────┐
//!   │ magic │ len   │ seq           │ synced_upto   │ body  │ head  │ payload …   │ pad  │
//!   │       │       │               │               │ crc   │ crc   │             │      │
//!   └───────┴───────┴───────────────┴───────────────┴───────┴───────┴─────────────┴──────┘
//! ```
//!
//! Both checksums start from the segment's seed (incarnation and first seq); the head's also covers the
//! frame's offset. So a frame is valid only where it was written: zeros, leftovers of another incarnation and
//! payload bytes that look like a frame never are. The head has a checksum of its own, so that the
//! head of a torn frame is still a proof that the frame before it was synced.

use crate::MAX_PAYLOAD;
use crate::id::Id;

/// The length of a frame's header, and of a whole mark or seal.
pub(crate) const HEADER: usize = 32;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

const MAGIC_DATA: u32 = u32::from_le_bytes(*b"PfrD");
const MAGIC_MARK: u32 = u32::from_le_bytes(*b"PfrM");
const MAGIC_SEAL: u32 = u32::from_le_bytes(*b"PfrS");
const MAGIC_OPENING: u32 = u32::from_le_bytes(*b"PfrO");

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A committed payload.
    Data,
    /// "Everything up to `seq` is synced": distinguishes a flipped bit in the last frame from a torn
    /// frame.
    Mark,
    /// "This segment is full, the next one is live": a mark that also misses a lost successor.
    Seal,
    /// A mark that says in which opening of the directory everything behind it is written.
    Opening,
}

impl FrameKind {
    fn magic(self) -> u32 {
        match self {
            FrameKind::Data => MAGIC_DATA,
            FrameKind::Mark => MAGIC_MARK,
            FrameKind::Seal => MAGIC_SEAL,
            FrameKind::Opening => MAGIC_OPENING,
        }
    }

    fn from_magic(magic: u32) -> Option<FrameKind> {
        [
            FrameKind::Data,
            FrameKind::Mark,
            FrameKind::Seal,
            FrameKind::Opening,
        ]
        .into_iter()
        .find(|kind| kind.magic() == magic)
    }
}

/// A frame's header, known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    pub(crate) len: usize,
    pub(crate) seq: u64,
    pub(crate) synced_upto: u64,
    body_crc: u32,
}

/// The start value of a segment's checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(incarnation: &Id, first: u64) -> Seed {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(incarnation.as_bytes());
        hasher.update(&first.to_le_bytes());
        Seed(hasher.finalize())
    }

    fn body(self, padded: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(padded);
        hasher.finalize()
    }

    fn head(self, offset: u64, head: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(&offset.to_le_bytes());
        hasher.update(head);
        hasher.finalize()
    }
}

/// How many bytes a frame with this payload takes.
pub(crate) fn size(payload: usize) -> usize {
    HEADER + payload.next_multiple_of(ALIGN)
}

/// The content of a frame.
pub(crate) struct FrameContent<'a> {
    pub(crate) kind: FrameKind,
    pub(crate) seq: u64,
    pub(crate) synced_upto: u64,
    pub(crate) payload: &'a [u8],
}

/// Replaces the content of `buf` with the frame as it is at `offset`. The allocation stays.
pub(crate) fn encode(buf: &mut Vec<u8>, seed: Seed, offset: u64, entry: &FrameContent<'_>) {
    let len = entry.payload.len();
    assert!(len <= MAX_PAYLOAD, "a frame has a payload of {len} bytes");
    buf.clear();
    buf.reserve(size(len));
    buf.extend_from_slice(&[0; HEADER]);
    buf.extend_from_slice(entry.payload);
    buf.resize(size(len), 0);
    let body_crc = seed.body(&buf[HEADER..]);
    buf[0..4].copy_from_slice(&entry.kind.magic().to_le_bytes());
    // MAX_PAYLOAD is far below 2^32.
    buf[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    buf[8..16].copy_from_slice(&entry.seq.to_le_bytes());
    buf[16..24].copy_from_slice(&entry.synced_upto.to_le_bytes());
    buf[24..28].copy_from_slice(&body_crc.to_le_bytes());
    let head_crc = seed.head(offset, &buf[..28]);
    buf[28..32].copy_from_slice(&head_crc.to_le_bytes());
}

/// The header at `offset` of the segment's bytes, if one was written there and is whole.
pub(crate) fn header_at(image: &[u8], seed: Seed, offset: usize) -> Option<FrameHeader> {
    let head = image.get(offset..)?.first_chunk::<HEADER>()?;
    let kind = FrameKind::from_magic(u32_at(head, 0))?;
    if seed.head(offset as u64, &head[..28]) != u32_at(head, 28) {
        return None;
    }
    Some(FrameHeader {
        kind,
        len: u32_at(head, 4) as usize,
        seq: u64_at(head, 8),
        synced_upto: u64_at(head, 16),
        body_crc: u32_at(head, 24),
    })
}

/// The payload of the frame whose header was found at `offset`, if it is whole.
pub(crate) fn payload_at<'a>(
    image: &'a [u8],
    seed: Seed,
    offset: usize,
    header: &FrameHeader,
) -> Option<&'a [u8]> {
    let padded = image.get(offset + HEADER..offset + size(header.len))?;
    (seed.body(padded) == header.body_crc).then(|| &padded[..header.len])
}

/// A little-endian number; `at + 4` is within `bytes` at every call.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// A little-endian number; `at + 8` is within `bytes` at every call.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

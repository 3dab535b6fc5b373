//! Snapshots: the caller's state up to and including one frame, as a checksummed stream.
//!
//! ```text
//!   ┌──────────────────── header, 64 bytes ─────────────────────┐ ┌──── chunk ─────┐       ┌────── trailer, 24 bytes ───────┐
//!   │ magic │ version │ length │ incarnation │ seq │ zeros │ crc│ │ len │ crc │ …  │  ×n   │ 0 │ crc │ total │ stream crc │0│
//!   └───────────────────────────────────────────────────────────┘ └────────────────┘       └────────────────────────────────┘
//! ```
//!
//! Written under another name, synced, renamed, and the directory synced: a snapshot with its own name is whole.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::Seq;
use crate::error::{Damage, ReadError};
use crate::frame::{u32_at, u64_at};
use crate::id::Id;
use crate::segment::parse_numbered;
use crate::storage::{File, OpenMode, Storage};

const HEADER: usize = 64;
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"PALISNAP";
const CHUNK: usize = 64 << 10;
const CHUNK_HEADER: usize = 8;
const TRAILER: usize = 24;

/// The file name of the snapshot that holds everything up to and including `seq`.
pub(crate) fn name(seq: Seq) -> String {
    format!("snap-{:020}.snap", seq.get())
}

/// The last frame in the snapshot with this file name, if it is one.
pub(crate) fn parse_name(name: &str) -> Option<Seq> {
    parse_numbered(name, "snap-", ".snap").and_then(Seq::new)
}

/// The name a snapshot has while it is written.
pub(crate) fn tmp_name(seq: Seq) -> String {
    format!("{}.tmp", name(seq))
}

/// Takes the bytes of a new snapshot.
///
/// A short write never happens; an error means that the snapshot is given up, the log is not touched by it.
pub struct SnapshotWriter {
    file: Box<dyn File>,
    /// Where the next chunk goes.
    at: u64,
    /// The chunk being filled, behind room for its header.
    chunk: Vec<u8>,
    index: u64,
    total: u64,
    seed: u32,
    stream: crc32fast::Hasher,
}

impl SnapshotWriter {
    pub(crate) fn create(
        storage: &dyn Storage,
        name: &str,
        incarnation: &Id,
        seq: Seq,
    ) -> io::Result<SnapshotWriter> {
        let file = storage.open(name, OpenMode::Create)?;
        file.write_at(0, &encode_header(incarnation, seq))?;
        let mut chunk = Vec::with_capacity(CHUNK_HEADER + CHUNK);
        chunk.resize(CHUNK_HEADER, 0);
        let seed = seed(incarnation, seq);
        let stream = crc32fast::Hasher::new();
        Ok(SnapshotWriter {
            file,
            at: HEADER as u64,
            chunk,
            index: 0,
            total: 0,
            seed,
            stream,
        })
    }

    fn flush_chunk(&mut self) -> io::Result<()> {
        let len = self.chunk.len() - CHUNK_HEADER;
        if len == 0 {
            return Ok(());
        }
        let crc = chunk_crc(self.seed, self.index, &self.chunk[CHUNK_HEADER..]);
        self.chunk[0..4].copy_from_slice(&(len as u32).to_le_bytes());
        self.chunk[4..8].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(self.at, &self.chunk)?;
        self.stream.update(&self.chunk[CHUNK_HEADER..]);
        self.at += self.chunk.len() as u64;
        self.total += len as u64;
        self.index += 1;
        self.chunk.truncate(CHUNK_HEADER);
        Ok(())
    }

    /// Writes the trailer and syncs. Returns the file's length.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.flush_chunk()?;
        let trailer = encode_trailer(self.seed, self.index, self.total, self.stream.finalize());
        self.file.write_at(self.at, &trailer)?;
        self.file.sync_data()?;
        Ok(self.at + TRAILER as u64)
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_HEADER + CHUNK - self.chunk.len();
        let taken = bytes.len().min(room);
        self.chunk.extend_from_slice(&bytes[..taken]);
        if taken == room {
            self.flush_chunk()?;
        }
        Ok(taken)
    }

    /// Does nothing: a snapshot counts when it is installed, not before.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a snapshot's bytes back, checking each chunk before it is handed out.
pub struct SnapshotReader {
    file: Box<dyn File>,
    path: PathBuf,
    seq: Seq,
    /// The next chunk.
    at: u64,
    chunk: Vec<u8>,
    /// How much of the chunk was handed out.
    taken: usize,
    index: u64,
    total: u64,
    seed: u32,
    stream: crc32fast::Hasher,
    done: bool,
}

impl SnapshotReader {
    pub(crate) fn open(
        storage: &dyn Storage,
        incarnation: &Id,
        seq: Seq,
    ) -> Result<SnapshotReader, ReadError> {
        let path = storage.path().join(name(seq));
        let io = |source| ReadError::Io {
            file: path.clone(),
            source,
        };
        let file = storage.open(&name(seq), OpenMode::Read).map_err(io)?;
        let mut head = [0; HEADER];
        let read = file.read_at(0, &mut head).map_err(io)?;
        check_header(&head[..read], incarnation, seq, &path)?;
        let seed = seed(incarnation, seq);
        let stream = crc32fast::Hasher::new();
        let at = HEADER as u64;
        Ok(SnapshotReader {
            file,
            path,
            seq,
            at,
            chunk: Vec::new(),
            taken: 0,
            index: 0,
            total: 0,
            seed,
            stream,
            done: false,
        })
    }

    /// The last frame whose effect is in the snapshot.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Reads the whole file and checks it.
    pub(crate) fn verify(mut self) -> Result<(), ReadError> {
        while self.next_chunk()? {}
        Ok(())
    }

    fn damaged(&self, why: &str) -> ReadError {
        Damage {
            file: self.path.clone(),
            offset: self.at,
            why: why.to_owned(),
        }
        .into()
    }

    fn read_exact_at(&mut self, offset: u64, len: usize) -> Result<(), ReadError> {
        self.chunk.resize(len, 0);
        let read = self.file.read_at(offset, &mut self.chunk);
        match read.map_err(|source| ReadError::Io {
            file: self.path.clone(),
            source,
        })? {
            n if n == len => Ok(()),
            _ => Err(self.damaged("the snapshot ends too early")),
        }
    }

    /// Loads the next chunk; `false` after a trailer that matches.
    fn next_chunk(&mut self) -> Result<bool, ReadError> {
        if self.done {
            return Ok(false);
        }
        self.taken = 0;
        self.read_exact_at(self.at, CHUNK_HEADER)?;
        let (len, crc) = (u32_at(&self.chunk, 0) as usize, u32_at(&self.chunk, 4));
        if len == 0 {
            return self.check_trailer();
        }
        if len > CHUNK {
            return Err(self.damaged("a chunk is longer than a chunk can be"));
        }
        self.read_exact_at(self.at + CHUNK_HEADER as u64, len)?;
        if chunk_crc(self.seed, self.index, &self.chunk) != crc {
            return Err(self.damaged("a chunk does not match its checksum"));
        }
        self.stream.update(&self.chunk);
        self.total += len as u64;
        self.index += 1;
        self.at += (CHUNK_HEADER + len) as u64;
        Ok(true)
    }

    fn check_trailer(&mut self) -> Result<bool, ReadError> {
        self.read_exact_at(self.at, TRAILER)?;
        let expected = encode_trailer(
            self.seed,
            self.index,
            self.total,
            self.stream.clone().finalize(),
        );
        if self.chunk != expected {
            return Err(self.damaged("the trailer does not match what was read"));
        }
        let len = self.file.len().map_err(|source| ReadError::Io {
            file: self.path.clone(),
            source,
        })?;
        if len != self.at + TRAILER as u64 {
            return Err(self.damaged("there are bytes behind the trailer"));
        }
        self.chunk.clear();
        self.done = true;
        Ok(false)
    }
}

impl Read for SnapshotReader {
    /// Damage is reported as `InvalidData`, with the [`ReadError`] inside.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() && !self.next_chunk().map_err(into_io)? {
            return Ok(0);
        }
        let len = buf.len().min(self.chunk.len() - self.taken);
        buf[..len].copy_from_slice(&self.chunk[self.taken..self.taken + len]);
        self.taken += len;
        Ok(len)
    }

    /// As [`read`](Read::read), into memory that is taken once.
    fn read_to_end(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let before = bytes.len();
        let left = self.file.len()?.saturating_sub(self.at);
        bytes.try_reserve(usize::try_from(left).unwrap_or(usize::MAX))?;
        loop {
            bytes.extend_from_slice(&self.chunk[self.taken..]);
            self.taken = self.chunk.len();
            if !self.next_chunk().map_err(into_io)? {
                return Ok(bytes.len() - before);
            }
        }
    }
}

fn into_io(error: ReadError) -> io::Error {
    match error {
        ReadError::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

fn seed(incarnation: &Id, seq: Seq) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(incarnation.as_bytes());
    hasher.update(&seq.get().to_le_bytes());
    hasher.finalize()
}

fn chunk_crc(seed: u32, index: u64, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&index.to_le_bytes());
    hasher.update(&(data.len() as u32).to_le_bytes());
    hasher.update(data);
    hasher.finalize()
}

fn encode_header(incarnation: &Id, seq: Seq) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(HEADER as u32).to_le_bytes());
    bytes[16..32].copy_from_slice(incarnation.as_bytes());
    bytes[32..40].copy_from_slice(&seq.get().to_le_bytes());
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn encode_trailer(seed: u32, index: u64, total: u64, stream: u32) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[8..16].copy_from_slice(&total.to_le_bytes());
    bytes[16..20].copy_from_slice(&stream.to_le_bytes());
    let crc = chunk_crc(seed, index, &bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn check_header(
    head: &[u8],
    incarnation: &Id,
    seq: Seq,
    path: &std::path::Path,
) -> Result<(), ReadError> {
    let bad = |offset, why: String| {
        Err(Damage {
            file: path.to_owned(),
            offset,
            why,
        }
        .into())
    };
    if head.len() < HEADER || &head[..8] != MAGIC {
        return bad(0, "its header does not begin as a snapshot's".to_owned());
    }
    if crc32fast::hash(&head[..60]) != u32_at(head, 60) {
        return bad(0, "its header does not match its checksum".to_owned());
    }
    if u32_at(head, 8) != VERSION {
        let found = u32_at(head, 8);
        return Err(ReadError::Unsupported {
            file: path.to_owned(),
            found,
            supported: VERSION,
        });
    }
    if &head[16..32] != incarnation.as_bytes() {
        return bad(
            16,
            format!("it does not belong to incarnation {incarnation} of this directory"),
        );
    }
    if u64_at(head, 32) != seq.get() {
        return bad(
            32,
            format!(
                "its header says that it ends with frame {}",
                u64_at(head, 32)
            ),
        );
    }
    Ok(())
}

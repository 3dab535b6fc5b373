//! The format of a store's log and snapshots. Integers are little-endian.
//!
//! ```text
//!   first frame   "PALFENCE" │ version u8 = 1 │ mode u8
//!   other frames  version u8 = 1 │ record │ record │ …
//!   snapshot      as the first frame │ (length u32 │ record) │ (length u32 │ record) │ …
//!
//!   record  name: u8 length, bytes │ flags u8 │ fence, if flags & 1 │ change, if flags & 2
//!   fence   flags u8 │ authority: u8 length, bytes, if & 1 │ lock, likewise, if & 2
//!           │ token u64, written u8 (0 nothing, 1 unnumbered, 2 numbered), sequence u64 if 2, if & 4
//!           │ digest u64, if & 8
//!   change  kind u8 (1 put, 2 append, 3 delete) │ path: u16 length, bytes
//!           │ u32 length, bytes, if put or append
//! ```
//!
//! The log's checksums find damage before any of this is read. Lengths are still not trusted.

use palisade_core::fence::{FenceRecord, FenceState, Mark, Mode, Sequence, Written};
use palisade_core::{AuthorityId, LockName, Token};

use crate::name::{ObjectPath, ResourceId};
use crate::objects::{Alter, Record};

/// Bytes that no store writes.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The problem.
    #[error("{0}")]
    Content(&'static str),
    /// They could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Returns the first frame.
pub(super) fn header(mode: Mode) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8] = VERSION;
    header[9] = mode_tag(mode);
    header
}

pub(super) fn read_header(bytes: &[u8]) -> Result<Mode, Damage> {
    match bytes {
        [magic @ .., VERSION, mode] if magic == MAGIC => MODES
            .into_iter()
            .find(|known| mode_tag(*known) == *mode)
            .ok_or(bad("unknown mode")),
        [magic @ .., _, _] if magic == MAGIC => Err(bad("unknown version of the format")),
        _ => Err(bad("this is not the directory of a store")),
    }
}

/// Starts a frame of records.
pub(super) fn start_frame(frame: &mut Vec<u8>) {
    frame.clear();
    frame.push(VERSION);
}

/// Passes every record of a frame to `each`.
pub(super) fn each_record(frame: &[u8], mut each: impl FnMut(Record)) -> Result<(), Damage> {
    let mut rest = Rest(frame);
    if rest.u8()? != VERSION {
        return Err(bad("unknown version of a frame"));
    }
    while !rest.0.is_empty() {
        each(rest.record()?);
    }
    Ok(())
}

/// Reads one record that fills `bytes`.
pub(super) fn read_record(bytes: &[u8]) -> Result<Record, Damage> {
    let mut rest = Rest(bytes);
    let record = rest.record()?;
    if rest.0.is_empty() {
        Ok(record)
    } else {
        Err(bad("bytes after a record"))
    }
}

pub(super) fn write_record(out: &mut Vec<u8>, record: &Record) {
    short(out, record.resource.as_str());
    let flags = u8::from(record.fence.is_some()) | u8::from(record.change.is_some()) << 1;
    out.push(flags);
    if let Some(fence) = &record.fence {
        write_fence(out, fence);
    }
    if let Some((path, alter)) = &record.change {
        write_change(out, path, alter);
    }
}

fn write_fence(out: &mut Vec<u8>, fence: &FenceRecord) {
    let FenceState {
        authority,
        lock,
        mark,
    } = &fence.state;
    let present = [
        authority.is_some(),
        lock.is_some(),
        mark.is_some(),
        fence.digest.is_some(),
    ];
    out.push(
        (0..)
            .zip(present)
            .map(|(bit, present)| u8::from(present) << bit)
            .sum(),
    );
    authority
        .iter()
        .for_each(|authority| short(out, authority.as_str()));
    lock.iter().for_each(|lock| short(out, lock.as_str()));
    mark.iter().for_each(|mark| write_mark(out, mark));
    fence
        .digest
        .iter()
        .for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
}

fn write_mark(out: &mut Vec<u8>, mark: &Mark) {
    out.extend_from_slice(&mark.token.get().to_le_bytes());
    match mark.written {
        Written::Nothing => out.push(0),
        Written::Unnumbered => out.push(1),
        Written::Through(sequence) => {
            out.push(2);
            out.extend_from_slice(&sequence.get().to_le_bytes());
        }
    }
}

fn write_change(out: &mut Vec<u8>, path: &ObjectPath, alter: &Alter) {
    out.push(alter.kind());
    // Paths are at most 1,024 bytes and objects at most 32 MiB, by their types and settings.
    out.extend_from_slice(&(path.as_str().len() as u16).to_le_bytes());
    out.extend_from_slice(path.as_str().as_bytes());
    if let Alter::Put(bytes) | Alter::Append(bytes) = alter {
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }
}

/// Writes a name, which has at most 255 bytes by its type.
fn short(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

/// The bytes that are left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(bad("a record ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .ok_or(bad("a record ends early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Damage> {
        self.array().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, length: usize) -> Result<&'a str, Damage> {
        std::str::from_utf8(self.take(length)?).map_err(|_| bad("a name is not UTF-8"))
    }

    fn short(&mut self) -> Result<&'a str, Damage> {
        let length = self.u8()?;
        self.text(length.into())
    }

    fn record(&mut self) -> Result<Record, Damage> {
        let resource =
            ResourceId::new(self.short()?).map_err(|_| bad("invalid name of a resource"))?;
        let flags = self.u8()?;
        if flags > 3 {
            return Err(bad("unknown flags of a record"));
        }
        let fence = (flags & 1 != 0).then(|| self.fence()).transpose()?;
        let change = (flags & 2 != 0).then(|| self.change()).transpose()?;
        Ok(Record {
            resource,
            fence,
            change,
        })
    }

    fn fence(&mut self) -> Result<FenceRecord, Damage> {
        let flags = self.u8()?;
        if flags > 15 {
            return Err(bad("unknown flags of a fence"));
        }
        let has = |bit: u8| flags & 1 << bit != 0;
        let authority = has(0).then(|| self.authority()).transpose()?;
        let lock = has(1).then(|| self.lock()).transpose()?;
        let mark = has(2).then(|| self.mark()).transpose()?;
        let digest = has(3).then(|| self.u64()).transpose()?;
        let state = FenceState {
            authority,
            lock,
            mark,
        };
        Ok(FenceRecord {
            digest,
            ..state.into()
        })
    }

    fn authority(&mut self) -> Result<AuthorityId, Damage> {
        AuthorityId::new(self.short()?).map_err(|_| bad("invalid name of an authority"))
    }

    fn lock(&mut self) -> Result<LockName, Damage> {
        LockName::new(self.short()?).map_err(|_| bad("invalid name of a lock"))
    }

    fn mark(&mut self) -> Result<Mark, Damage> {
        let token = Token::new(self.u64()?).map_err(|_| bad("invalid token"))?;
        let written = match self.u8()? {
            0 => Written::Nothing,
            1 => Written::Unnumbered,
            2 => {
                Written::Through(Sequence::new(self.u64()?).ok_or(bad("invalid sequence number"))?)
            }
            _ => return Err(bad("unknown kind of mark")),
        };
        Ok(Mark { token, written })
    }

    fn change(&mut self) -> Result<(ObjectPath, Alter), Damage> {
        let kind = self.u8()?;
        let length = u16::from_le_bytes(self.array()?);
        let path = ObjectPath::new(self.text(length.into())?).map_err(|_| bad("invalid path"))?;
        let alter = match kind {
            1 => Alter::Put(self.bytes()?),
            2 => Alter::Append(self.bytes()?),
            3 => Alter::Delete,
            _ => return Err(bad("unknown kind of change")),
        };
        Ok((path, alter))
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Damage> {
        let length = u32::from_le_bytes(self.array()?);
        Ok(self.take(length as usize)?.to_vec())
    }
}

const fn bad(what: &'static str) -> Damage {
    Damage::Content(what)
}

const fn mode_tag(mode: Mode) -> u8 {
    match mode {
        Mode::Claim => 1,
        Mode::Strict => 2,
        Mode::Textbook => 3,
        Mode::DangerUnfenced => 4,
    }
}

const MODES: [Mode; 4] = [
    Mode::Claim,
    Mode::Strict,
    Mode::Textbook,
    Mode::DangerUnfenced,
];
const MAGIC: &[u8; 8] = b"PALFENCE";
const VERSION: u8 = 1;
pub(super) const HEADER_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use palisade_core::fence::{Op, Pass, Rule, Verdict};
    use proptest::prelude::*;

    use super::*;

    fn any_fence() -> impl Strategy<Value = FenceRecord> {
        let name = || prop::option::of("[ -~]{1,255}");
        let number = prop::option::of(prop::option::of(0_u64..=Sequence::MAX.get()));
        let parts = (
            name(),
            name(),
            1..=Token::MAX.get(),
            number,
            any::<Option<u64>>(),
        );
        parts.prop_map(|(authority, lock, token, number, digest)| {
            let authority = authority.map(|name| AuthorityId::new(&name).unwrap());
            let lock = lock.map(|name| LockName::new(&name).unwrap());
            let op = number.map_or(Op::Claim, |number| {
                Op::Write(number.and_then(Sequence::new))
            });
            let pass = Pass {
                authority: authority.as_ref(),
                lock: lock.as_ref(),
                ..Pass::new(Token::new(token).unwrap())
            };
            let rule = Rule::CLAIM.unbounded();
            match rule.decide(&FenceState::default(), pass, op) {
                Verdict::Admit(Some(state)) => FenceRecord {
                    digest,
                    ..state.into()
                },
                other => panic!("{other:?}"),
            }
        })
    }

    fn any_change() -> impl Strategy<Value = (ObjectPath, Alter)> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..300);
        let alter = prop_oneof![
            bytes().prop_map(Alter::Put),
            bytes().prop_map(Alter::Append),
            Just(Alter::Delete)
        ];
        ("/[a-zäö]{1,200}", alter)
            .prop_map(|(path, alter)| (ObjectPath::new(&path).unwrap(), alter))
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let parts = (
            "[ -~]{1,255}",
            prop::option::of(any_fence()),
            prop::option::of(any_change()),
        );
        parts.prop_map(|(name, fence, change)| Record {
            resource: ResourceId::new(&name).unwrap(),
            fence,
            change,
        })
    }

    proptest! {
        #[test]
        fn a_frame_survives_a_round_trip(records in prop::collection::vec(any_record(), 0..5)) {
            let mut frame = Vec::new();
            start_frame(&mut frame);
            records.iter().for_each(|record| write_record(&mut frame, record));
            let mut read = Vec::new();
            each_record(&frame, |record| read.push(record)).unwrap();
            prop_assert_eq!(read, records);
        }

        #[test]
        fn every_truncated_record_is_refused(record in any_record(), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            write_record(&mut bytes, &record);
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(read_record(&bytes).is_err());
        }

        #[test]
        fn random_bytes_cause_no_panic(noise in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = each_record(&noise, |_| ());
            let _ = read_record(&noise);
            let _ = read_header(&noise);
        }
    }

    #[test]
    fn a_header_contains_the_mode() {
        for mode in MODES {
            assert_eq!(read_header(&header(mode)).unwrap(), mode);
        }
        assert!(
            read_header(b"PALFENCE\x02\x01")
                .unwrap_err()
                .to_string()
                .contains("version")
        );
        assert!(
            read_header(b"PALFENCE\x01\x09")
                .unwrap_err()
                .to_string()
                .contains("mode")
        );
        assert!(
            read_header(b"")
                .unwrap_err()
                .to_string()
                .contains("not the directory of a store")
        );
    }

    /// A golden record: today's files must stay readable for ever.
    #[test]
    fn the_format_is_unchanged() {
        let mut frame = Vec::new();
        start_frame(&mut frame);
        let state = FenceState {
            authority: Some(AuthorityId::new("a").unwrap()),
            lock: None,
            mark: Some(Mark {
                token: Token::new(34).unwrap(),
                written: Written::Through(Sequence::new(2).unwrap()),
            }),
        };
        let record = Record {
            resource: ResourceId::new("r").unwrap(),
            fence: Some(FenceRecord {
                digest: Some(9),
                ..state.into()
            }),
            change: Some((
                ObjectPath::new("/f").unwrap(),
                Alter::Append(b"hi".to_vec()),
            )),
        };
        write_record(&mut frame, &record);
        let golden = b"\x01\x01r\x03\x0d\x01a\x22\0\0\0\0\0\0\0\x02\x02\0\0\0\0\0\0\0\
            \x09\0\0\0\0\0\0\0\x02\x02\0/f\x02\0\0\0hi";
        assert_eq!(frame, golden);
    }
}

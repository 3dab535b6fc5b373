//! The operations that most frames of a session consist of, read where they lie: nothing is allocated but their list.
//!
//! ```text
//!   frame ─► operations ─┬─ acquire without options, renew, release; fields in order, each once ─► borrowed
//!                        └─ anything else ─► None: decode it as v1::Requests
//! ```
//!
//! Reading in place gives the same result as decoding. Every protobuf library that we know writes the fields of a message in
//! the order of their numbers. A frame in another order costs more to read and means the same.
//!
//! [`Operation::put`] is the way back, for clients, and [`replies`] reads the answers.

mod replies;

use prost::encoding::{encode_varint, encoded_len_varint};

pub use replies::{Granted, Reply, replies};

/// One operation of a frame; an absent field is empty or 0, as in [`v1`](crate::v1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// [`AcquireRequest`](crate::v1::AcquireRequest) without options.
    Acquire(Acquire<'a>),
    /// [`RenewRequest`](crate::v1::RenewRequest).
    Renew {
        /// The grant.
        grant: Grant<'a>,
        /// A new time to live, or 0.
        lease_duration_ms: u32,
    },
    /// [`ReleaseRequest`](crate::v1::ReleaseRequest).
    Release(Grant<'a>),
}

/// The fields of an acquire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto carries the documentation")]
pub struct Acquire<'a> {
    pub lock: &'a str,
    pub client_id: &'a str,
    pub lease_duration_ms: u32,
    pub wait_ms: u32,
    pub lock_token: &'a [u8],
    pub request_id: &'a [u8],
    pub metadata: &'a str,
}

/// The fields that name a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto carries the documentation")]
pub struct Grant<'a> {
    pub lock: &'a str,
    pub lock_token: &'a [u8],
    pub fencing_token: u64,
}

impl Operation<'_> {
    /// Puts it at the end of an [open frame](crate::frames::FrameBuilder), byte for byte as
    /// [`v1::Request`](crate::v1::Request) is put.
    pub fn put(&self, id: u64, out: &mut Vec<u8>) {
        use Field::{Bytes, Number};
        match self {
            Operation::Acquire(acquire) => {
                let fields = [
                    Bytes(acquire.lock.as_bytes()),
                    Bytes(acquire.client_id.as_bytes()),
                    Number(acquire.lease_duration_ms.into()),
                    Number(acquire.wait_ms.into()),
                    Bytes(acquire.lock_token),
                    Bytes(acquire.request_id),
                    Bytes(acquire.metadata.as_bytes()),
                ];
                put(out, id, 2, &fields);
            }
            Operation::Renew {
                grant,
                lease_duration_ms,
            } => {
                let [lock, key, token] = grant.fields();
                let ttl = Number((*lease_duration_ms).into());
                put(out, id, 3, &[lock, key, token, ttl]);
            }
            Operation::Release(grant) => put(out, id, 4, &grant.fields()),
        }
    }
}

impl Grant<'_> {
    fn fields(&self) -> [Field<'_>; 3] {
        [
            Field::Bytes(self.lock.as_bytes()),
            Field::Bytes(self.lock_token),
            Field::Number(self.fencing_token),
        ]
    }
}

/// Puts a request whose operation has this number and these fields, numbered from 1.
fn put<const N: usize>(out: &mut Vec<u8>, id: u64, operation: u8, fields: &[Field<'_>; N]) {
    let id = Field::Number(id);
    let body: usize = fields.iter().map(Field::len).sum();
    let request = id.len() + 1 + encoded_len_varint(body as u64) + body;
    out.reserve(2 * LONGEST_VARINT + request);
    out.push(1 << 3 | 2);
    encode_varint(request as u64, out);
    id.put(1, out);
    out.push(operation << 3 | 2);
    encode_varint(body as u64, out);
    for (number, field) in (1..).zip(fields) {
        field.put(number, out);
    }
}

const LONGEST_VARINT: usize = 10;

/// A field of a message; one that is empty or 0 is left out.
#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Field<'_> {
    fn len(&self) -> usize {
        match *self {
            Field::Number(0) | Field::Bytes([]) => 0,
            Field::Number(value) => 1 + encoded_len_varint(value),
            Field::Bytes(bytes) => 1 + encoded_len_varint(bytes.len() as u64) + bytes.len(),
        }
    }

    fn put(&self, number: u8, out: &mut Vec<u8>) {
        match *self {
            Field::Number(0) | Field::Bytes([]) => {}
            Field::Number(value) => {
                out.push(number << 3);
                encode_varint(value, out);
            }
            Field::Bytes(bytes) => {
                out.push(number << 3 | 2);
                encode_varint(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// The operations of a frame with their ids, of which there are `count` as
/// [`check_count`](crate::frames::check_count) counts; `None` if one of them is something else than these, or has id 0.
#[must_use]
pub fn operations(frame: &[u8], count: usize) -> Option<Vec<(u64, Operation<'_>)>> {
    let mut operations = Vec::with_capacity(count);
    let mut fields = Fields(frame);
    while !fields.0.is_empty() {
        operations.push(operation(fields.bytes(1)?)?);
    }
    Some(operations)
}

fn operation(request: &[u8]) -> Option<(u64, Operation<'_>)> {
    let mut fields = Fields(request);
    let id = fields.number(1)?;
    let operation = match fields.0.first()? >> 3 {
        2 => Operation::Acquire(acquire(Fields(fields.bytes(2)?))?),
        3 => {
            let mut renew = Fields(fields.bytes(3)?);
            let grant = grant(&mut renew)?;
            let lease_duration_ms = renew.small(4)?;
            renew.end()?;
            Operation::Renew {
                grant,
                lease_duration_ms,
            }
        }
        4 => {
            let mut release = Fields(fields.bytes(4)?);
            let grant = grant(&mut release)?;
            release.end()?;
            Operation::Release(grant)
        }
        _ => return None,
    };
    fields.end()?;
    (id != 0).then_some((id, operation))
}

fn acquire(mut fields: Fields<'_>) -> Option<Acquire<'_>> {
    let acquire = Acquire {
        lock: fields.text(1)?,
        client_id: fields.text(2)?,
        lease_duration_ms: fields.small(3)?,
        wait_ms: fields.small(4)?,
        lock_token: fields.bytes(5)?,
        request_id: fields.bytes(6)?,
        metadata: fields.text(7)?,
    };
    fields.end()?;
    Some(acquire)
}

fn grant<'a>(fields: &mut Fields<'a>) -> Option<Grant<'a>> {
    Some(Grant {
        lock: fields.text(1)?,
        lock_token: fields.bytes(2)?,
        fencing_token: fields.number(3)?,
    })
}

/// The rest of a message. Each method takes the field of a number if that comes next, and its default if another one does;
/// `None` if the bytes are no message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn takes(&mut self, tag: u8) -> bool {
        let Some((first, rest)) = self.0.split_first() else {
            return false;
        };
        let is_next = *first == tag;
        if is_next {
            self.0 = rest;
        }
        is_next
    }

    fn number(&mut self, number: u8) -> Option<u64> {
        if self.takes(number << 3) {
            self.varint()
        } else {
            Some(0)
        }
    }

    /// A number of 32 bits. Decoding would cut a larger one.
    fn small(&mut self, number: u8) -> Option<u32> {
        self.number(number)?.try_into().ok()
    }

    fn bytes(&mut self, number: u8) -> Option<&'a [u8]> {
        if !self.takes(number << 3 | 2) {
            return Some(&[]);
        }
        let length = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self, number: u8) -> Option<&'a str> {
        str::from_utf8(self.bytes(number)?).ok()
    }

    /// Nothing is left: no field that is unknown here, or came again or too late.
    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }

    fn varint(&mut self) -> Option<u64> {
        // Most numbers, and all lengths, are short.
        if let Some((&byte, rest)) = self.0.split_first()
            && byte < 0x80
        {
            self.0 = rest;
            return Some(byte.into());
        }
        let mut number = 0;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                // The tenth byte has the last of 64 bits.
                return (at < 9 || *byte == 1).then_some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::v1::request::Operation as Decoded;
    use crate::v1::{
        AcquireOption, AcquireRequest, ReleaseRequest, RenewRequest, Request, Requests,
    };

    /// The result of decoding, in these types; `None` if a frame contains anything else.
    fn decoded(frame: &Requests) -> Option<Vec<(u64, Operation<'_>)>> {
        let all = frame.requests.iter().map(|request| {
            let operation = match request.operation.as_ref()? {
                Decoded::Acquire(it) if it.options.is_empty() => Operation::Acquire(Acquire {
                    lock: &it.lock,
                    client_id: &it.client_id,
                    lease_duration_ms: it.lease_duration_ms,
                    wait_ms: it.wait_ms,
                    lock_token: &it.lock_token,
                    request_id: &it.request_id,
                    metadata: &it.metadata,
                }),
                Decoded::Renew(it) => Operation::Renew {
                    grant: Grant {
                        lock: &it.lock,
                        lock_token: &it.lock_token,
                        fencing_token: it.fencing_token,
                    },
                    lease_duration_ms: it.lease_duration_ms,
                },
                Decoded::Release(it) => Operation::Release(Grant {
                    lock: &it.lock,
                    lock_token: &it.lock_token,
                    fencing_token: it.fencing_token,
                }),
                _ => return None,
            };
            (request.id != 0).then_some((request.id, operation))
        });
        all.collect()
    }

    /// xorshift64: the same frames in every run.
    pub(super) struct Dice(pub(super) u64);

    impl Dice {
        pub(super) fn throw(&mut self, sides: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % sides
        }

        pub(super) fn number(&mut self) -> u64 {
            match self.throw(4) {
                0 => 0,
                1 => self.throw(128),
                2 => u64::MAX >> self.throw(64),
                _ => self.throw(100_000),
            }
        }

        pub(super) fn bytes(&mut self) -> Vec<u8> {
            let length = [0, 1, 16, 200][self.throw(4) as usize];
            (0..length).map(|_| self.throw(256) as u8).collect()
        }

        pub(super) fn text(&mut self) -> String {
            String::from_utf8_lossy(&self.bytes()).into_owned()
        }

        /// Makes bytes that no writer would send: fields twice, in another order, cut off, numbers that are too long.
        pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
            for _ in 0..self.throw(3) {
                let at = self.throw(bytes.len() as u64 + 1) as usize;
                match self.throw(4) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, self.throw(256) as u8),
                    2 => bytes.extend_from_within(at..),
                    _ => {
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << self.throw(8);
                        }
                    }
                }
            }
        }

        fn request(&mut self) -> Request {
            let operation = match self.throw(7) {
                0 | 1 => Decoded::Acquire(AcquireRequest {
                    lock: self.text(),
                    client_id: self.text(),
                    lease_duration_ms: self.number() as u32,
                    wait_ms: self.number() as u32,
                    lock_token: self.bytes(),
                    request_id: self.bytes(),
                    metadata: self.text(),
                    options: vec![AcquireOption::default(); self.throw(8) as usize / 7],
                }),
                2 | 3 => Decoded::Renew(RenewRequest {
                    lock: self.text(),
                    lock_token: self.bytes(),
                    fencing_token: self.number(),
                    lease_duration_ms: self.number() as u32,
                }),
                4 | 5 => Decoded::Release(ReleaseRequest {
                    lock: self.text(),
                    lock_token: self.bytes(),
                    fencing_token: self.number(),
                }),
                _ => Decoded::Status(crate::v1::StatusRequest {}),
            };
            Request {
                id: self.number(),
                operation: (self.throw(20) > 0).then_some(operation),
            }
        }
    }

    #[test]
    fn what_is_borrowed_is_what_decoding_finds_and_is_put_as_it_was() {
        let (mut dice, mut borrowed_frames) = (Dice(7), 0);
        for _ in 0..5_000 {
            let requests = (0..dice.throw(4)).map(|_| dice.request()).collect();
            let frame = Requests { requests };
            let bytes = frame.encode_to_vec();
            let borrowed = operations(&bytes, frame.requests.len());
            assert_eq!(borrowed, decoded(&frame), "{frame:?}");
            if let Some(operations) = &borrowed {
                let mut again = Vec::new();
                operations
                    .iter()
                    .for_each(|(id, operation)| operation.put(*id, &mut again));
                assert_eq!(again, bytes, "{frame:?}");
            }
            borrowed_frames += usize::from(borrowed.is_some_and(|all| !all.is_empty()));
        }
        assert!(borrowed_frames > 500, "{borrowed_frames}");
    }

    #[test]
    fn damaged_bytes_never_mean_anything_else() {
        let (mut dice, mut agreed, mut refused) = (Dice(11), 0, 0);
        for _ in 0..200_000 {
            let requests = vec![dice.request()];
            let mut bytes = Requests { requests }.encode_to_vec();
            dice.damage(&mut bytes);
            let Some(borrowed) = operations(&bytes, 1) else {
                refused += 1;
                continue;
            };
            let whole = Requests::decode(&*bytes);
            let whole = whole.unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
            assert_eq!(Some(borrowed), decoded(&whole), "{bytes:02x?}");
            agreed += 1;
        }
        assert!(agreed > 20_000 && refused > 20_000, "{agreed}, {refused}");
    }

    #[test]
    fn order_and_number_of_fields_are_looked_at() {
        let release = |fields: &[&[u8]]| {
            let body = fields.concat();
            let body = [&[0x08, 1, 0x22, body.len() as u8][..], &body].concat();
            [&[0x0a, body.len() as u8][..], &body].concat()
        };
        let (lock, key, token) = (&[0x0a, 1, b'a'][..], &[0x12, 1, 7][..], &[0x18, 5][..]);
        let expected = Operation::Release(Grant {
            lock: "a",
            lock_token: &[7],
            fencing_token: 5,
        });
        let usual = release(&[lock, key, token]);
        assert_eq!(operations(&usual, 1), Some(vec![(1, expected)]));
        for unusual in [
            release(&[key, lock, token]),
            release(&[lock, lock, key, token]),
            release(&[lock, key, token, &[0x20, 1]]),
        ] {
            assert_eq!(operations(&unusual, 1), None);
            assert!(Requests::decode(&*unusual).is_ok());
        }
    }
}

//! The plain session: the messages of the gRPC session on a bare TCP connection.
//!
//! ```text
//!   client ── preface ── frame ── frame ──►      frame:  length (u32, big-endian) │ message
//!   client ◄──────────── frame ── frame ───      there:  v1::Requests, back: v1::Replies
//! ```
//!
//! It is on the port of everything else: the preface's first byte opens no HTTP request and no TLS handshake. An
//! operation costs one read and one write on either side. HTTP/2 with its framing, windows and two tasks per connection
//! costs more.
//!
//! * A client speaks first, and again at least every [`SILENCE`]: an empty frame will do, and is
//!   answered by an empty frame. A side that hears nothing for longer may take the other for gone.
//! * A client with a bearer token begins with another preface and the token's text as a frame: there is one identity for
//!   a session.
//! * No operation has id 0: a reply with it says why the server ends the session; nothing after it is read.
//! * The connection's end is the session's: requests that wait leave their queues, grants stay.

use std::fmt;
use std::time::Duration;

use prost::Message;

/// The first bytes of a client: the name and version of the protocol.
pub const PREFACE: [u8; 8] = *b"\0PLSDE1\n";

/// The first bytes of a client with a token, which follows as one frame.
pub const PREFACE_WITH_TOKEN: [u8; 8] = *b"\0PLSDE2\n";

/// No token has more bytes.
pub const TOKEN_BYTES: usize = 8_192;

/// A client is never silent for longer.
pub const SILENCE: Duration = Duration::from_secs(20);

/// Bytes of a frame's length.
pub const HEADER: usize = 4;

/// A frame announced with more bytes than are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The length announced.
    pub bytes: usize,
}

/// Puts a token after [`PREFACE_WITH_TOKEN`].
pub fn put_token(bytes: &mut Vec<u8>, token: &str) {
    // No token is longer than a frame may be.
    let length = u32::try_from(token.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(token.as_bytes());
}

/// The first frame in `bytes`, without its header; `None` if it is not complete yet.
///
/// # Errors
/// [`TooLong`] if it announces more than `most` bytes.
pub fn first(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, TooLong> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*header) as usize;
    if length > most {
        return Err(TooLong { bytes: length });
    }
    Ok(rest.get(..length))
}

/// The length that the frame at the beginning of `bytes` announces; 0 if that is not known yet.
#[must_use]
pub fn announced(bytes: &[u8]) -> usize {
    bytes
        .first_chunk::<HEADER>()
        .map_or(0, |header| u32::from_be_bytes(*header) as usize)
}

/// A frame with more operations than are taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// How many there are, or one more than are taken: nobody counts on.
    pub operations: usize,
    /// How many are taken.
    pub most: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        write!(
            f,
            "a frame of more than {most} operations; send them in several frames of at most {most}"
        )
    }
}

impl std::error::Error for TooMany {}

/// Counts the operations of a frame without decoding it: nothing is allocated, and it detects a frame of tiny
/// operations, which would be many times as large in memory. If the bytes are not a message, the count ends, and
/// decoding reports the error.
///
/// # Errors
/// [`TooMany`] if there are more than `most`.
pub fn check_count(frame: &[u8], most: usize) -> Result<usize, TooMany> {
    let (mut rest, mut operations) = (frame, 0);
    while let Some((after_tag, tag)) = varint(rest) {
        let skipped = match tag & 7 {
            0 => varint(after_tag).map(|(rest, _)| rest),
            1 => after_tag.get(8..),
            2 => varint(after_tag)
                .and_then(|(rest, length)| rest.get(usize::try_from(length).ok()?..)),
            5 => after_tag.get(4..),
            _ => None,
        };
        if tag == ENTRY_TAG {
            operations += 1;
            if operations > most {
                return Err(TooMany { operations, most });
            }
        }
        match skipped {
            Some(next) => rest = next,
            None => break,
        }
    }
    Ok(operations)
}

/// Reads a protobuf varint; returns it and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((&bytes[at + 1..], number));
        }
    }
    None
}

/// Puts an empty frame after the content of `out`.
pub fn put_empty(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; HEADER]);
}

/// A frame that is put together message by message: all of them are entries of the one repeated field
/// that [`Requests`](crate::v1::Requests) and [`Replies`](crate::v1::Replies) consist of.
#[derive(Debug)]
pub struct FrameBuilder {
    begin: usize,
}

impl FrameBuilder {
    /// Opens a frame after the content of `out`.
    #[must_use]
    pub fn at_end(out: &mut Vec<u8>) -> FrameBuilder {
        let begin = out.len();
        put_empty(out);
        FrameBuilder { begin }
    }

    /// Puts one message into it.
    pub fn put<M: Message>(&self, out: &mut Vec<u8>, message: &M) {
        prost::encoding::message::encode(ENTRIES, message, out);
    }

    /// Bytes in it so far.
    #[must_use]
    pub fn len(&self, out: &[u8]) -> usize {
        out.len().saturating_sub(self.begin + HEADER)
    }

    /// Whether nothing was put into it.
    #[must_use]
    pub fn is_empty(&self, out: &[u8]) -> bool {
        self.len(out) == 0
    }

    /// Writes its length. A frame without a message is taken back.
    pub fn close(self, out: &mut Vec<u8>) {
        let length = self.len(out);
        if length == 0 {
            out.truncate(self.begin);
            return;
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(header) = out.get_mut(self.begin..self.begin + HEADER) {
            header.copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// The number of the repeated field in both messages, and how an entry of it begins.
const ENTRIES: u32 = 1;
const ENTRY_TAG: u64 = (ENTRIES as u64) << 3 | 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Replies, Reply};

    #[test]
    fn a_frame_is_its_length_and_the_message() {
        let replies = vec![
            Reply {
                id: 7,
                outcome: None,
            },
            Reply {
                id: 300,
                outcome: None,
            },
        ];
        let mut out = b"before".to_vec();
        let frame = FrameBuilder::at_end(&mut out);
        assert!(frame.is_empty(&out));
        replies.iter().for_each(|reply| frame.put(&mut out, reply));
        frame.close(&mut out);
        put_empty(&mut out);
        let bytes = &out["before".len()..];
        let message = first(bytes, 100).unwrap().unwrap();
        assert_eq!(Replies::decode(message).unwrap(), Replies { replies });
        let rest = &bytes[HEADER + message.len()..];
        assert_eq!(first(rest, 100), Ok(Some(&[][..])));
    }

    #[test]
    fn a_frame_without_a_message_is_taken_back() {
        let mut out = vec![1];
        FrameBuilder::at_end(&mut out).close(&mut out);
        assert_eq!(out, [1]);
    }

    #[test]
    fn a_frame_that_is_not_all_there_is_waited_for_and_one_too_long_is_not() {
        for part in [&[][..], &[0, 0, 0], &[0, 0, 0, 2], &[0, 0, 0, 2, 9]] {
            assert_eq!(first(part, 2), Ok(None));
        }
        assert_eq!(first(&[0, 0, 0, 2, 9, 9, 1], 2), Ok(Some(&[9, 9][..])));
        assert_eq!(first(&[0, 0, 0, 3], 2), Err(TooLong { bytes: 3 }));
        assert_eq!(
            first(b"HTTP/1.1 400", 2),
            Err(TooLong { bytes: 0x4854_5450 })
        );
    }

    #[test]
    fn operations_are_counted_as_decoding_finds_them() {
        let request = |id| crate::v1::Request {
            id,
            operation: None,
        };
        for count in [0, 1, 3, 300] {
            let requests = (0..count as u64).map(request).collect();
            let mut bytes = crate::v1::Requests { requests }.encode_to_vec();
            // Fields that nobody knows yet, of each kind.
            bytes.extend([0x18, 0x80, 0x01, 0x22, 2, 0x0a, 0, 0x2d, 1, 2, 3, 4]);
            bytes.extend([0x31, 1, 2, 3, 4, 5, 6, 7, 8]);
            let decoded = crate::v1::Requests::decode(&*bytes).unwrap();
            assert_eq!(decoded.requests.len(), count);
            assert_eq!(check_count(&bytes, count), Ok(count));
            if let Some(most) = count.checked_sub(1) {
                let operations = count;
                assert_eq!(check_count(&bytes, most), Err(TooMany { operations, most }));
            }
        }
        // Empty operations, two bytes each; and bytes that are no message.
        assert!(check_count(&[0x0a, 0].repeat(11), 10).is_err());
        for nonsense in [
            &[0xff; 20][..],
            &[0x0a],
            &[0x0a, 0xff],
            &[0x0b, 1],
            &[0x0a, 9, 1],
        ] {
            assert!(check_count(nonsense, 10).unwrap() <= 1);
        }
    }

    #[test]
    fn the_preface_opens_nothing_else_on_the_port() {
        assert_eq!(
            PREFACE[0], 0,
            "no method, no HTTP/2 preface and no TLS record begins so"
        );
    }
}

//! The bytes of the file, under a format number of the whole: rows (postcard), pages of rows, and runs of their places.

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

/// The format of the file. A file of another one is begun anew: it holds nothing but the past.
pub(crate) const FORMAT: u64 = 1;

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_behind(&mut bytes, value);
    bytes
}

/// Appends a value.
pub(crate) fn encode_behind(bytes: &mut Vec<u8>, value: &impl Serialize) {
    // Writing to memory fails only for types without a known length, and there are none.
    let Ok(()) = postcard::serialize_with_flavor(value, PostcardBytes(bytes)) else {
        unreachable!("a row has a part without a known length")
    };
}

/// The output of postcard.
struct PostcardBytes<'a>(&'a mut Vec<u8>);

impl Flavor for PostcardBytes<'_> {
    type Output = ();

    fn try_extend(&mut self, more: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(more);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// `None`: not of this format.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// Decodes what this process encoded, or the first part of it.
pub(crate) fn decoded<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> T {
    let Ok((value, _)) = postcard::take_from_bytes(bytes) else {
        unreachable!("a row that was encoded here cannot be decoded")
    };
    value
}

/// Appends a number, seven bits to a byte, the lowest first; the top bit says that more follow.
pub(crate) fn push_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Takes a number off the front. `None`: there is none.
pub(crate) fn take_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A token, and the revision of the end. Of one lock they are in the order of tokens.
pub(crate) type EndPlace = (u64, u64);

/// The rows of a page, the oldest end first, each with its revision.
pub(crate) struct Rows<'a> {
    revision: u64,
    rest: &'a [u8],
}

impl Rows<'_> {
    pub(crate) fn of(key: u64, page: &[u8]) -> Rows<'_> {
        Rows {
            revision: key,
            rest: page,
        }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<(u64, &'a [u8])> {
        let distance = take_number(&mut self.rest)?;
        let length = usize::try_from(take_number(&mut self.rest)?).ok()?;
        let (row, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        self.revision = self.revision.checked_add(distance)?;
        Some((self.revision, row))
    }
}

/// Appends a row to a page, with the distance of its revision from the one before it; the first one's is 0, because the key
/// has its revision. The length and the row follow.
pub(crate) fn push_row(page: &mut Vec<u8>, distance: u64, row: &[u8]) {
    push_number(page, distance);
    push_number(page, row.len() as u64);
    page.extend_from_slice(row);
}

/// The bytes that a row has before it in a page, at most.
pub(crate) const FRAME: usize = 20;

/// The revision of a page's last row.
pub(crate) fn last_of(key: u64, page: &[u8]) -> u64 {
    Rows::of(key, page).last().map_or(key, |(at, _)| at)
}

/// The places of a run.
pub(crate) fn run((token, revision): EndPlace, mut rest: &[u8]) -> Vec<EndPlace> {
    let mut places = vec![(token, revision)];
    let (mut token, mut revision) = (token, revision);
    while let (Some(further), Some(zigzag)) = (take_number(&mut rest), take_number(&mut rest)) {
        token = token.wrapping_add(further);
        revision = revision.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
        places.push((token, revision));
    }
    places
}

/// A run's key has its first place. Each other one has the distance of its token from the one before it, and the same of its
/// revision, which may be negative (zigzag).
pub(crate) fn encode_run((mut token, mut revision): EndPlace, others: &[EndPlace]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(others.len() * 4);
    for place in others {
        push_number(&mut bytes, place.0.wrapping_sub(token));
        let distance = place.1.wrapping_sub(revision).cast_signed();
        let zigzag = (distance << 1) ^ (distance >> 63);
        push_number(&mut bytes, zigzag.cast_unsigned());
        (token, revision) = *place;
    }
    bytes
}

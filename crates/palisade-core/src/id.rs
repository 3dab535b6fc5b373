//! Identities, which are only compared.

use alloc::string::String;
use core::fmt;

use crate::invalid::Invalid;
use crate::token::Token;

/// The public id of a lease: the token of its first grant.
///
/// The token counter thus serves as the counter of leases, and no id repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub Token);

/// The number that identifies a shared grant, drawn from the token counter.
///
/// A shared grant's fencing token is that of its phase, so that overlapping readers do not fence each other. An
/// exclusive grant's number is its token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub Token);

impl fmt::Debug for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantId({})", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({})", self.0)
    }
}

/// The secret of a lease: 128 random bits. A client that knows it can renew and release the lease.
///
/// Only the client and the authority exchange it. It never goes to a resource, a log line or a listing; its `Debug`
/// form hides it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseKey([u8; 16]);

impl LeaseKey {
    /// Creates a key from 16 bytes of a secure random source.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> LeaseKey {
        LeaseKey(bytes)
    }

    /// The bytes, for the wire and the log.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads the 32 hexadecimal digits that [`LeaseKey::to_hex`] writes.
    ///
    /// # Errors
    /// [`Invalid::LeaseKey`] for anything else.
    pub fn from_hex(text: &str) -> Result<LeaseKey, Invalid> {
        unhex(text).map(LeaseKey).ok_or(Invalid::LeaseKey)
    }

    /// Returns the key as 32 lower-case hexadecimal digits. They are secret: give them to the holder only.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseKey(…)")
    }
}

/// The authenticated caller of a request: 128 bits of a one-way hash of the principal's name, or
/// [`ANONYMOUS`](Principal::ANONYMOUS).
///
/// A hash needs no table of names, so it means the same on every node and after every restore. Client ids and request
/// ids are scoped by principal: equal ids of two principals are unrelated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Principal([u64; 2]);

impl Principal {
    /// Every caller if there are no access rules; otherwise a caller without credentials, if the rules name
    /// `anonymous`.
    pub const ANONYMOUS: Principal = Principal([0; 2]);

    /// Creates a principal from 16 bytes of its name's hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Principal {
        let number = u128::from_le_bytes(bytes);
        Principal([number as u64, (number >> 64) as u64])
    }

    /// The bytes, for the log.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        let [low, high] = self.0;
        (low as u128 | (high as u128) << 64).to_le_bytes()
    }

    /// Returns whether this is [`ANONYMOUS`](Principal::ANONYMOUS).
    #[must_use]
    pub const fn is_anonymous(self) -> bool {
        self.0[0] | self.0[1] == 0
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_anonymous() {
            f.write_str("Principal(anonymous)")
        } else {
            write!(f, "Principal({})", hex(&self.to_bytes()))
        }
    }
}

/// The id that identifies a request across retries: 128 bits that the caller chooses anew for each request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId([u8; 16]);

impl RequestId {
    /// Creates an id from 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> RequestId {
        RequestId(bytes)
    }

    /// The bytes, for the wire and the log.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads the 32 hexadecimal digits that [`RequestId::to_hex`] writes.
    ///
    /// # Errors
    /// [`Invalid::RequestId`] for anything else.
    pub fn from_hex(text: &str) -> Result<RequestId, Invalid> {
        unhex(text).map(RequestId).ok_or(Invalid::RequestId)
    }

    /// Returns the id as 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({})", self.to_hex())
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

//! Reading numbers and texts, trusting nothing.

use std::fmt;

use palisade_core::{
    ClientId, Invalid, LeaseKey, LockName, Principal, RequestId, Span, Timestamp, Token, Ttl,
    WallTime,
};

/// Bytes that no writer of this version has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The fault.
    pub what: &'static str,
    /// How many bytes were left when it was found.
    pub left: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes before the end)", self.what, self.left)
    }
}

impl std::error::Error for Malformed {}

/// How many bytes a principal has.
pub(super) const PRINCIPAL_BYTES: usize = 16;

/// Reads a slice from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bad<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed {
            what,
            left: self.0.len(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.0.split_at_checked(bytes) else {
            return self.bad("it ends in the middle");
        };
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        self.bad("a number has more than 64 bits")
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        match std::str::from_utf8(self.take(bytes)?) {
            Ok(text) => Ok(text),
            Err(_) => self.bad("a text is not UTF-8"),
        }
    }

    fn id(&mut self) -> Result<[u8; 16], Malformed> {
        let mut id = [0; 16];
        id.copy_from_slice(self.take(16)?);
        Ok(id)
    }

    fn valid<T>(&self, value: Result<T, Invalid>, what: &'static str) -> Result<T, Malformed> {
        value.or_else(|_| self.bad(what))
    }

    pub(super) fn lock(&mut self) -> Result<LockName, Malformed> {
        let name = LockName::new(self.text()?);
        self.valid(name, "a lock has an impossible name")
    }

    pub(super) fn client(&mut self) -> Result<ClientId, Malformed> {
        let id = ClientId::new(self.text()?);
        self.valid(id, "a client has an impossible id")
    }

    pub(super) fn token(&mut self) -> Result<Token, Malformed> {
        let token = Token::new(self.number()?);
        self.valid(token, "a token is out of range")
    }

    pub(super) fn ttl(&mut self) -> Result<Ttl, Malformed> {
        let ttl = Ttl::from_millis(self.number()?);
        self.valid(ttl, "a time to live is out of range")
    }

    pub(super) fn key(&mut self) -> Result<LeaseKey, Malformed> {
        Ok(LeaseKey::from_bytes(self.id()?))
    }

    pub(super) fn request(&mut self) -> Result<RequestId, Malformed> {
        Ok(RequestId::from_bytes(self.id()?))
    }

    pub(super) fn principal(&mut self) -> Result<Principal, Malformed> {
        Ok(Principal::from_bytes(self.id()?))
    }

    /// Whether this byte comes next; then it is read.
    #[inline]
    pub(super) fn skip(&mut self, byte: u8) -> bool {
        match self.0.split_first() {
            Some((next, rest)) if *next == byte => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    pub(super) fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        Ok(Timestamp::from_nanos(self.number()?))
    }

    pub(super) fn span(&mut self) -> Result<Span, Malformed> {
        Ok(Span::from_nanos(self.number()?))
    }

    pub(super) fn wall(&mut self) -> Result<WallTime, Malformed> {
        Ok(WallTime(self.number()?))
    }

    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        let number = self.number()?;
        u32::try_from(number).or_else(|_| self.bad("a setting is out of range"))
    }

    /// A part that is there only if its bit in a flags byte is set.
    pub(super) fn optional<T>(
        &mut self,
        there: bool,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if there {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }
}

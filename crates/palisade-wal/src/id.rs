//! The id of an owner, an incarnation or an opening.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::storage::Storage;

/// 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; 16]);

impl Id {
    /// The id with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Id {
        Id(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub(crate) fn random(storage: &dyn Storage) -> io::Result<Id> {
        storage.random().map(Id)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

impl FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Id, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("an id is 32 hexadecimal digits");
        }
        let number =
            u128::from_str_radix(text, 16).map_err(|_| "an id is 32 hexadecimal digits")?;
        Ok(Id(number.to_be_bytes()))
    }
}

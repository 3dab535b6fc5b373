//! Versions, serial numbers and positions order the mutations of a chunk.

use std::fmt;

use palisade_core::Token;
use palisade_core::fence::Sequence;
use serde::{Deserialize, Serialize};

/// The version of a chunk: the fencing token of its primary's grant (rule K1).
///
/// A renewal keeps it, so a chunk has one version for as long as it has one primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Version(Token);

impl Version {
    /// The version that a grant gives to its chunk.
    #[must_use]
    pub const fn of(token: Token) -> Version {
        Version(token)
    }

    /// The fencing token.
    #[must_use]
    pub const fn token(self) -> Token {
        self.0
    }
}

impl TryFrom<u64> for Version {
    type Error = palisade_core::Invalid;

    fn try_from(number: u64) -> Result<Version, palisade_core::Invalid> {
        Token::new(number).map(Version)
    }
}

impl From<Version> for u64 {
    fn from(version: Version) -> u64 {
        version.0.get()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a mutation among those of one version, counted from 1 by the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Serial(Sequence);

/// The serial numbers of a version are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a serial number is at most {}", Sequence::MAX.get())]
pub struct SerialsExhausted;

impl Serial {
    /// As the fence compares it.
    #[must_use]
    pub const fn sequence(self) -> Sequence {
        self.0
    }
}

impl TryFrom<u64> for Serial {
    type Error = SerialsExhausted;

    fn try_from(number: u64) -> Result<Serial, SerialsExhausted> {
        Sequence::new(number).map(Serial).ok_or(SerialsExhausted)
    }
}

impl From<Serial> for u64 {
    fn from(serial: Serial) -> u64 {
        serial.0.get()
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a mutation stands in the order of all mutations of a chunk (rule K4): by version, then by serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The version under which it was made.
    pub version: Version,
    /// Its number under that version.
    pub serial: Serial,
}

impl Position {
    /// The position of the next mutation under `version`, after the one at `last`.
    ///
    /// # Errors
    /// [`SerialsExhausted`] at the end of the range.
    pub fn next(last: Option<Position>, version: Version) -> Result<Position, SerialsExhausted> {
        let before = last
            .filter(|last| last.version == version)
            .map_or(0, |last| u64::from(last.serial));
        let serial = Serial::try_from(before + 1)?;
        Ok(Position { version, serial })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.version, self.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(version: u64, serial: u64) -> Position {
        Position {
            version: version.try_into().unwrap(),
            serial: serial.try_into().unwrap(),
        }
    }

    #[test]
    fn serials_begin_anew_with_each_version_and_the_version_orders_first() {
        let next = |last, version: u64| Position::next(last, version.try_into().unwrap()).unwrap();
        assert_eq!(next(None, 4), at(4, 1));
        assert_eq!(next(Some(at(4, 1)), 4), at(4, 2));
        assert_eq!(next(Some(at(4, 9)), 5), at(5, 1));
        assert!(at(4, 9) < at(5, 1));
    }

    #[test]
    fn zero_is_no_version() {
        assert!(serde_json::from_str::<Version>("0").is_err());
        assert!(Version::try_from(1_u64 << 53).is_err());
    }
}

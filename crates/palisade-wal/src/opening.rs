//! The openings of a directory, each with a file of its own.

use std::fmt;
use std::str::FromStr;

use crate::frame::u64_at;
use crate::id::Id;

/// One opening of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The openings of this incarnation so far, this one included.
    pub(crate) number: u64,
    pub(crate) id: Id,
}

impl Opening {
    /// The length of one in the log.
    pub(crate) const LEN: usize = 24;

    pub(crate) fn encode(&self) -> [u8; Opening::LEN] {
        let mut bytes = [0; Opening::LEN];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(self.id.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Opening> {
        let bytes = bytes.first_chunk::<{ Opening::LEN }>()?;
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[8..]);
        Some(Opening {
            number: u64_at(bytes, 0),
            id: Id::from_bytes(id),
        })
    }

    /// The name of its file.
    pub(crate) fn file(&self) -> String {
        format!("{PREFIX}{:020}", self.number)
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.id)
    }
}

impl FromStr for Opening {
    type Err = ();

    fn from_str(text: &str) -> Result<Opening, ()> {
        let (number, id) = text.split_once(' ').ok_or(())?;
        Ok(Opening {
            number: number.parse().map_err(drop)?,
            id: id.parse().map_err(drop)?,
        })
    }
}

const PREFIX: &str = "opening-";

/// Whether a file of this name belongs to an opening.
pub(crate) fn is_opening(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())
}

//! Names of chunks and chunk servers.

use std::fmt;

use palisade_core::LockName;
use serde::{Deserialize, Serialize};

/// The longest name.
const MAX_LEN: usize = 64;

/// A name that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {what} {given:?} is not valid: 1 - {MAX_LEN} of a-z, 0-9 and -, a letter or digit first"
)]
pub struct InvalidName {
    what: &'static str,
    given: String,
}

fn check(what: &'static str, name: &str) -> Result<(), InvalidName> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let valid = name.len() <= MAX_LEN
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || byte == b'-');
    if valid {
        return Ok(());
    }
    let given = name.chars().take(MAX_LEN + 1).collect();
    Err(InvalidName { what, given })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(name: String) -> Result<$name, InvalidName> {
                check($what, &name)?;
                Ok($name(name.into()))
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(name: &str) -> Result<$name, InvalidName> {
                $name::try_from(name.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a chunk.
    ChunkId, "chunk"
}

name! {
    /// The name of a chunk server.
    ServerId, "chunk server"
}

impl ChunkId {
    /// The lock whose holder is the chunk's primary.
    ///
    /// # Errors
    /// Never for a name of the length that a chunk may have.
    pub fn lock(&self) -> Result<LockName, palisade_core::Invalid> {
        LockName::new(&format!("chunk/{self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_folder() {
        for bad in ["", "..", "a/b", "A", "-a", "a.json", "ä", &"a".repeat(65)] {
            let error = bad.parse::<ChunkId>().unwrap_err().to_string();
            assert!(error.contains("1 - 64"), "{error}");
        }
        let chunk: ChunkId = "log-1".parse().unwrap();
        assert_eq!(chunk.lock().unwrap().as_str(), "chunk/log-1");
    }
}

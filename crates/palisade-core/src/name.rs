//! Names that come from outside: locks and clients.

use core::borrow::Borrow;
use core::fmt;
use core::ops::Deref;

use ecow::EcoString;

use crate::invalid::{Invalid, NameFault, NameKind};
use crate::limits;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        ///
        /// 1 – 255 bytes of printable ASCII, compared byte by byte, without case folding or normalisation. Names of up
        /// to 15 bytes are stored inline; cloning shares the text of longer ones.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(EcoString);

        impl $name {
            /// Checks a name from outside.
            ///
            /// # Errors
            /// [`Invalid::Name`] with the problem and its position.
            pub fn new(name: &str) -> Result<$name, Invalid> {
                match fault(name) {
                    None => Ok($name(EcoString::from(name))),
                    Some(fault) => Err(Invalid::Name { kind: $kind, fault }),
                }
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name! {
    /// The name of a lock.
    LockName, NameKind::Lock
}
name! {
    /// The name of a client. Requests with the same client id come from the same contender, which gets its own lock
    /// back at once. Ids that the library generates contain random bits.
    ClientId, NameKind::Client
}
name! {
    /// The id of the authority that issued a token. Tokens of different authorities are never compared (rule F6).
    AuthorityId, NameKind::Authority
}

fn fault(name: &str) -> Option<NameFault> {
    if name.is_empty() {
        return Some(NameFault::Empty);
    }
    if name.len() > limits::NAME_BYTES {
        return Some(NameFault::TooLong { bytes: name.len() });
    }
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    // Without an early exit, the compiler vectorises the loop.
    if name.bytes().fold(true, |all, byte| all & printable(byte)) {
        return None;
    }
    let at = name.bytes().position(|byte| !printable(byte));
    at.map(|at| NameFault::NotPrintable { at })
}

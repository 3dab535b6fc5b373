//! The version of batches and snapshots (rule R21).
//!
//! A batch or snapshot has the lowest version that expresses it. There is one version so far. A new kind of entry gets a new
//! version and a line in [`version_needed`]; nothing else changes. Entries that need no new kind are written as before, byte
//! for byte, so a node of an older build reads them. A snapshot has the newest version of the log before it. Tests have such a
//! kind already: an acquire whose metadata begins with [`NEXT`].

use palisade_core::Command;

/// The version of batches and snapshots that need nothing newer.
pub const VERSION: u8 = 1;

/// How the metadata of an acquire begins that needs the version after [`VERSION`], in tests.
#[cfg(any(test, feature = "testing"))]
pub const NEXT: &str = "next version:";

/// The newest version that this process reads: [`VERSION`]. With the feature `testing`, which no release has, a process
/// reads the next one, too, if PALISADE_TEST_NEXT_VERSION is set.
#[must_use]
#[inline]
pub fn newest_version() -> u8 {
    if reads_next() { VERSION + 1 } else { VERSION }
}

#[cfg(not(any(test, feature = "testing")))]
const fn reads_next() -> bool {
    false
}

#[cfg(any(test, feature = "testing"))]
fn reads_next() -> bool {
    static SET: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("PALISADE_TEST_NEXT_VERSION").is_some());
    cfg!(test) || *SET
}

/// The lowest version of a batch that may contain this command.
#[must_use]
#[inline]
pub fn version_needed(command: &Command) -> u8 {
    match command {
        #[cfg(any(test, feature = "testing"))]
        Command::Acquire(acquire) if acquire.metadata.as_deref().is_some_and(is_next) => {
            VERSION + 1
        }
        _ => VERSION,
    }
}

#[cfg(any(test, feature = "testing"))]
fn is_next(metadata: &str) -> bool {
    metadata.starts_with(NEXT)
}

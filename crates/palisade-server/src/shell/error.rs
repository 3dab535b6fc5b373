//! Why a shell cannot serve.

use super::settings::OutOfRange;

/// Why a shell cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is outside its range.
    #[error(transparent)]
    Settings(#[from] OutOfRange),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] palisade_tls::Error),
    /// The limit of open files leaves no room for connections.
    #[error(
        "this process may open {limit} files: {open} are open and {reserve} are reserved for the log and other files, \
         so there is no room for connections; raise the limit (`ulimit -n 4096`, or LimitNOFILE= of the unit)"
    )]
    Descriptors {
        /// The limit in force, RLIMIT_NOFILE.
        limit: u64,
        /// Files open already.
        open: u64,
        /// Files that stay free.
        reserve: u64,
    },
    /// The operating system did not report how many files may be open.
    #[error("cannot read the limit of open files: {0}")]
    System(#[from] std::io::Error),
}

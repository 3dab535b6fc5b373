//! Why a server ends without being asked to.

use std::path::PathBuf;

use super::sequencer::KeyFileError;
use super::settings::OutOfRange;
use crate::shell;

/// Why a server ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The log failed, so nothing more is acknowledged; the text names the failure.
    #[error("the log failed, nothing more is acknowledged: {0}")]
    LogFailed(String),
    /// An assertion failed; the text says which.
    #[error(
        "the server's own state contradicts itself ({0}), so it stopped before anything was written or answered. Start it \
         again; if it stops again, keep a copy of its directory and report this message"
    )]
    Broken(String),
    /// The settings are out of range.
    #[error(transparent)]
    Settings(#[from] OutOfRange),
    /// Connections cannot be accepted.
    #[error(transparent)]
    Shell(#[from] shell::Error),
    /// The access file cannot be used.
    #[error(transparent)]
    Access(#[from] palisade_access::file::Error),
    /// The audit file cannot be opened.
    #[error("cannot append to the audit file {}: {source}; name a file that this server may write with --audit", file.display())]
    Audit {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The operating system gives no thread for the history.
    #[error("the history's thread cannot start: {0}")]
    Thread(#[source] std::io::Error),
    /// The access file asks for a record of grants, and there is no audit file.
    #[error("{}: [[auth.audit]] for the prefix {prefix:?}: this server has no audit file; name one with --audit FILE", file.display())]
    NoAudit {
        /// The access file.
        file: PathBuf,
        /// One of the prefixes.
        prefix: String,
    },
    /// The keys for sequencers cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The file with the key that encrypts each `lock_token` cannot be used.
    #[error("{}: {source}", file.display())]
    LeaseKeys {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates for requests to the leader cannot be used.
    #[error(transparent)]
    Tls(#[from] palisade_tls::Error),
    /// The gRPC reflection service could not be built from the descriptor: a defect.
    #[error("the gRPC descriptor is unusable: {0}")]
    Descriptor(String),
}

//! Errors. Each message names the cause and the next step.

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Bytes on disk that were synced once differ from the bytes that were written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is damaged at byte {offset}: {why}. The log is refused, because going on would forget what was acknowledged; \
     check the disk and keep this directory. A single server goes on from a backup (`palisade restore`), a member of a \
     cluster is replaced by a new one (`palisade cluster replace`)",
    file.display()
)]
pub struct Damage {
    /// The file with the wrong content.
    pub file: PathBuf,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The finding, and its proof.
    pub why: String,
}

/// Reading the log failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file does not hold what was written to it.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A file was written by another version of this program.
    #[error("{} has format version {found}, this program reads version {supported}: use the version that wrote it", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The version in its header.
        found: u32,
        /// The version this program reads and writes.
        supported: u32,
    },
    /// The operating system reported an error.
    #[error("cannot read {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The directory cannot be opened, created, backed up or restored.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another log of this one, has the directory open.
    #[error(
        "{} is in use: another process{} has it open; stop that process first",
        dir.display(),
        pid.map(|p| format!(" (pid {p})")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process that wrote its id into the lock file, if it did.
        pid: Option<u32>,
    },
    /// There is no log in the directory.
    #[error("there is no log in {}: create one, or correct the path", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds a log already.
    #[error("{} holds a log already: open it instead of creating one", dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// The target of a backup or a restore has to be empty.
    #[error("{} is not empty: name an empty or a new directory", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// There are log files, but no identity that names their owner.
    #[error(
        "{} holds log files but no identity file, so nothing says whose they are: put the file back, \
         or open a backup with `palisade restore`",
        dir.display()
    )]
    NoIdentity {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is not as its last opening left it: it is a copy, or an older copy was put back.
    #[error(
        "{} is not as its last run left it: {why}. Either it is a copy (or an older copy was put back in place), or the \
         owner, mode or times of its files were changed (chown, chmod, touch). {}",
        dir.display(),
        after_a_copy(dir, *node)
    )]
    Copied {
        /// The directory.
        dir: PathBuf,
        /// The difference from the state in which it was left.
        why: String,
        /// The node, if the directory is a cluster member's.
        node: Option<NonZeroU64>,
    },
    /// The directory is a member's, and a single server's was asked for.
    #[error(
        "{0} is the directory of node {node:016x} of a cluster: start it with the --cluster or --join flags that it had. \
         `palisade backup TO --data {0}` makes a backup of it that can be restored; if the other nodes are lost for good, \
         `palisade cluster recover --data {0}` makes it a single server's",
        dir.display()
    )]
    Member {
        /// The directory.
        dir: PathBuf,
        /// The node.
        node: NonZeroU64,
    },
    /// The directory waits to become a member's, and a single server's was asked for.
    #[error(
        "{0} was given the id {node:016x} of a node that is to join a cluster: start it with the --cluster or --join \
         flags that it had. If it is to be a server of its own, remove the file {0}/node first",
        dir.display()
    )]
    Promised {
        /// The directory.
        dir: PathBuf,
        /// The node.
        node: NonZeroU64,
    },
    /// The directory is a single server's, and a member's was asked for.
    #[error(
        "{} is the directory of a single server: start it with --cluster, and it becomes the first node of a cluster; \
         to add a node to a cluster that is there, name an empty directory",
        dir.display()
    )]
    NotMember {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is a backup.
    #[error("{} is a backup: `palisade restore` makes a live directory out of it", dir.display())]
    Backup {
        /// The directory.
        dir: PathBuf,
    },
    /// A setting is out of its range.
    #[error("{name} is {value}, it must be from {min} to {max}")]
    InvalidOption {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The lowest value allowed.
        min: u64,
        /// The highest value allowed.
        max: u64,
    },
    /// A file does not hold what was written to it.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A file was written by another version of this program.
    #[error("{} has format version {found}, this program reads version {supported}: use the version that wrote it", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The version in its header.
        found: u32,
        /// The version this program reads and writes.
        supported: u32,
    },
    /// The operating system reported an error.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation, with the file.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The remedy for a directory that may be a copy.
fn after_a_copy(dir: &Path, node: Option<NonZeroU64>) -> String {
    match node {
        None => format!(
            "An old copy would issue the same tokens again; `palisade restore --in-place {}` is right in both cases: it \
             keeps what is there and leaps above every token issued before",
            dir.display()
        ),
        Some(node) => format!(
            "An old copy has forgotten what node {node:016x} acknowledged, so it must not vote: move the directory \
             away, start with an empty one, and type `palisade cluster replace {node:016x} NEW` with the id that the \
             new node reports"
        ),
    }
}

impl OpenError {
    /// For `map_err`: names the operation.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
        let what = what.into();
        move |source| OpenError::Io { what, source }
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> OpenError {
        match error {
            ReadError::Damaged(damage) => OpenError::Damaged(damage),
            ReadError::Unsupported {
                file,
                found,
                supported,
            } => OpenError::Unsupported {
                file,
                found,
                supported,
            },
            ReadError::Io { file, source } => OpenError::Io {
                what: format!("read {}", file.display()),
                source,
            },
        }
    }
}

/// There is no room for a frame. Nothing was written and the log goes on; room is looked for again in
/// the background.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no room in the log for {bytes} bytes: the next segment cannot be prepared: {cause}")]
pub struct Full {
    /// The payload that was asked for.
    pub bytes: usize,
    /// The reason the next segment could not be prepared, with the remedy.
    pub cause: String,
}

/// A payload was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// This write or sync failed. Whether the payload survives is unknown; the log is poisoned now.
    #[error(
        "{what} failed: {source}; nothing more is acknowledged, restart the process: recovery decides what is there"
    )]
    Io {
        /// The call, with the file.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// An earlier write or sync failed. Nothing was written.
    #[error(
        "the log stopped at its first failure ({cause}); restart the process: recovery decides what is there"
    )]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The payload is over [`MAX_PAYLOAD`](crate::MAX_PAYLOAD). Nothing was written.
    #[error("a payload of {bytes} bytes is over the limit of {max}: split the batch")]
    TooLarge {
        /// The payload's length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// No room. Nothing was written; trying again later is safe.
    #[error(transparent)]
    Full(#[from] Full),
}

/// Replaying the frames failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E> {
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The caller's function refused a frame.
    #[error("frame {seq} cannot be applied: {source}")]
    Apply {
        /// The frame.
        seq: crate::Seq,
        /// The error of the caller's function.
        source: E,
    },
}

/// A snapshot was not made. The log itself goes on.
#[derive(Debug, thiserror::Error)]
pub enum CompactError<E> {
    /// The previous snapshot or a sealed segment could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The caller's fold failed.
    #[error("the snapshot's content cannot be built: {0}")]
    Fold(E),
    /// A call failed. Trying again later is safe.
    #[error("{what} failed: {source}; the log goes on and keeps its segments")]
    Io {
        /// The call, with the file.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// An earlier snapshot's directory sync failed, so no later one can be trusted; or the directory is gone.
    #[error("no more snapshots until a restart ({cause}); the log keeps its segments")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
}

impl<E> From<ReplayError<E>> for CompactError<E> {
    fn from(error: ReplayError<E>) -> CompactError<E> {
        match error {
            ReplayError::Read(error) => CompactError::Read(error),
            ReplayError::Apply { source, .. } => CompactError::Fold(source),
        }
    }
}

//! What can go wrong besides a rejection.

use std::io;
use std::time::Duration;

use palisade_core::fence::FloorTooLow;

/// A fault at a fenced folder.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A name that is no name. Nothing was written.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// A name that cannot be a file of a fenced folder. Nothing was written.
    #[error("{name:?} {problem}")]
    Name {
        /// What was asked for.
        name: String,
        /// Why not.
        problem: &'static str,
    },
    /// The file system failed. Whether a write took effect is unknown; under its sequence number it can be
    /// repeated.
    #[error("{doing}: {error}")]
    Io {
        /// What was tried, and at which file.
        doing: String,
        /// How it failed.
        #[source]
        error: io::Error,
    },
    /// Somebody else is within the fence, and stayed there. Nothing was written.
    #[error("{folder}: the fence was not free for {waited:?}; who is within may be paused")]
    Busy {
        /// The folder.
        folder: String,
        /// How long this one waited.
        waited: Duration,
    },
    /// There are files and no fence state (rule F7). Nothing was written. An operator re-arms the folder
    /// with a floor; so does who puts a fence around files that were there before.
    #[error(
        "{folder}: there are files without their fence state; an operator must re-arm the fence with a floor"
    )]
    Lost {
        /// The folder.
        folder: String,
    },
    /// A fence state that no fence wrote. Nothing was written; an operator re-arms the folder.
    #[error("{folder}: the fence state is damaged: {problem}")]
    Corrupt {
        /// The folder.
        folder: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file written last has another length now: code that knows of no fence has written it (rule
    /// F9), or it was restored without its fence. Nothing was written; an operator re-arms the folder.
    #[error(
        "{folder}: {file} has {found} bytes, and the fence left it with {left}: it was changed by something \
        that knows of no fence; an operator must look, and re-arm the fence"
    )]
    Changed {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
        /// Its length as it was left.
        left: u64,
        /// Its length now; a file that is gone has none.
        found: u64,
    },
    /// A re-arming that would lower the fence. Nothing took effect.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
}

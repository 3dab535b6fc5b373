//! The settings of the demo.

use std::path::PathBuf;
use std::time::Duration;

use super::timeline::ActName;

/// The demo's settings from the command line.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The acts to run; all three if empty.
    pub(crate) acts: Vec<ActName>,
    /// How long the leases last without renewal: [`MIN_TTL`] to [`MAX_TTL`].
    pub(crate) ttl: Duration,
    /// The directory for the pictures; created if it does not exist.
    pub(crate) out: PathBuf,
    /// Keep the data and the logs of all processes.
    pub(crate) keep: bool,
    /// Print one JSON object instead of the account.
    pub(crate) json: bool,
}

/// A shorter ttl would be too short for a busy machine.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(200);
/// A longer ttl would make a run too long to watch.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);

//! Every bound of the network side in one place.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use palisade_pipeline::replay::Told;

use palisade_tls::ClientFiles;

use super::budget::OPERATION_BYTES;
use crate::shell;

use super::secrets::ClusterSecret;
use super::shares::Shares;
use crate::memory;

pub use crate::shell::OutOfRange;

/// The bounds of the network side. The defaults suit a server that strangers can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The bounds of connections and requests.
    pub shell: shell::Settings,
    /// The largest message of a session, over gRPC or plain, in bytes.
    pub frame_bytes: usize,
    /// How many operations may be in flight in one session, including waits in a queue; beyond that, frames stay unread
    /// until answers have left.
    pub session_operations: usize,
    /// How many operations one frame of a session may have; counted before it is decoded.
    pub frame_operations: usize,
    /// How many bytes one session may hold, from a request's arrival until its reply has left; an operation counts as 1
    /// KiB, a listing as 1 KiB for each requested lock.
    pub session_bytes: usize,
    /// How many bytes all sessions and waiting calls may hold together, besides 32 KiB for each session. By default an
    /// eighth of the machine's memory, at least 64 MiB and at most 1 GiB.
    pub sessions_bytes: usize,
    /// How many plain sessions run on the pipeline's own thread, where an answer wakes no other thread. By default all on
    /// a machine with up to two cores, and two on a larger one: there the others read and write on other threads, while a
    /// batch is synced (docs/evidence/performance.md).
    pub sessions_near: u64,
    /// How many listings by HTTP and gRPC calls may be in the making or unread by their callers. Further ones are
    /// refused as unavailable.
    pub listings: usize,
    /// How many watches may be open; further ones are refused as unavailable.
    pub watches: usize,
    /// How many watches one address may have (for IPv6 one /64), or one user of a Unix socket; half of all if not set.
    pub watches_per_address: Option<u32>,
    /// How many other streams over gRPC may be open: sessions, and those of the health and reflection services. Further ones
    /// are refused as unavailable. One address, or one user of a Unix socket, may have half of them.
    pub streams: usize,
    /// How many listening requests may be open, and how many grants they and the sessions may listen for; further ones are
    /// refused as over quota. One address, or one user of a Unix socket, may have half of each.
    pub listens: usize,
    /// See [`listens`](Settings::listens).
    pub listened_grants: usize,
    /// The number of locks that requests from one address, or from one user of a Unix socket, may wait for, including the
    /// places reserved for callers whose connection broke. If not set, half of the number that `sessions_bytes` has room for:
    /// 32,768 on the smallest machine, so that each connection of a proxy that has its share of them may wait.
    pub waits_per_address: Option<u32>,
    /// The URL of this node of a cluster. It names the node in the requests that it forwards to the leader.
    pub node: Option<String>,
    /// The certificates for requests to the leader, if the nodes' URLs begin with `https://`.
    pub to_leader: ClientFiles,
    /// The access file; without one, everybody who reaches the port may do everything.
    pub access: Option<PathBuf>,
    /// The file to which security events are appended; without one they are not recorded.
    pub audit: Option<PathBuf>,
    /// The file with the keys for sequencers, made if it does not exist; without one, none are signed.
    pub sequencer_keys: Option<PathBuf>,
    /// The file with the key that encrypts each `lock_token`, made if it does not exist; without one, and without a cluster's
    /// secret, clients have the keys of the log.
    pub lease_keys: Option<PathBuf>,
    /// A node derives both keys from this secret, in place of random ones, so all nodes have the same keys.
    pub cluster_secret: Option<ClusterSecret>,
    /// The history of locks; without it none is kept.
    pub history: Option<HistorySettings>,
    /// The directory of the authority, for `/metrics`: how much room its disk has.
    pub data: Option<PathBuf>,
    /// Counters of the program around the server, for `/metrics`.
    pub counters: Vec<ShownCounter>,
}

/// Where the history of locks is kept, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistorySettings {
    /// Its file.
    pub file: PathBuf,
    /// Grants that ended longer ago are removed.
    pub age: Duration,
    /// The bytes of the rows of ended grants; the file is up to three times as large.
    pub bytes: u64,
    /// While the file's disk has fewer bytes free, nothing is written to it. By default 256 MiB, or a tenth of a smaller disk.
    pub leaves_free: Option<u64>,
    /// The events that the log still has, for a history that missed some.
    pub past: Option<PastEvents>,
}

/// Reads the events after a revision from the log.
#[derive(Clone)]
pub struct PastEvents(pub Arc<ReadPast>);

/// Calls the function for each part of the answer. An error is in words.
pub type ReadPast = dyn Fn(u64, &mut dyn FnMut(Told<'_>)) -> Result<(), String> + Send + Sync;

impl std::fmt::Debug for PastEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Past")
    }
}

impl PartialEq for PastEvents {
    fn eq(&self, other: &PastEvents) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PastEvents {}

/// A counter that the server shows and does not count.
#[derive(Clone, Copy, Debug)]
pub struct ShownCounter {
    /// Between `palisade_` and `_total`.
    pub name: &'static str,
    /// The help text: the meaning of the count.
    pub help: &'static str,
    /// Where it is counted.
    pub value: &'static AtomicU64,
}

impl PartialEq for ShownCounter {
    fn eq(&self, other: &ShownCounter) -> bool {
        (self.name, self.help) == (other.name, other.help) && std::ptr::eq(self.value, other.value)
    }
}

impl Eq for ShownCounter {}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shell: shell::Settings::default(),
            frame_bytes: 1024 * 1024,
            session_operations: 65_536,
            frame_operations: 4_096,
            session_bytes: 16 * MIB,
            sessions_bytes: usize::try_from(memory::of_this_machine() / 8)
                .unwrap_or(usize::MAX)
                .clamp(64 * MIB, 1_024 * MIB),
            sessions_near: sessions_near(std::thread::available_parallelism().ok()),
            listings: 64,
            watches: 10_000,
            watches_per_address: None,
            streams: 10_000,
            listens: 32_768,
            listened_grants: 262_144,
            waits_per_address: None,
            node: None,
            to_leader: ClientFiles::default(),
            access: None,
            audit: None,
            sequencer_keys: None,
            lease_keys: None,
            cluster_secret: None,
            history: None,
            data: None,
            counters: Vec::new(),
        }
    }
}

const MIB: usize = 1024 * 1024;

fn sessions_near(cores: Option<NonZero<usize>>) -> u64 {
    match cores.map_or(1, NonZero::get) {
        ..=2 => u64::MAX,
        _ => 2,
    }
}

impl Settings {
    /// Open watches, in total and of one address.
    pub(super) fn watch_shares(&self) -> Arc<Shares> {
        let most = self.watches as u64;
        let of_one = self.watches_per_address.map(u64::from);
        Shares::new(most, of_one.unwrap_or(most.div_ceil(2)))
    }

    /// Streams that nothing else bounds.
    pub(super) fn stream_shares(&self) -> Arc<Shares> {
        let most = self.streams as u64;
        Shares::new(most, most.div_ceil(2))
    }

    /// Listening requests, and the grants that are listened for.
    pub(super) fn listen_shares(&self) -> [Arc<Shares>; 2] {
        [self.listens, self.listened_grants].map(|most| {
            let most = most as u64;
            Shares::new(most, most.div_ceil(2))
        })
    }

    /// Waits of one address; all together are bounded by memory.
    pub(super) fn wait_shares(&self) -> Arc<Shares> {
        let half = (self.sessions_bytes / OPERATION_BYTES / 2).max(1) as u64;
        let of_one = self.waits_per_address.map(u64::from);
        Shares::new(u64::MAX, of_one.unwrap_or(half))
    }

    /// Checks that a server can run with these settings; nothing is clamped. The shell checks its own settings.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first setting out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let most = u32::MAX as usize;
        for (name, fits, range) in [
            (
                "frame_bytes",
                (1_024..=most).contains(&self.frame_bytes),
                "1024 ..= 4294967295",
            ),
            (
                "session_operations",
                self.session_operations > 0,
                "1 and above",
            ),
            (
                "frame_operations",
                (1..=1 << 20).contains(&self.frame_operations),
                "1 ..= 1048576",
            ),
            (
                "session_bytes",
                self.session_bytes >= self.frame_bytes.saturating_mul(2).max(2 * MIB),
                "2 MiB and two frames (frame_bytes) and above",
            ),
            (
                "sessions_bytes",
                self.sessions_bytes
                    >= self
                        .session_bytes
                        .saturating_add(self.frame_operations * OPERATION_BYTES),
                "one session (session_bytes), 1 KiB for each of frame_operations, and above",
            ),
            ("listings", self.listings > 0, "1 and above"),
            ("watches", self.watches > 0, "1 and above"),
            (
                "watches_per_address",
                self.watches_per_address != Some(0),
                "1 and above",
            ),
            ("streams", self.streams > 0, "1 and above"),
            ("listens", self.listens > 0, "1 and above"),
            (
                "listened_grants",
                self.listened_grants >= 100,
                "100 and above",
            ),
            (
                "waits_per_address",
                self.waits_per_address != Some(0),
                "1 and above",
            ),
        ] {
            if !fits {
                return Err(OutOfRange { name, range });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_run_beside_the_pipeline_where_no_core_is_left_for_another_thread() {
        let near = [1, 2, 3, 64].map(|cores| sessions_near(NonZero::new(cores)));
        assert_eq!(near, [u64::MAX, u64::MAX, 2, 2]);
    }

    #[test]
    fn the_defaults_are_in_range_and_nonsense_is_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        let says = |settings: Settings| settings.check().unwrap_err().to_string();
        let poor = Settings {
            session_bytes: 1,
            ..Settings::default()
        };
        assert_eq!(
            says(poor),
            "session_bytes is outside 2 MiB and two frames (frame_bytes) and above"
        );
        let tight = Settings {
            sessions_bytes: Settings::default().session_bytes,
            ..Settings::default()
        };
        assert!(says(tight).starts_with("sessions_bytes is outside one session"));
    }
}

//! The thread that makes snapshots beside a running log.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use palisade_wal::{Compactor, PreparationWatch};

/// Bytes of sealed log that are worth a snapshot while the authority is busy, and while it is idle; how often the
/// thread checks. A start reads 16 MiB in about a tenth of a second.
const SNAPSHOT_AFTER: u64 = 64 << 20;
const SNAPSHOT_WHEN_IDLE: u64 = 16 << 20;
const SNAPSHOT_POLL: Duration = Duration::from_millis(500);

/// The thread that makes snapshots. It ends when this is dropped.
pub struct Snapshots {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Snapshots {
    /// Starts the thread. `make` makes a snapshot and gives its length, if there was something to be made.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn start(
        compactor: Compactor,
        worked: Arc<AtomicBool>,
        give_memory_back: Option<fn()>,
        make: impl FnMut() -> Result<Option<u64>, String> + Send + 'static,
    ) -> io::Result<Snapshots> {
        let maker = Maker {
            preparation: compactor.watch_preparation(),
            compactor,
            give_memory_back: give_memory_back.unwrap_or(|| ()),
            worked,
            make: Box::new(make),
        };
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("palisade-snap".into())
            .spawn(move || maker.work(&stopped))?;
        Ok(Snapshots {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of that thread.
struct Maker {
    compactor: Compactor,
    preparation: PreparationWatch,
    give_memory_back: fn(),
    /// Whether something was logged since the last check.
    worked: Arc<AtomicBool>,
    make: Box<dyn FnMut() -> Result<Option<u64>, String> + Send>,
}

impl Maker {
    fn work(mut self, stopped: &mpsc::Receiver<()>) {
        (self.give_memory_back)();
        let mut worth = Worth::default();
        while stopped.recv_timeout(SNAPSHOT_POLL) == Err(mpsc::RecvTimeoutError::Timeout) {
            self.note_preparation();
            if !self.is_due(&worth) {
                continue;
            }
            let sealed = self.compactor.sealed_bytes();
            worth = match (self.make)() {
                Ok(made) => Worth::after(made.unwrap_or(0)),
                Err(error) => {
                    tracing::warn!(%error, "no snapshot could be made; the log grows until one can");
                    Worth::after_failure(sealed)
                }
            };
            (self.give_memory_back)();
        }
    }

    fn note_preparation(&mut self) {
        match self.preparation.change() {
            Some(Err(why)) => tracing::warn!(
                why,
                "the next segment of the log cannot be prepared; it is tried again each second, and requests are \
                 refused once the present one is full"
            ),
            Some(Ok(())) => tracing::warn!("the next segment of the log can be prepared again"),
            None => {}
        }
    }

    /// Idle means that nothing was logged since the last check.
    fn is_due(&self, worth: &Worth) -> bool {
        let idle = !self.worked.swap(false, Ordering::Relaxed);
        worth.is_reached(self.compactor.sealed_bytes(), idle)
    }
}

/// How much sealed log is worth a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
    busy: u64,
    idle: u64,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth::after(0)
    }
}

impl Worth {
    /// While the authority is busy, a snapshot of a large state must not follow the last one too soon. While it is
    /// idle, a snapshot costs only disk traffic and shortens the next start.
    fn after(bytes: u64) -> Worth {
        Worth {
            busy: SNAPSHOT_AFTER.max(bytes * 2),
            idle: SNAPSHOT_WHEN_IDLE.max(bytes / 8),
        }
    }

    /// The next attempt waits for more log.
    fn after_failure(sealed: u64) -> Worth {
        let more = sealed + SNAPSHOT_AFTER;
        Worth {
            busy: more,
            idle: more,
        }
    }

    fn is_reached(&self, sealed: u64, idle: bool) -> bool {
        sealed >= if idle { self.idle } else { self.busy }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use palisade_wal::{CreateOptions, Options, Wal};

    use super::super::OnDisk;
    use super::*;
    use crate::Log as _;

    const MIB: u64 = 1 << 20;

    #[test]
    fn how_much_log_is_worth_a_snapshot_depends_on_the_work_and_on_the_last_one() {
        let (first, after_large) = (Worth::default(), Worth::after(160 * MIB));
        let failed = Worth::after_failure(70 * MIB);
        for (worth, idle, least) in [
            (first, false, 64),
            (first, true, 16),
            (after_large, false, 320),
            (after_large, true, 20),
            (failed, false, 134),
            (failed, true, 134),
        ] {
            assert!(worth.is_reached(least * MIB, idle), "{worth:?}");
            assert!(!worth.is_reached(least * MIB - 1, idle), "{worth:?}");
        }
    }

    #[test]
    fn a_log_is_idle_one_check_after_its_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let create = CreateOptions::default();
        let opened = Wal::create(&dir.path().join("data"), &create, &Options::small(4 << 10));
        let (wal, worked) = (opened.unwrap().into_wal(), Arc::new(AtomicBool::new(false)));
        let maker = Maker {
            compactor: wal.compactor(),
            preparation: wal.compactor().watch_preparation(),
            give_memory_back: || (),
            worked: Arc::clone(&worked),
            make: Box::new(|| Ok(None)),
        };
        let mut log = OnDisk {
            wal,
            worked,
            no_room: String::new(),
            signs: None,
        };
        let only_idle = Worth {
            busy: u64::MAX,
            idle: 0,
        };
        assert!(maker.is_due(&only_idle));
        for _ in 0..2 {
            assert!(log.has_room(1));
            log.commit(b"x").unwrap();
            assert!(!maker.is_due(&only_idle), "busy");
            assert!(log.has_room(1));
            log.idle();
            assert!(maker.is_due(&only_idle), "idle");
        }
    }
}

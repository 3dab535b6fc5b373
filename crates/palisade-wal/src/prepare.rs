//! The next segment, filled with zeros ahead of need.
//!
//! A segment is preallocated by writing zeros, so that an fdatasync later has no metadata to flush (0.12 ms
//! against 0.20 ms on a growing file). Filling one inline would stall commits for 50–180 ms, so a thread
//! does it. A full disk is discovered here, away from the commit path, and tried again at a bounded rate.
//!
//! This thread also checks twice a second that the directory is still where it was opened.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::compact::Shared;
use crate::error::Full;
use crate::hold;
use crate::options::{Options, Preparation};
use crate::recover::zero;
use crate::storage::{File, OpenMode, Storage};

/// The name of the segment that is not live yet; removed at open.
pub(crate) const NEXT: &str = "next.seg";

/// Synced after this many bytes, so that a commit's fdatasync never waits behind a whole segment of zeros.
const SYNC_EVERY: u64 = 1 << 20;

/// How often the thread checks that the directory is still there.
const LOOK: Duration = Duration::from_millis(500);

/// A file of `len` zeros, synced.
pub(crate) struct Prepared {
    pub(crate) file: Box<dyn File>,
    pub(crate) len: u64,
}

pub(crate) struct Preparer {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the writer and the thread share.
struct Inner {
    shared: Arc<Shared>,
    segment_bytes: u64,
    retry: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// Checked between two chunks of zeros, so that closing does not wait for a whole segment.
    stop: AtomicBool,
}

struct State {
    /// The name is free: a segment may be prepared under it.
    wanted: bool,
    ready: Option<Prepared>,
}

impl Preparer {
    pub(crate) fn start(shared: Arc<Shared>, options: &Options) -> io::Result<Preparer> {
        let inner = Arc::new(Inner {
            shared,
            segment_bytes: options.segment_bytes,
            retry: options.prepare_retry,
            state: Mutex::new(State {
                wanted: true,
                ready: None,
            }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let thread = match options.preparation {
            Preparation::Inline => None,
            Preparation::Background => {
                let inner = inner.clone();
                Some(
                    thread::Builder::new()
                        .name("wal-prepare".to_owned())
                        .spawn(move || inner.run())?,
                )
            }
        };
        Ok(Preparer { inner, thread })
    }

    /// Whether a segment of at least `len` bytes is ready now.
    pub(crate) fn is_ready(&self, len: u64) -> bool {
        hold(&self.inner.state)
            .ready
            .as_ref()
            .is_some_and(|prepared| prepared.len >= len)
    }

    /// Makes sure that a segment of at least `len` bytes is ready.
    ///
    /// Waits for an attempt under way, unless the one before it failed: then the answer is known.
    pub(crate) fn ensure(&self, len: u64) -> Result<(), String> {
        let mut prepared = self.obtain()?;
        if prepared.len < len {
            // The payload is larger than a whole segment. That is rare, so the caller's thread fills the rest.
            if let Err(error) =
                zero(&*prepared.file, prepared.len, len).and_then(|()| prepared.file.sync_data())
            {
                self.resume();
                return Err(explained(&error));
            }
            prepared.len = len;
        }
        hold(&self.inner.state).ready = Some(prepared);
        Ok(())
    }

    /// Takes the ready segment away. [`resume`](Preparer::resume) must follow when its name is free again.
    pub(crate) fn take(&self, bytes: usize, len: u64) -> Result<Prepared, Full> {
        let taken = self.ensure(len).and_then(|()| self.obtain());
        taken.map_err(|cause| Full { bytes, cause })
    }

    /// Starts on the next segment.
    pub(crate) fn resume(&self) {
        hold(&self.inner.state).wanted = true;
        self.inner.changed.notify_all();
    }

    fn obtain(&self) -> Result<Prepared, String> {
        let mut state = hold(&self.inner.state);
        loop {
            if let Some(prepared) = state.ready.take() {
                return Ok(prepared);
            }
            if self.thread.is_none() {
                state.wanted = false;
                let filled = self.inner.fill().map_err(|e| explained(&e));
                self.inner.note(filled.as_ref().err());
                return filled;
            }
            if let Some(cause) = &*hold(&self.inner.shared.preparation_failure) {
                return Err(cause.clone());
            }
            state = self
                .inner
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        // Taking the lock orders the flag before the thread's next look, so that the wake-up is not lost.
        drop(hold(&self.inner.state));
        self.inner.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn note(&self, failure: Option<&String>) {
        *hold(&self.shared.preparation_failure) = failure.cloned();
    }

    fn run(&self) {
        while let Some(wanted) = self.next_task() {
            self.shared.check_directory();
            if !wanted {
                continue;
            }
            let filled = self.fill();
            let mut state = hold(&self.state);
            match filled {
                Ok(prepared) => {
                    state.ready = Some(prepared);
                    self.note(None);
                    self.changed.notify_all();
                }
                Err(error) => {
                    state.wanted = true;
                    self.note(Some(&explained(&error)));
                    self.changed.notify_all();
                    let pause = self
                        .changed
                        .wait_timeout_while(state, self.retry, |_| !self.stopping());
                    drop(pause.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Waits until a segment is wanted, or until the next check of the directory is due; returns whether a segment is
    /// wanted. `None` when the log is being closed.
    fn next_task(&self) -> Option<bool> {
        let state = hold(&self.state);
        let idle = |state: &mut State| !state.wanted && !self.stopping();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, LOOK, idle)
            .unwrap_or_else(PoisonError::into_inner);
        let wanted = std::mem::take(&mut state.wanted);
        (!self.stopping()).then_some(wanted)
    }

    fn fill(&self) -> io::Result<Prepared> {
        let file = fill(&*self.shared.storage, self.segment_bytes, &self.stop)?;
        Ok(Prepared {
            file,
            len: self.segment_bytes,
        })
    }
}

/// The error, and how to remove its cause.
fn explained(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space on its disk",
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        _ if is_out_of_descriptors(error) => "raise the limit on open files (ulimit -n)",
        _ => "check its disk",
    };
    format!("{error}; {advice}")
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = rustix::io::Errno::from_io_error(error);
    matches!(
        code,
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    )
}

/// Fills [`NEXT`] with `len` zeros. A failed attempt leaves no file: the next one begins with a new
/// file, so a failed sync is never retried on the same pages.
pub(crate) fn fill(
    storage: &dyn Storage,
    len: u64,
    stop: &AtomicBool,
) -> io::Result<Box<dyn File>> {
    let filled = try_fill(storage, len, stop);
    if filled.is_err() {
        // It may not be there, and it is removed at the next open in any case.
        let _ = storage.remove(NEXT);
    }
    filled
}

fn try_fill(storage: &dyn Storage, len: u64, stop: &AtomicBool) -> io::Result<Box<dyn File>> {
    let file = storage.open(NEXT, OpenMode::Create)?;
    let mut at = 0;
    while at < len {
        if stop.load(Ordering::Acquire) {
            return Err(io::Error::other("the log is being closed"));
        }
        let to = len.min(at + SYNC_EVERY);
        zero(&*file, at, to)?;
        file.sync_data()?;
        at = to;
    }
    Ok(file)
}

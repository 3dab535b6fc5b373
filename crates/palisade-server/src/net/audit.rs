//! The audit file: security events, one JSON object a line, appended.
//!
//! ```text
//!   gate ── note ─────► bounded queue ──► one thread ──► file
//!        ── be_sure ──►                        └─► written and synced, or why not ─► a break goes on, or is refused
//! ```
//!
//! A note never waits. It is lost if the queue is full or the file cannot be written; lost lines are counted, and the
//! next line that is written follows one that says how many were lost. A line that something depends on is answered.
//!
//! Refusals of one caller get a limited number of lines a second, so that it cannot fill the disk. The next line reports
//! how many were left out.
//!
//! Grants come from the authority's events, not from requests: see [`grants`].
//!
//! No line contains a lease key, a request id or a token.

mod grants;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use palisade_proto::Code;
use rustix::fs::Access;
use rustix::io::Errno;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use self::grants::AuditedGrant;
pub(super) use self::grants::{line_of, name};
use super::convert::Refusal;
use super::quota::Rate;
use palisade_pipeline::clock::boottime;

/// An event in the audit file.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum AuditEvent<'a> {
    /// The caller is unknown, or no rule grants the request. Nothing changed.
    Denied {
        principal: Option<&'a str>,
        code: &'static str,
        message: &'a str,
        /// How many earlier refusals of this caller have no line; 0 is not written.
        #[serde(skip_serializing_if = "is_zero")]
        left_out: u64,
    },
    /// A caller had the key of another principal's lease. Nothing changed.
    WrongPrincipal {
        principal: &'a str,
        lock: &'a str,
        #[serde(skip_serializing_if = "is_zero")]
        left_out: u64,
    },
    /// A lock is about to be taken from its holder, if it is held with this token.
    Break {
        principal: &'a str,
        lock: &'a str,
        fencing_token: u64,
        reason: &'a str,
    },
    /// A lock that is closed after its last grant is about to be opened, if it is closed.
    Open {
        principal: &'a str,
        lock: &'a str,
        reason: &'a str,
    },
    /// A semaphore's number of permits is about to be changed, if it is in use.
    Permits {
        principal: &'a str,
        lock: &'a str,
        permits: u32,
    },
    /// The cluster, or a manual clock, is about to be changed.
    Admin { principal: &'a str, change: String },
    /// The access file was read again.
    Rules {
        file: String,
        taken: bool,
        message: Option<String>,
    },
    /// This is the first start after a restore.
    Restored {
        authority: &'a str,
        incarnation: &'a str,
        /// The one before, if this directory had it.
        previous: Option<&'a str>,
    },
    /// A lock was granted.
    Granted(AuditedGrant<'a>),
    /// A grant ended.
    Ended {
        #[serde(flatten)]
        grant: AuditedGrant<'a>,
        how: &'static str,
        /// The operator's reason for a break.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        /// Of the grant that superseded this one.
        #[serde(skip_serializing_if = "Option::is_none")]
        new_fencing_token: Option<u64>,
    },
    /// Key sets of issuers have changed.
    Keys {
        file: String,
        taken: bool,
        message: Option<String>,
    },
    /// So many lines before this one were not written.
    Lost { lines: u64 },
}

#[derive(Serialize)]
struct AuditLine<'a> {
    /// The machine's wall clock.
    at: String,
    #[serde(flatten)]
    event: &'a AuditEvent<'a>,
}

/// For a field that is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The way to the audit file, if there is one.
#[derive(Clone)]
pub(super) struct Audit {
    queue: Option<Queue>,
    refusals: Arc<RefusalCounts>,
}

/// The number of lines for the refusals of one caller.
#[derive(Default)]
struct RefusalCounts {
    /// By principal; all unknown callers are one, so there are no more entries than principals.
    callers: Mutex<HashMap<Option<Box<str>>, RefusalCount>>,
    left_out: AtomicU64,
}

#[derive(Default)]
struct RefusalCount {
    rate: Rate,
    /// Since its last line.
    left_out: u64,
}

#[derive(Clone)]
struct Queue {
    jobs: SyncSender<Job>,
    /// Lines that were not written since the start.
    lost: Arc<AtomicU64>,
}

enum Job {
    /// So many lines; the sender, if there is one, is notified when they have been handled.
    Note(Vec<u8>, u64, Option<oneshot::Sender<()>>),
    BeSure(Vec<u8>, oneshot::Sender<io::Result<()>>),
    Reopen,
}

impl Audit {
    /// Opens the file, or makes it, readable by its owner only.
    ///
    /// # Errors
    /// If it cannot be opened for appending.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Audit> {
        let Some(path) = path else {
            return Ok(Audit {
                queue: None,
                refusals: Arc::default(),
            });
        };
        let lost = Arc::new(AtomicU64::new(0));
        let (jobs, queued) = sync_channel(QUEUE);
        let (file, torn) = append_to(path)?;
        let mut writer = Writer {
            file,
            path: path.to_owned(),
            torn,
            lost: Arc::clone(&lost),
            reported: 0,
        };
        let thread = std::thread::Builder::new().name("audit".to_owned());
        thread.spawn(move || writer.write_all_of(&queued))?;
        Ok(Audit {
            queue: Some(Queue { jobs, lost }),
            refusals: Arc::default(),
        })
    }

    /// Whether there is a file.
    pub(super) fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Lines that were not written since the start.
    pub(super) fn lost(&self) -> u64 {
        self.queue
            .as_ref()
            .map_or(0, |queue| queue.lost.load(Relaxed))
    }

    /// Refusals without a line since the start, because their caller had too many.
    pub(super) fn left_out(&self) -> u64 {
        self.refusals.left_out.load(Relaxed)
    }

    /// Whether a refusal of this caller gets a line, and how many before it did not.
    pub(super) fn refusal(&self, principal: Option<&str>) -> Option<u64> {
        let callers = self.refusals.callers.lock();
        let mut callers = callers.unwrap_or_else(PoisonError::into_inner);
        let caller = callers.entry(principal.map(Box::from)).or_default();
        let now = boottime();
        if caller.rate.check(REFUSALS_PER_SECOND, now).is_err() {
            caller.left_out += 1;
            self.refusals.left_out.fetch_add(1, Relaxed);
            return None;
        }
        caller.rate.take(REFUSALS_PER_SECOND, now);
        Some(std::mem::take(&mut caller.left_out))
    }

    /// Records something that happened. Never waits.
    pub(super) fn note(&self, event: &AuditEvent<'_>) {
        if let Some(queue) = &self.queue
            && queue
                .jobs
                .try_send(Job::Note(line(event), 1, None))
                .is_err()
        {
            queue.lost.fetch_add(1, Relaxed);
        }
    }

    /// Records lines, and waits until they are written, or counted as lost.
    pub(super) async fn note_lines(&self, lines: Vec<u8>, count: u64) {
        if let Some(queue) = &self.queue {
            let (done, had_its_turn) = oneshot::channel();
            match queue.jobs.try_send(Job::Note(lines, count, Some(done))) {
                // An error means that the thread has ended.
                Ok(()) => drop(had_its_turn.await),
                Err(_) => self.lose(count),
            }
        }
    }

    pub(super) fn lose(&self, lines: u64) {
        if let Some(queue) = &self.queue {
            queue.lost.fetch_add(lines, Relaxed);
        }
    }

    /// Records something before it is done. It may be done when [`Recording`] says that the line is on disk.
    pub(super) fn be_sure(&self, event: &AuditEvent<'_>) -> Recording {
        let Some(queue) = &self.queue else {
            return Recording::NotAsked;
        };
        let (answer, answered) = oneshot::channel();
        match queue.jobs.try_send(Job::BeSure(line(event), answer)) {
            Ok(()) => Recording::Waits(answered),
            Err(_) => Recording::Refused,
        }
    }

    /// Opens the file again at each SIGHUP, for programs that move it away. Does not end.
    pub(super) async fn keep_reopening(&self) {
        if let Some(queue) = &self.queue {
            match signal(SignalKind::hangup()) {
                Ok(mut hangup) => {
                    while hangup.recv().await.is_some() {
                        // A full queue means that the file cannot be written: the thread tries to open it again then.
                        let _ = queue.jobs.try_send(Job::Reopen);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the audit file is not reopened: SIGHUP cannot be received");
                }
            }
        }
        std::future::pending().await
    }
}

/// A line on its way to the disk.
pub(super) enum Recording {
    /// There is no audit file.
    NotAsked,
    Waits(oneshot::Receiver<io::Result<()>>),
    /// Too many lines wait already.
    Refused,
}

impl Future for Recording {
    type Output = Result<(), Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let why = match &mut *self {
            Recording::NotAsked => return Poll::Ready(Ok(())),
            Recording::Refused => "too many lines wait to be written".to_owned(),
            Recording::Waits(answered) => match std::task::ready!(Pin::new(answered).poll(cx)) {
                Ok(Ok(())) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "its thread has ended".to_owned(),
            },
        };
        Poll::Ready(Err(Refusal::new(
            Code::Unavailable,
            format!(
                "the audit file of this server cannot be written ({why}), so nothing was done; make room, then try again"
            ),
        )))
    }
}

/// The thread's side.
struct Writer {
    path: PathBuf,
    file: File,
    /// Whether the file may end within a line.
    torn: bool,
    lost: Arc<AtomicU64>,
    /// How many of the lost lines a line has reported.
    reported: u64,
}

impl Writer {
    fn write_all_of(&mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Note(lines, count, done) => {
                    // Counted as lost.
                    let _ = self.write(&lines, count);
                    drop(done);
                }
                Job::BeSure(line, answer) => {
                    let written = self.write(&line, 1).and_then(|()| self.file.sync_data());
                    // The caller may be gone.
                    let _ = answer.send(written);
                }
                Job::Reopen => match append_to(&self.path) {
                    Ok(opened) => (self.file, self.torn) = opened,
                    Err(error) => tracing::error!(
                        file = %self.path.display(), %error,
                        "the audit file cannot be opened again; lines go to the one that was open"
                    ),
                },
            }
        }
    }

    fn write(&mut self, new: &[u8], count: u64) -> io::Result<()> {
        let lost = self.lost.load(Relaxed);
        let mut bytes = Vec::new();
        if self.torn {
            bytes.push(b'\n');
        }
        if let Some(lines @ 1..) = lost.checked_sub(self.reported) {
            bytes.extend(self::line(&AuditEvent::Lost { lines }));
        }
        bytes.extend_from_slice(new);
        let written = self.file.write_all(&bytes);
        match &written {
            Ok(()) => (self.torn, self.reported) = (false, lost),
            Err(error) => {
                if !self.torn {
                    tracing::error!(file = %self.path.display(), %error, "the audit file cannot be written");
                }
                self.torn = true;
                self.lost.fetch_add(count, Relaxed);
            }
        }
        written
    }
}

/// Opens the file, and says whether it ends within a line, which a crash may have cut.
/// Whether lines could be appended to this file. It is not made. Its folder must be there, unless it is `data`, which the
/// server makes.
pub(super) fn check(path: &Path, data: Option<&Path>) -> io::Result<()> {
    let opened = OpenOptions::new().read(true).append(true).open(path);
    if opened.as_ref().err().map(io::Error::kind) != Some(io::ErrorKind::NotFound) {
        return opened.map(drop);
    }
    let folder = std::path::absolute(path)?;
    let Some(folder) = folder.parent() else {
        return opened.map(drop);
    };
    let data = data.and_then(|data| std::path::absolute(data).ok());
    match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Err(Errno::NOENT) if data.as_deref() == Some(folder) => Ok(()),
        writable => Ok(writable?),
    }
}

fn append_to(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let file = options.open(path)?;
    let mut last = [b'\n'];
    if let Some(at) = file.metadata()?.len().checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    Ok((file, last != [b'\n']))
}

fn line(event: &AuditEvent<'_>) -> Vec<u8> {
    let at = format!("{:.3}", jiff::Timestamp::now());
    // Texts and numbers are always JSON.
    let mut bytes = serde_json::to_vec(&AuditLine { at, event }).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The number of lines, and of warnings, for the refusals of one caller.
const REFUSALS_PER_SECOND: u64 = 10;

/// How many lines may wait. A line has about 1 KiB at most.
const QUEUE: usize = 4_096;

//! A worker process: acquires the lock, reads the list, adds an item, writes the list.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► [breakpoint] ─► lease.check()? ─► [breakpoint] ─► write ─► release
//! ```
//!
//! It is as careful as a client can be: the guard renews in the background, and the lease is checked right before the
//! write is sent. At a breakpoint the worker waits for a line from the demo, so that the pause hits the same place in
//! every run. Without the demo, a pause can hit that place just as well.

mod assignment;
mod notes;
mod storage;

use std::io;
use std::time::Duration;

use palisade_client::{Client, Lease, Released};
use tokio::runtime::{Builder, Runtime};

use super::clock::ActClock;
use super::recorder::Note;
use super::timeline::{LockAnswer, LockMessage, LockMessageKind, Message, Period, TimelineEvent};
use notes::{GaveUp, print, record, send, words};
use storage::{StoreClient, StoreVerdict};

pub(super) use assignment::{Assignment, Breakpoint, FILE, LOCK, RESOURCE};

/// Does the work and prints the events to standard output.
///
/// # Errors
/// Standard output is closed.
pub(super) fn run(assignment: &Assignment) -> io::Result<()> {
    match Worker::new(assignment).and_then(|worker| worker.run()) {
        Ok(()) => print(&Note::Done),
        Err(message) => print(&Note::Failed { message }),
    }
}

struct Worker<'a> {
    assignment: &'a Assignment,
    clock: ActClock,
    /// Runs the guard's renewals while this thread works.
    runtime: Runtime,
}

impl<'a> Worker<'a> {
    fn new(assignment: &'a Assignment) -> Result<Worker<'a>, GaveUp> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Ok(Worker {
            assignment,
            clock: ActClock::from_nanos(assignment.origin_nanos),
            runtime: runtime.map_err(words)?,
        })
    }

    fn run(&self) -> Result<(), GaveUp> {
        let (lease, from_ms) = self.acquire()?;
        let (lost, clock) = (lease.lost(), self.clock);
        let learned = self.runtime.spawn(async move {
            lost.await;
            clock.now_ms()
        });
        let worked = self.work(&lease);
        let token = lease.token().get();
        let to_ms = if lease.check().is_ok() {
            let to_ms = self.clock.now_ms();
            self.release(lease)?;
            to_ms
        } else {
            self.runtime.block_on(learned).map_err(words)?
        };
        let client = self.assignment.client.clone();
        record(TimelineEvent::Believed(Period {
            from_ms,
            to_ms: Some(to_ms),
            client,
            token: Some(token),
        }))?;
        worked
    }

    /// Acquires the lock; returns the lease and when this process learned of it.
    fn acquire(&self) -> Result<(Lease, f64), GaveUp> {
        let assignment = self.assignment;
        let mut message = self.message("acquire");
        let asking = async {
            let client = Client::connect(&assignment.authority).await?;
            let wish = client.lock(LOCK).client_id(assignment.client.as_str());
            let wish = wish
                .ttl(Duration::from_millis(assignment.ttl_ms))
                .wait(Duration::from_millis(assignment.wait_ms));
            let sent_ms = self.clock.now_ms();
            wish.acquire().await.map(|lease| (lease, sent_ms))
        };
        let (lease, sent_ms) = self
            .runtime
            .block_on(asking)
            .map_err(|error: palisade_client::Error| words(error))?;
        let answered_ms = self.clock.now_ms();
        (message.sent_ms, message.answered_ms) = (Some(sent_ms), Some(answered_ms));
        let answer = Some(LockAnswer::Granted(lease.token().get()));
        record(TimelineEvent::Request(LockMessage {
            message,
            request: LockMessageKind::Acquire,
            answer,
        }))?;
        Ok((lease, answered_ms))
    }

    /// The work under the lock: read, think, check, write.
    fn work(&self, lease: &Lease) -> Result<(), GaveUp> {
        let assignment = self.assignment;
        let storage = StoreClient {
            assignment,
            clock: self.clock,
            token: lease.token(),
            authority: lease.authority(),
        };
        if assignment.claims {
            storage.claim()?;
        }
        let mut items = storage.read()?;
        self.pause_at(Breakpoint::Read)?;
        items.push(assignment.client.clone());
        lease.check().map_err(words)?;
        let (at_ms, remaining) = (self.clock.now_ms(), lease.remaining());
        send(&Note::Checked {
            at_ms,
            remaining_ms: remaining.as_secs_f64() * 1_000.0,
        })?;
        self.pause_at(Breakpoint::Checked)?;
        let item = assignment.client.clone();
        send(&match storage.write(&items)? {
            StoreVerdict::Acknowledged => Note::Acknowledged { item },
            StoreVerdict::Rejected => Note::Rejected { item },
        })
    }

    fn release(&self, lease: Lease) -> Result<(), GaveUp> {
        let mut message = self.message("release");
        message.sent_ms = Some(self.clock.now_ms());
        let released = self.runtime.block_on(lease.release()).map_err(words)?;
        message.answered_ms = Some(self.clock.now_ms());
        let answer = Some(match released {
            Released::Released | Released::Delayed { .. } => LockAnswer::Done,
            other => LockAnswer::Refused(format!("{other:?}")),
        });
        record(TimelineEvent::Request(LockMessage {
            message,
            request: LockMessageKind::Release,
            answer,
        }))
    }

    /// Waits for a line from the demo, if this is the worker's breakpoint.
    fn pause_at(&self, place: Breakpoint) -> Result<(), GaveUp> {
        if self.assignment.breakpoint != place {
            return Ok(());
        }
        send(&Note::Breakpoint)?;
        match io::stdin().read_line(&mut String::new()) {
            Ok(0) => Err("the demo closed its standard input".to_owned()),
            other => other.map(drop).map_err(words),
        }
    }

    fn message(&self, what: &str) -> Message {
        let client = self.assignment.client.clone();
        Message {
            id: format!("{client}-{what}"),
            client,
            ..Message::default()
        }
    }
}

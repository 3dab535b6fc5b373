//! A worker process: acquires the lock, reads the list, adds an item, writes the list.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► [breakpoint] ─► lease.check()? ─► [breakpoint] ─► write ─► release
//! ```
//!
//! It is as careful as a client can be: the guard renews in the background, and the lease is checked right before the
//! write is sent. At a breakpoint the worker waits for a line from the demo, so that the pause hits the same place in
//! every run. Without the demo, a pause can hit that place just as well.

mod storage;

use std::io::{self, Write as _};
use std::time::Duration;

use palisade_client::{Client, Lease, Released};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::clock::ActClock;
use super::recorder::Note;
use super::timeline::{Answer, Event, Message, Period, Request, RequestKind};
use storage::{Storage, Written};

/// A worker's task; its process gets it as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    /// Its name, which is also its client id and the item that it adds.
    pub(super) client: String,
    /// The lock server's URL.
    pub(super) authority: String,
    /// The address and port for its requests to the store.
    pub(super) store: String,
    /// How long its lease lasts without renewal.
    pub(super) ttl_ms: u64,
    /// How long it waits for the lock.
    pub(super) wait_ms: u64,
    /// When the act began.
    pub(super) origin_nanos: u64,
    /// Whether its first operation at the store is a claim and its read carries the token.
    pub(super) claims: bool,
    /// Where it waits for a line from the demo.
    pub(super) breakpoint: Breakpoint,
}

/// Where a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Breakpoint {
    /// Nowhere.
    Nowhere,
    /// After it has read the list.
    Read,
    /// Between the check of its lease and the write.
    Checked,
}

/// The demo's lock, and the resource and file that it guards.
pub(super) const LOCK: &str = "orders";
pub(super) const RESOURCE: &str = "storage:orders";
pub(super) const FILE: &str = "/list.txt";

/// Does the work and prints what happens to standard output.
///
/// # Errors
/// Standard output is closed.
pub(super) fn run(assignment: &Assignment) -> io::Result<()> {
    match Worker::new(assignment).and_then(|worker| worker.run()) {
        Ok(()) => print(&Note::Done),
        Err(message) => print(&Note::Failed { message }),
    }
}

/// Why a worker gives up: a sentence.
type Failed = String;

struct Worker<'a> {
    assignment: &'a Assignment,
    clock: ActClock,
    /// Runs the guard's renewals while this thread works.
    runtime: Runtime,
}

impl<'a> Worker<'a> {
    fn new(assignment: &'a Assignment) -> Result<Worker<'a>, Failed> {
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

    fn run(&self) -> Result<(), Failed> {
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
        record(Event::Believed(Period {
            from_ms,
            to_ms: Some(to_ms),
            client,
            token: Some(token),
        }))?;
        worked
    }

    /// Acquires the lock; returns the lease and when this process learned of it.
    fn acquire(&self) -> Result<(Lease, f64), Failed> {
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
        let answer = Some(Answer::Granted(lease.token().get()));
        record(Event::Request(Request {
            message,
            request: RequestKind::Acquire,
            answer,
        }))?;
        Ok((lease, answered_ms))
    }

    /// The work under the lock: read, think, check, write.
    fn work(&self, lease: &Lease) -> Result<(), Failed> {
        let assignment = self.assignment;
        let storage = Storage {
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
            Written::Acknowledged => Note::Acknowledged { item },
            Written::Rejected => Note::Rejected { item },
        })
    }

    fn release(&self, lease: Lease) -> Result<(), Failed> {
        let mut message = self.message("release");
        message.sent_ms = Some(self.clock.now_ms());
        let released = self.runtime.block_on(lease.release()).map_err(words)?;
        message.answered_ms = Some(self.clock.now_ms());
        let answer = Some(match released {
            Released::Released | Released::Delayed { .. } => Answer::Done,
            other => Answer::Refused(format!("{other:?}")),
        });
        record(Event::Request(Request {
            message,
            request: RequestKind::Release,
            answer,
        }))
    }

    /// Waits for a line from the demo, if this is the worker's breakpoint.
    fn pause_at(&self, place: Breakpoint) -> Result<(), Failed> {
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

fn words(error: impl ToString) -> Failed {
    error.to_string()
}

fn record(event: Event) -> Result<(), Failed> {
    send(&Note::Record { event })
}

fn send(note: &Note) -> Result<(), Failed> {
    print(note).map_err(words)
}

/// Sends one line to the demo at once.
fn print(note: &Note) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, note)?;
    out.write_all(b"\n")?;
    out.flush()
}

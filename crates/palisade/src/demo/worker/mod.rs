//! A worker of the story, in a process of its own: hold the lock, read the list, add an item, write the list.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► [breakpoint] ─► lease.check()? ─► [breakpoint] ─► write ─► release
//! ```
//!
//! It is as careful as a program can be on its side: the guard renews in the background, and the lease is checked
//! right before the write is sent. A breakpoint is a place where the worker waits for a line from the demo, so
//! that the pause hits the same place in every run; without the demo a pause may hit it just as well.

mod storage;

use std::io::{self, Write as _};
use std::time::Duration;

use palisade_client::{Client, Lease, Released};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::clock::ActClock;
use super::ledger::Note;
use super::timeline::{Answer, Event, Message, Request, RequestKind};
use storage::{Storage, Written};

/// What one worker is to do; given to its process as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// Its name, which is also its client id and the item that it adds.
    pub(super) client: String,
    /// The lock server's URL.
    pub(super) authority: String,
    /// The way to the store: address and port.
    pub(super) store: String,
    /// How long its lease lasts without renewal.
    pub(super) ttl_ms: u64,
    /// How long it waits for the lock.
    pub(super) wait_ms: u64,
    /// When the act began.
    pub(super) origin_nanos: u64,
    /// Whether its first operation at the store is a claim, and its read carries the token.
    pub(super) claims: bool,
    /// Where it waits to be told to go on.
    pub(super) breakpoint: Breakpoint,
}

/// Where a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Breakpoint {
    /// Nowhere.
    Nowhere,
    /// When it has read the list: it thinks.
    Read,
    /// Between the check of its lease and the write.
    Checked,
}

/// The lock of the story, and the resource and file that it guards.
pub(super) const LOCK: &str = "orders";
pub(super) const RESOURCE: &str = "storage:orders";
pub(super) const FILE: &str = "/list.txt";

/// Plays the part to its end. What happened is told on standard output.
///
/// # Errors
/// Only if nobody listens any more.
pub(super) fn play(part: &Part) -> io::Result<()> {
    match Worker::new(part).and_then(|worker| worker.play()) {
        Ok(()) => tell(&Note::Done),
        Err(message) => tell(&Note::Failed { message }),
    }
}

/// Why a worker gives up, in words.
type Failed = String;

struct Worker<'a> {
    part: &'a Part,
    clock: ActClock,
    /// Runs the guard's renewals while this thread works.
    runtime: Runtime,
}

impl<'a> Worker<'a> {
    fn new(part: &'a Part) -> Result<Worker<'a>, Failed> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Ok(Worker {
            part,
            clock: ActClock::from_nanos(part.origin_nanos),
            runtime: runtime.map_err(words)?,
        })
    }

    fn play(&self) -> Result<(), Failed> {
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
        let client = self.part.client.clone();
        record(Event::Believed {
            from_ms,
            to_ms: Some(to_ms),
            client,
            token,
        })?;
        worked
    }

    /// The lock, and when this process learned that it has it.
    fn acquire(&self) -> Result<(Lease, f64), Failed> {
        let part = self.part;
        let mut message = self.message("acquire");
        let asking = async {
            let client = Client::connect(&part.authority).await?;
            let wish = client.lock(LOCK).client_id(part.client.as_str());
            let wish = wish
                .ttl(Duration::from_millis(part.ttl_ms))
                .wait(Duration::from_millis(part.wait_ms));
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

    /// What the lock is for: read, think, check, write.
    fn work(&self, lease: &Lease) -> Result<(), Failed> {
        let part = self.part;
        let storage = Storage {
            part,
            clock: self.clock,
            token: lease.token(),
            authority: lease.authority(),
        };
        if part.claims {
            storage.claim()?;
        }
        let mut items = storage.read()?;
        self.pause_at(Breakpoint::Read)?;
        items.push(part.client.clone());
        lease.check().map_err(words)?;
        let (at_ms, remaining) = (self.clock.now_ms(), lease.remaining());
        said(&Note::Checked {
            at_ms,
            remaining_ms: remaining.as_secs_f64() * 1_000.0,
        })?;
        self.pause_at(Breakpoint::Checked)?;
        let item = part.client.clone();
        said(&match storage.write(&items)? {
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
            Released::Released => Answer::Done,
            other => Answer::Refused(format!("{other:?}")),
        });
        record(Event::Request(Request {
            message,
            request: RequestKind::Release,
            answer,
        }))
    }

    /// Waits here for a line from the demo, if this is the place.
    fn pause_at(&self, place: Breakpoint) -> Result<(), Failed> {
        if self.part.breakpoint != place {
            return Ok(());
        }
        said(&Note::Breakpoint)?;
        match io::stdin().read_line(&mut String::new()) {
            Ok(0) => Err("nobody is there to let it go on".to_owned()),
            other => other.map(drop).map_err(words),
        }
    }

    fn message(&self, what: &str) -> Message {
        let client = self.part.client.clone();
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
    said(&Note::Record { event })
}

fn said(note: &Note) -> Result<(), Failed> {
    tell(note).map_err(words)
}

/// One line to the demo, at once.
fn tell(note: &Note) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, note)?;
    out.write_all(b"\n")?;
    out.flush()
}

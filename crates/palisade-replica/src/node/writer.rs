//! The thread that writes the node's log.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use crate::store::{Sink, Work, Writer};

/// After so long without work, the end of the log is marked, which helps a later recovery.
const IDLE: Duration = Duration::from_millis(200);

/// A full disk is looked at again after this time.
const AGAIN: Duration = Duration::from_millis(250);

/// The state of the log's disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// Why the log finds no room. Work waits meanwhile, so this node acknowledges nothing (rule R23).
    full: Mutex<Option<String>>,
    frames: AtomicU64,
    /// The node ends, so nobody waits for room any more.
    ending: AtomicBool,
}

impl Disk {
    /// Why the log finds no room now.
    #[must_use]
    pub fn full(&self) -> Option<String> {
        self.full
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Frames written: one write and one sync each.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// From now on work that finds no room fails instead of waiting for some.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    fn set_full(&self, why: Option<String>) {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// The way to the thread.
pub(super) struct Queue(mpsc::Sender<Work>);

impl Sink for Queue {
    fn submit(&self, work: Work) {
        if let Err(mpsc::SendError(work)) = self.0.send(work) {
            work.fail();
        }
    }
}

/// Starts it. It ends when the queue is dropped, or when the log fails.
pub(super) fn start(
    mut writer: Writer,
    worked: Arc<AtomicBool>,
) -> io::Result<(Queue, Arc<Disk>, JoinHandle<()>)> {
    let (queue, works) = mpsc::channel();
    let disk = Arc::new(Disk::default());
    let shared = Arc::clone(&disk);
    let thread = std::thread::Builder::new()
        .name("palisade-log".into())
        .spawn(move || run(&mut writer, &works, &worked, &shared))?;
    Ok((Queue(queue), disk, thread))
}

fn run(writer: &mut Writer, works: &mpsc::Receiver<Work>, worked: &AtomicBool, disk: &Disk) {
    let mut marked = false;
    loop {
        let first = match works.recv_timeout(IDLE) {
            Ok(work) => work,
            Err(mpsc::RecvTimeoutError::Disconnected) => return writer.idle(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if !std::mem::replace(&mut marked, true) {
                    writer.idle();
                }
                continue;
            }
        };
        marked = false;
        let all: Vec<Work> = std::iter::once(first).chain(works.try_iter()).collect();
        if !wait_for_room(writer, &all, disk) {
            all.into_iter().chain(works.try_iter()).for_each(Work::fail);
            return;
        }
        worked.store(true, Ordering::Relaxed);
        match writer.work(all) {
            Ok(frames) => drop(disk.frames.fetch_add(frames, Ordering::Relaxed)),
            Err(error) => {
                tracing::error!(%error, "the log failed; this node stops");
                works.try_iter().for_each(Work::fail);
                return;
            }
        }
    }
}

/// Whether there is room. If not, the node ends.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing announces that a disk has room again"
)]
fn wait_for_room(writer: &mut Writer, works: &[Work], disk: &Disk) -> bool {
    let mut waited = false;
    while let Err(why) = writer.room_for(works) {
        if disk.ending.load(Ordering::Relaxed) {
            return false;
        }
        if !waited {
            tracing::error!(%why, "the log finds no room; this node acknowledges nothing until there is some");
        }
        waited = true;
        disk.set_full(Some(why));
        sleep(AGAIN);
    }
    if waited {
        disk.set_full(None);
        tracing::warn!("the log finds room again");
    }
    true
}

//! Writes the node's log: in a thread, or, while this node follows and its disk is quick, in the engine itself.
//!
//! ```text
//!   engine ──Work──► Queue ──► palisade-log: write, sync ──► done
//!                      └── a leader's entries, nothing before them, a quick disk: write, sync ──► done
//! ```
//!
//! A leader sends its entries while it writes them, so it needs the thread. A follower has nothing else to do, and the
//! thread would cost two wake-ups for each batch, which the client waits for.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::entry::NodeId;
use crate::store::{Sink, Work, Writer};

/// After this long without work, the end of the log is marked, which helps a later recovery.
const IDLE: Duration = Duration::from_millis(200);

/// A full disk is looked at again after this time.
const AGAIN: Duration = Duration::from_millis(250);

/// The state of the log's disk.
#[derive(Debug, Default)]
pub struct LogDisk {
    /// Why the log finds no room. Work waits meanwhile, so this node acknowledges nothing (rule R23).
    full: Mutex<Option<String>>,
    frames: AtomicU64,
    /// The node ends, so nobody waits for room any more.
    ending: AtomicBool,
}

impl LogDisk {
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

/// A frame that takes no longer is quick.
const QUICK: Duration = Duration::from_millis(2);

/// After this many quick frames in a row the engine waits for the disk itself. While it waits it answers nobody, so a
/// disk that stalls now and then is left to the thread.
const STREAK: u32 = 100;

/// More bytes at once are left to the thread.
const SMALL: usize = 64 << 10;

/// The log, and the state that its two writers share.
struct Shared {
    writer: Mutex<Writer>,
    /// Work that the thread was given and has not done.
    before: AtomicUsize,
    /// Quick frames since the last one that was not.
    streak: AtomicU32,
    /// Somebody wrote since the last snapshot.
    worked: Arc<AtomicBool>,
    disk: Arc<LogDisk>,
}

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes and syncs; false if the log takes nothing more.
    fn work(&self, writer: &mut Writer, works: impl IntoIterator<Item = Work>) -> bool {
        self.worked.store(true, Ordering::Relaxed);
        let began = now();
        let written = writer.work(works);
        let streak = next_streak(self.streak.load(Ordering::Relaxed), now() - began);
        self.streak.store(streak, Ordering::Relaxed);
        match written {
            Ok(frames) => {
                self.disk.frames.fetch_add(frames, Ordering::Relaxed);
                true
            }
            Err(error) => {
                tracing::error!(%error, "the log failed; this node stops");
                false
            }
        }
    }
}

/// The way to the log.
pub(super) struct Queue {
    thread: mpsc::Sender<Work>,
    shared: Arc<Shared>,
    node: NodeId,
}

impl Queue {
    /// Does the work on this thread, or gives it back.
    fn try_here(&self, work: Work) -> Result<(), Work> {
        let of_a_leader = work.leader().is_some_and(|leader| leader != self.node);
        let is_next = self.shared.before.load(Ordering::Acquire) == 0;
        let is_quick = self.shared.streak.load(Ordering::Relaxed) >= STREAK;
        if !(of_a_leader && is_next && is_quick && work.bytes() <= SMALL) {
            return Err(work);
        }
        let mut writer = self.shared.writer();
        // The thread waits for room.
        let works = [work];
        let has_room = writer.room_for(&works).is_ok();
        let [work] = works;
        if !has_room {
            return Err(work);
        }
        // After a failure the next work fails by itself.
        let _ = self.shared.work(&mut writer, [work]);
        Ok(())
    }
}

impl Sink for Queue {
    fn submit(&self, work: Work) {
        let Err(work) = self.try_here(work) else {
            return;
        };
        self.shared.before.fetch_add(1, Ordering::Relaxed);
        if let Err(mpsc::SendError(work)) = self.thread.send(work) {
            work.fail();
        }
    }
}

/// Starts the thread. It ends when the queue is dropped, or when the log fails.
pub(super) fn start(
    writer: Writer,
    node: NodeId,
    worked: Arc<AtomicBool>,
) -> io::Result<(Queue, Arc<LogDisk>, JoinHandle<()>)> {
    let (thread, works) = mpsc::channel();
    let disk = Arc::new(LogDisk::default());
    let shared = Arc::new(Shared {
        writer: Mutex::new(writer),
        before: AtomicUsize::new(0),
        streak: AtomicU32::new(0),
        worked,
        disk: Arc::clone(&disk),
    });
    let queue = Queue {
        thread,
        shared: Arc::clone(&shared),
        node,
    };
    let thread = std::thread::Builder::new()
        .name("palisade-log".into())
        .spawn(move || run(&shared, &works))?;
    Ok((queue, disk, thread))
}

fn run(shared: &Shared, works: &mpsc::Receiver<Work>) {
    // How many frames there were when the end was last looked at, and whether it is marked.
    let (mut frames, mut marked) = (0, false);
    loop {
        let first = match works.recv_timeout(IDLE) {
            Ok(work) => work,
            Err(mpsc::RecvTimeoutError::Disconnected) => return shared.writer().idle(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let is_idle = std::mem::replace(&mut frames, shared.disk.frames()) == frames;
                if is_idle && !std::mem::replace(&mut marked, is_idle) {
                    shared.writer().idle();
                }
                marked = is_idle;
                continue;
            }
        };
        let mut writer = shared.writer();
        let all: Vec<Work> = std::iter::once(first).chain(works.try_iter()).collect();
        if !wait_for_room(&mut writer, &all, &shared.disk) {
            all.into_iter().chain(works.try_iter()).for_each(Work::fail);
            return;
        }
        let count = all.len();
        if !shared.work(&mut writer, all) {
            works.try_iter().for_each(Work::fail);
            return;
        }
        shared.before.fetch_sub(count, Ordering::Release);
    }
}

fn next_streak(streak: u32, took: Duration) -> u32 {
    if took <= QUICK {
        streak.saturating_add(1)
    } else {
        0
    }
}

/// Whether there is room. If not, the node ends.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing announces that a disk has room again"
)]
fn wait_for_room(writer: &mut Writer, works: &[Work], disk: &LogDisk) -> bool {
    let mut waited = false;
    while let Err(why) = writer.room_for(works) {
        if disk.ending.load(Ordering::Relaxed) {
            return false;
        }
        if !waited {
            tracing::error!(%why, "the log finds no room on the disk; this node acknowledges nothing until there is some");
        }
        waited = true;
        disk.set_full(Some(why));
        sleep(AGAIN);
    }
    if waited {
        disk.set_full(None);
        tracing::warn!("the log finds room on the disk again");
    }
    true
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long the disk takes; nothing is stamped with it"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::thread;

    use palisade_wal::testing::SimStorage;
    use palisade_wal::{CreateOptions, Options, Wal};

    use super::*;
    use crate::entry::{Entry, Leader, LogId, Payload};
    use crate::store::{Store, Stored};

    const SELF: NodeId = NodeId(1);
    const LEADER: NodeId = NodeId(2);

    /// A node's log on a simulated disk. Each entry reports which thread made it durable.
    struct Node {
        store: Store,
        shared: Arc<Shared>,
        thread: JoinHandle<()>,
        next: u64,
    }

    impl Node {
        fn new() -> Node {
            let opened = Wal::open_or_create_on(
                Arc::new(SimStorage::new(1)),
                &CreateOptions::default(),
                &Options::default(),
            );
            let Stored { writer, state } = Stored::read(opened.unwrap(), 1).unwrap();
            let compactor = writer.compactor();
            let (queue, _, thread) = start(writer, SELF, Arc::default()).unwrap();
            let shared = Arc::clone(&queue.shared);
            Node {
                store: Store::new(state.log, queue, compactor, 1),
                shared,
                thread,
                next: 0,
            }
        }

        fn append(&mut self, node: NodeId, bytes: usize) -> Receiver<(u64, Option<String>)> {
            let index = self.next;
            let leader = Leader { term: 1, node };
            let entry = Entry {
                id: LogId { leader, index },
                payload: Payload::Batch(vec![0; bytes].into()),
            };
            self.next += 1;
            let (done, is_done) = mpsc::channel();
            let tell = move |result: io::Result<()>| {
                result.unwrap();
                let thread = thread::current().name().map(str::to_owned);
                done.send((index, thread)).unwrap();
            };
            self.store.append(vec![entry], tell).unwrap();
            is_done
        }

        /// Appends an entry, and returns the thread that made it durable. The thread counts a frame after it has
        /// reported it, and this waits for both.
        fn writer_of(&mut self, node: NodeId, bytes: usize) -> Option<String> {
            let is_done = self.append(node, bytes);
            let by_caller = is_done.try_recv();
            let (_, writer) = by_caller.unwrap_or_else(|_| is_done.recv().unwrap());
            while self.shared.before.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }
            writer
        }

        /// Follows until the disk counts as quick. On a busy machine a frame may be slow.
        fn warmed_up() -> Node {
            let mut node = Node::new();
            let here = thread::current().name().map(str::to_owned);
            let warm = |_| node.writer_of(LEADER, 1) == here;
            assert!((0..100_000).any(warm), "it never wrote on this thread");
            node
        }

        fn end(self) {
            drop(self.store);
            self.thread.join().unwrap();
        }
    }

    fn of_thread() -> Option<String> {
        Some("palisade-log".to_owned())
    }

    #[test]
    fn only_small_entries_of_a_leader_are_written_by_the_caller_and_only_on_a_quick_disk() {
        let mut cold = Node::new();
        assert_eq!(cold.writer_of(LEADER, 1), of_thread());
        cold.end();
        let mut node = Node::warmed_up();
        assert_eq!(node.writer_of(SELF, 1), of_thread(), "a node that leads");
        assert_eq!(node.writer_of(LEADER, SMALL), of_thread(), "much");
        let frames = node.shared.disk.frames();
        node.shared.streak.store(STREAK - 1, Ordering::Relaxed);
        assert_eq!(node.writer_of(LEADER, 1), of_thread(), "a slow disk");
        assert_eq!(node.shared.disk.frames(), frames + 1);
        node.end();
    }

    #[test]
    fn a_leaders_entries_do_not_overtake_work_that_the_thread_has() {
        let mut node = Node::warmed_up();
        let shared = Arc::clone(&node.shared);
        let (first, second) = {
            let _held = shared.writer();
            // The thread takes it, and waits for the log.
            let first = node.append(SELF, 1);
            (first, node.append(LEADER, 1))
        };
        let ((one, by_one), (two, by_two)) = (first.recv().unwrap(), second.recv().unwrap());
        assert!(one < two);
        assert_eq!((by_one, by_two), (of_thread(), of_thread()));
        node.end();
    }

    #[test]
    fn one_slow_frame_ends_a_streak() {
        assert_eq!(next_streak(7, QUICK), 8);
        assert_eq!(next_streak(u32::MAX, Duration::ZERO), u32::MAX);
        assert_eq!(next_streak(7, QUICK + Duration::from_nanos(1)), 0);
    }
}

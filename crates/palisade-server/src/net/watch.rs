//! The feed of changes for both kinds of watch, gRPC and SSE.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► one task ──┬─► prefix a/, revision 9 ─► queue · queue · queue
//!                                             ▲       ├─► prefix a/, revision 4 ─► queue
//!                                             │       └─► prefix    , revision 9 ─► queue · queue
//!                                             └─ watchers that are new, or have room again
//! ```
//!
//! One task serves all watchers, off the ordering thread. Watchers with the same prefix at the same revision get the
//! same batch, which is made and encoded once. A watcher whose queue is full costs nothing until it reads again; then
//! it gets the changes that are still in the ring and the number of those that are not. No watcher is dropped for being
//! slow.

use std::collections::BTreeMap;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use palisade_core::Event;
use palisade_proto::Code;
use tokio::sync::mpsc;

use super::app::App;
use super::convert::Refusal;
use super::gate::{Observed, Prefixes};
use crate::pipeline::{Leading, Since, bytes_of};
use crate::shell::Origin;

/// A message to a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// One change of a lock it watches.
    Change(Event),
    /// Changes, of all locks, that it did not get because it was too slow or disconnected.
    Missed {
        /// Their number.
        missed: u64,
        /// The revision of the last of them.
        upto: u64,
    },
}

/// Starts a watch. It ends when the returned stream is dropped, or when the server shuts down.
///
/// The watcher sees every change made after this returns. A watcher that reconnects first gets what it missed: the
/// changes themselves, as far as they are still known. `after` is the last change that it has seen, if it says so.
///
/// # Errors
/// If it names a revision that this authority, or this node of it, has not reached, or if too many watches are open.
pub(super) fn watch(
    app: &Arc<App>,
    observed: Observed,
    after: Option<u64>,
) -> Result<Batches, Refusal> {
    let latest = app.handle.revision();
    let position = after.unwrap_or(latest);
    if position > latest {
        // A node that follows may still be a step behind the one that reported the revision.
        if let Leading::At(_) | Leading::Nowhere = app.handle.leader() {
            return Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "this node has not reached revision {position} yet; try again, or ask another node"
                ),
            ));
        }
        return Err(Refusal::invalid(format!(
            "revision {position} is in the future: this authority's latest is {latest} and never goes back, \
             so it came from another authority. List the locks again, and watch without a revision"
        )));
    }
    let slot = WatchSlot::take(app, observed.origin())
        .map_err(|why| Refusal::new(Code::Unavailable, why))?;
    let (sender, batches) = mpsc::channel(QUEUE);
    app.feed.join(app, (position, observed.prefixes()), sender);
    Ok(Batches {
        batches,
        observed,
        slot,
    })
}

/// The batches of one watcher.
pub(super) struct Batches {
    batches: mpsc::Receiver<Arc<Batch>>,
    observed: Observed,
    /// Its application, too.
    slot: WatchSlot,
}

impl Stream for Batches {
    type Item = Arc<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Arc<Batch>>> {
        let batch = ready!(self.batches.poll_recv(cx));
        // New rules under which it would show other locks end a watch. A watcher that reconnects misses nothing.
        let granted = self.slot.app.gate.still_observes(&self.observed);
        Poll::Ready(batch.filter(|_| granted))
    }
}

/// A batch for all watchers of the same locks at one revision.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) notices: Vec<Notice>,
    encoded: OnceLock<Bytes>,
}

impl Batch {
    /// The notices as bytes. The first caller encodes them; all others use the result.
    pub(super) fn encoded(&self, encode: impl FnOnce(&[Notice]) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(&self.notices)).clone()
    }
}

/// A slot among the open watches.
struct WatchSlot {
    app: Arc<App>,
    origin: Option<Origin>,
}

impl WatchSlot {
    /// One address, or one user of a Unix socket, gets half of all, as with connections.
    fn take(app: &Arc<App>, origin: Option<Origin>) -> Result<WatchSlot, String> {
        let most = app.settings.watches as u64;
        let origins = app.meters.watchers_of.lock();
        let mut origins = origins.unwrap_or_else(PoisonError::into_inner);
        let open = app.meters.watchers.load(Relaxed);
        if open >= most {
            return Err(format!(
                "{most} watches are open, which is the limit; try again later"
            ));
        }
        let origin = origin.map(Origin::counted);
        if let Some(origin) = origin {
            let share = most.div_ceil(2);
            let of_origin = origins.entry(origin).or_default();
            if *of_origin >= share {
                return Err(format!(
                    "{share} watches are open from {origin}, which is the share of one address; end some of them, or watch \
                     a common prefix once"
                ));
            }
            *of_origin += 1;
        }
        app.meters.watchers.fetch_add(1, Relaxed);
        Ok(WatchSlot {
            app: Arc::clone(app),
            origin,
        })
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        let meters = &self.app.meters;
        let origins = meters.watchers_of.lock();
        let mut origins = origins.unwrap_or_else(PoisonError::into_inner);
        meters.watchers.fetch_sub(1, Relaxed);
        if let Some(origin) = self.origin
            && let Some(count) = origins.get_mut(&origin)
        {
            *count -= 1;
            if *count == 0 {
                origins.remove(&origin);
            }
        }
    }
}

/// The sender to the task that serves all watchers. The first watcher starts the task.
#[derive(Default)]
pub(super) struct Feed(Mutex<Option<mpsc::UnboundedSender<(Position, Watcher)>>>);

impl Feed {
    fn join(&self, app: &Arc<App>, position: Position, watcher: Watcher) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let joining = match &*task {
            Some(task) => match task.send((position, watcher)) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
            None => (position, watcher),
        };
        let (sender, joined) = mpsc::unbounded_channel();
        let _ = sender.send(joining);
        *task = Some(sender);
        tokio::spawn(feed(Arc::clone(app), joined));
    }
}

async fn feed(app: Arc<App>, mut joined: mpsc::UnboundedReceiver<(Position, Watcher)>) {
    let mut news = app.handle.news();
    let mut watchers = Watchers::default();
    let mut draining = pin!(app.draining());
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let some_behind = watchers.first() < app.handle.revision();
        tokio::select! {
            () = &mut draining => return,
            changed = news.changed() => if changed.is_err() {
                return;
            },
            Some((position, watcher)) = joined.recv() => watchers.put(position, vec![watcher]),
            _ = sweep.tick() => watchers.sweep(),
            () = tokio::time::sleep(POLL_INTERVAL), if some_behind => {}
        }
        while let Ok((position, watcher)) = joined.try_recv() {
            watchers.put(position, vec![watcher]);
        }
        while watchers.send_round(|revision| app.handle.since(revision)) {
            tokio::task::yield_now().await;
        }
        // Under load, one round serves many batches; with many watchers there are fewer rounds, so that serving them
        // does not starve the holders of locks.
        let sent = u32::try_from(mem::take(&mut watchers.sent)).unwrap_or(u32::MAX);
        tokio::time::sleep(
            (ROUND_PAUSE + PAUSE_PER_WATCHER.saturating_mul(sent)).min(POLL_INTERVAL),
        )
        .await;
    }
}

/// The last revision that watchers have processed, and the locks that they see.
type Position = (u64, Prefixes);

type Watcher = mpsc::Sender<Arc<Batch>>;

/// All watchers, ordered by revision.
#[derive(Default)]
struct Watchers {
    groups: BTreeMap<Position, Vec<Watcher>>,
    /// How many batches were sent since the counter was read.
    sent: usize,
}

impl Watchers {
    fn put(&mut self, position: Position, watchers: Vec<Watcher>) {
        if !watchers.is_empty() {
            self.groups.entry(position).or_default().extend(watchers);
        }
    }

    /// The lowest revision of all watchers.
    fn first(&self) -> u64 {
        let first = self.groups.first_key_value();
        first.map_or(u64::MAX, |((revision, _), _)| *revision)
    }

    /// Sends one batch to every watcher that is behind and has room. Returns whether more can be sent at once.
    fn send_round(&mut self, since: impl Fn(u64) -> Since) -> bool {
        let mut known = Backlog::since(self.first(), &since);
        let up_to_date = self.groups.split_off(&(known.latest, Prefixes::default()));
        let mut more = false;
        for ((revision, prefixes), watchers) in mem::replace(&mut self.groups, up_to_date) {
            let (reading, full) = watchers
                .into_iter()
                .partition::<Vec<_>, _>(|watcher| watcher.capacity() > 0 || watcher.is_closed());
            self.put((revision, Arc::clone(&prefixes)), full);
            if reading.is_empty() {
                continue;
            }
            if known.from != revision {
                known = Backlog::since(revision, &since);
            }
            let (notices, upto) = known.for_prefixes(&prefixes);
            let served = if notices.is_empty() {
                reading
            } else {
                self.send(reading, notices)
            };
            more |= !served.is_empty() && upto < known.latest;
            self.put((upto, prefixes), served);
        }
        more
    }

    /// Sends to all of them; returns those that are still connected.
    fn send(&mut self, mut watchers: Vec<Watcher>, notices: Vec<Notice>) -> Vec<Watcher> {
        let batch = Arc::new(Batch {
            notices,
            encoded: OnceLock::new(),
        });
        // Nobody else sends, so a watcher that had room still has it.
        watchers.retain(|watcher| watcher.try_send(Arc::clone(&batch)).is_ok());
        self.sent += watchers.len();
        watchers
    }

    /// Removes watchers that are gone.
    fn sweep(&mut self) {
        self.groups.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        });
    }
}

/// The known changes after a revision.
struct Backlog {
    from: u64,
    /// The changes that are no longer known.
    gap: Option<Notice>,
    batches: Vec<Arc<[Event]>>,
    /// The last revision in here, and the latest of all.
    upto: u64,
    latest: u64,
}

impl Backlog {
    fn since(from: u64, since: impl Fn(u64) -> Since) -> Backlog {
        let Since { batches, latest } = since(from);
        let first = batches.first().and_then(|batch| batch.first());
        let last = batches.last().and_then(|batch| batch.last());
        let next = first.map_or(latest + 1, |event| event.revision);
        Backlog {
            from,
            gap: gap(from, next),
            upto: last.map_or(latest, |event| event.revision),
            batches,
            latest,
        }
    }

    /// The notices for watchers of these locks, and up to which revision they go.
    fn for_prefixes(&self, prefixes: &[Box<str>]) -> (Vec<Notice>, u64) {
        let mut notices: Vec<Notice> = self.gap.iter().cloned().collect();
        let mut bytes = 0;
        for event in self.batches.iter().flat_map(|batch| batch.iter()) {
            let is_watched = || {
                let mut prefixes = prefixes.iter();
                prefixes.any(|prefix| event.lock.starts_with(&**prefix))
            };
            if event.revision > self.from && is_watched() {
                bytes += bytes_of(event);
                notices.push(Notice::Change(event.clone()));
                if bytes >= BATCH {
                    return (notices, event.revision);
                }
            }
        }
        (notices, self.upto)
    }
}

/// The gap between the last revision sent and the next one that is known.
fn gap(position: u64, next: u64) -> Option<Notice> {
    let upto = next.checked_sub(1)?;
    let missed = upto.checked_sub(position).filter(|missed| *missed > 0)?;
    Some(Notice::Missed { missed, upto })
}

/// How many batches wait for one watcher, and the bytes of events with which a batch is full.
const QUEUE: usize = 2;
const BATCH: usize = 16 << 10;

/// How often to check whether a slow watcher reads again, and whether one is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two rounds, and an addition for each watcher that got a batch.
const ROUND_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_PER_WATCHER: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use palisade_core::{
        Change, ClientId, LeaseId, LockName, Principal, Slots, Span, Timestamp, Token, Ttl,
    };

    use super::*;

    fn event(revision: u64, lock: &str) -> Event {
        Event {
            revision,
            at: Timestamp::ZERO,
            lock: LockName::new(lock).unwrap(),
            client: Some(ClientId::new("a").unwrap()),
            token: Token::FIRST,
            shared: None,
            slots: Slots::NONE,
            by: Principal::ANONYMOUS,
            lease: Some(LeaseId(Token::FIRST)),
            held: Span::ZERO,
            change: Change::Granted { ttl: Ttl::MIN },
        }
    }

    /// A ring that returns two batches at once, and forgets on request.
    #[derive(Default)]
    struct Ring(RefCell<Vec<Arc<[Event]>>>);

    impl Ring {
        fn push(&self, events: impl IntoIterator<Item = Event>) {
            self.0.borrow_mut().push(events.into_iter().collect());
        }

        fn since(&self, revision: u64) -> Since {
            let all = self.0.borrow();
            let later = |batch: &&Arc<[Event]>| batch.last().unwrap().revision > revision;
            Since {
                batches: all.iter().filter(later).take(2).cloned().collect(),
                latest: all.last().map_or(0, |batch| batch.last().unwrap().revision),
            }
        }
    }

    /// `prefix`: one, or several with spaces between them.
    fn join(watchers: &mut Watchers, prefix: &str, revision: u64) -> mpsc::Receiver<Arc<Batch>> {
        let (sender, batches) = mpsc::channel(QUEUE);
        let prefixes = prefix.split(' ').map(Box::from).collect();
        watchers.put((revision, prefixes), vec![sender]);
        batches
    }

    fn received(batches: &mut mpsc::Receiver<Arc<Batch>>) -> Vec<String> {
        let mut received = Vec::new();
        while let Ok(batch) = batches.try_recv() {
            received.extend(batch.notices.iter().map(|notice| match notice {
                Notice::Change(event) => event.revision.to_string(),
                Notice::Missed { missed, upto } => format!("missed {missed} upto {upto}"),
            }));
        }
        received
    }

    fn send_all(watchers: &mut Watchers, ring: &Ring) {
        while watchers.send_round(|revision| ring.since(revision)) {}
    }

    #[test]
    fn a_prefix_selects_its_locks_and_other_changes_do_not_count_as_missed() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut a = join(&mut watchers, "a/", 0);
        let mut all = join(&mut watchers, "", 0);
        let mut parts = join(&mut watchers, "a/2 b", 0);
        ring.push([event(1, "a/1"), event(2, "b"), event(3, "a/2")]);
        send_all(&mut watchers, &ring);
        assert_eq!(received(&mut parts), ["2", "3"]);
        assert_eq!(
            (received(&mut a), received(&mut all)),
            (
                vec!["1".into(), "3".into()],
                vec!["1".into(), "2".into(), "3".into()]
            )
        );
        ring.push([event(4, "b")]);
        ring.push([event(5, "a/1")]);
        send_all(&mut watchers, &ring);
        assert_eq!(
            (received(&mut a), received(&mut all)),
            (vec!["5".into()], vec!["4".into(), "5".into()])
        );
    }

    #[test]
    fn a_returning_watcher_gets_the_ring_and_the_number_of_older_changes() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        ring.push((8..=12).map(|revision| event(revision, "a")));
        let mut nothing = join(&mut watchers, "", 12);
        let mut some = join(&mut watchers, "", 10);
        let mut long = join(&mut watchers, "", 3);
        let mut other = join(&mut watchers, "b", 3);
        send_all(&mut watchers, &ring);
        assert_eq!(received(&mut nothing), [""; 0]);
        assert_eq!(received(&mut some), ["11", "12"]);
        let missed = ["missed 4 upto 7", "8", "9", "10", "11", "12"];
        assert_eq!(received(&mut long), missed);
        assert_eq!(received(&mut other), ["missed 4 upto 7"]);
        assert_eq!(watchers.first(), 12);
    }

    #[test]
    fn after_a_start_an_empty_ring_still_counts_missed_changes() {
        let mut watchers = Watchers::default();
        let mut notices = join(&mut watchers, "", 4);
        let since = |_| Since {
            batches: Vec::new(),
            latest: 9,
        };
        while watchers.send_round(since) {}
        assert_eq!(received(&mut notices), ["missed 5 upto 9"]);
    }

    #[test]
    fn a_watcher_that_does_not_read_is_skipped_and_catches_up_later() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut slow = join(&mut watchers, "", 0);
        for revision in 1..=192 {
            ring.push([event(revision, "a")]);
            send_all(&mut watchers, &ring);
        }
        assert_eq!(watchers.first(), QUEUE as u64);
        let mut seen = Vec::new();
        while let more @ [_, ..] = &*received(&mut slow) {
            seen.extend_from_slice(more);
            send_all(&mut watchers, &ring);
        }
        let all: Vec<String> = (1..=192).map(|revision| revision.to_string()).collect();
        assert_eq!(seen, all);
        // Changes that the ring has forgotten meanwhile count as missed.
        ring.push((193..=300).map(|revision| event(revision, "a")));
        send_all(&mut watchers, &ring);
        ring.push((301..=400).map(|revision| event(revision, "a")));
        send_all(&mut watchers, &ring);
        ring.push((401..=500).map(|revision| event(revision, "a")));
        send_all(&mut watchers, &ring);
        ring.0.borrow_mut().drain(..195);
        ring.push((501..=600).map(|revision| event(revision, "a")));
        let queued = received(&mut slow);
        let last: u64 = queued.last().unwrap().parse().unwrap();
        assert!(queued[0] == "193" && last < 500, "{queued:?}");
        send_all(&mut watchers, &ring);
        let missed = format!("missed {} upto 500", 500 - last);
        assert_eq!(received(&mut slow)[..2], [missed, "501".to_owned()]);
    }

    #[test]
    fn watchers_at_one_revision_share_one_bounded_batch() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut readers = [(); 3].map(|()| join(&mut watchers, "", 0));
        ring.push((1..=1_000).map(|revision| event(revision, "a")));
        send_all(&mut watchers, &ring);
        let [first, second, third] = readers.each_mut().map(|reader| reader.try_recv().unwrap());
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &third));
        let bytes: usize = (1..=first.notices.len() as u64)
            .map(|revision| bytes_of(&event(revision, "a")))
            .sum();
        assert!((BATCH..2 * BATCH).contains(&bytes), "{bytes}");
        let mut encodings = 0;
        for batch in [first, second, third] {
            batch.encoded(|_| {
                encodings += 1;
                Bytes::new()
            });
        }
        assert_eq!(encodings, 1);
    }

    #[test]
    fn a_watcher_that_is_gone_is_removed() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        drop(join(&mut watchers, "", 0));
        send_all(&mut watchers, &ring);
        watchers.sweep();
        assert!(watchers.groups.is_empty());
        let quiet = join(&mut watchers, "quiet", 0);
        send_all(&mut watchers, &ring);
        drop(quiet);
        watchers.sweep();
        assert!(watchers.groups.is_empty());
    }
}

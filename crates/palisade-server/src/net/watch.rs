//! The feed of changes behind both watches, gRPC's and SSE's.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► one task ──┬─► prefix a/, revision 9 ─► queue · queue · queue
//!                                             ▲       ├─► prefix a/, revision 4 ─► queue
//!                                             │       └─► prefix    , revision 9 ─► queue · queue
//!                                             └─ whoever has room again, or is new
//! ```
//!
//! One task for all watchers, off the ordering thread. Watchers with the same prefix that stand at the same
//! revision are told the same batch, which is made and encoded once. One whose queue is full costs nothing until
//! it reads again; it is told then what is still in the ring, and of the rest how much it was: nobody is dropped
//! for being slow.

use std::collections::BTreeMap;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use palisade_core::Event;
use palisade_proto::Code;
use tokio::sync::mpsc;

use super::app::App;
use super::convert::Refusal;
use crate::pipeline::{Since, bytes_of};

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// One change of a lock it watches.
    Change(Event),
    /// It did not get this many changes, of all locks, because it was too slow or away.
    Missed {
        /// How many.
        missed: u64,
        /// The revision of the last of them.
        upto: u64,
    },
}

/// Which changes a watcher wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Only locks whose names start so.
    pub(super) prefix: Box<str>,
    /// The last change it saw before, if it says so.
    pub(super) after: Option<u64>,
}

/// Starts a watch. It ends with what this returns, or when the server goes down.
///
/// A change made after this has returned is seen. A watcher that comes back is told at once what it missed:
/// the changes themselves, as far as they are still known.
///
/// # Errors
/// If it has seen a revision that this authority has not reached, or if too many watches are open.
pub(super) fn watch(app: &Arc<App>, wish: Wish) -> Result<Batches, Refusal> {
    let latest = app.handle.revision();
    let position = wish.after.unwrap_or(latest);
    if position > latest {
        return Err(Refusal::invalid(format!(
            "revision {position} is in the future: this authority's latest is {latest}, and it never goes back, \
             so another authority counted it. Look at the locks afresh, and watch without it"
        )));
    }
    let place = Place::take(app).ok_or_else(|| {
        let most = app.settings.watches;
        Refusal::new(
            Code::Unavailable,
            format!("{most} watches are open, as many as may; try again later"),
        )
    })?;
    let (sender, batches) = mpsc::channel(QUEUE);
    app.feed.join(app, (position, wish.prefix), sender);
    Ok(Batches {
        batches,
        _place: place,
    })
}

/// What one watcher is told, as it comes.
pub(super) struct Batches {
    batches: mpsc::Receiver<Arc<Batch>>,
    _place: Place,
}

impl Stream for Batches {
    type Item = Arc<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Arc<Batch>>> {
        self.batches.poll_recv(cx)
    }
}

/// What all watchers of one prefix that stand at one revision are told at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) notices: Vec<Notice>,
    encoded: OnceLock<Bytes>,
}

impl Batch {
    /// The notices as bytes, made by the first who asks. All who ask use one encoding.
    pub(super) fn encoded(&self, encode: impl FnOnce(&[Notice]) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(&self.notices)).clone()
    }
}

/// A place among the open watches.
struct Place(Arc<App>);

impl Place {
    fn take(app: &Arc<App>) -> Option<Place> {
        let place = Place(Arc::clone(app));
        let open = app.meters.watchers.fetch_add(1, Relaxed);
        (open < app.settings.watches as u64).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.meters.watchers.fetch_sub(1, Relaxed);
    }
}

/// The way to the task that tells all watchers. It begins with the first of them.
#[derive(Default)]
pub(super) struct Feed(Mutex<Option<mpsc::UnboundedSender<(Standing, Watcher)>>>);

impl Feed {
    fn join(&self, app: &Arc<App>, standing: Standing, watcher: Watcher) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let joining = match &*task {
            Some(task) => match task.send((standing, watcher)) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
            None => (standing, watcher),
        };
        let (sender, joined) = mpsc::unbounded_channel();
        let _ = sender.send(joining);
        *task = Some(sender);
        tokio::spawn(feed(Arc::clone(app), joined));
    }
}

async fn feed(app: Arc<App>, mut joined: mpsc::UnboundedReceiver<(Standing, Watcher)>) {
    let mut news = app.handle.news();
    let mut watchers = Watchers::default();
    let mut draining = pin!(app.draining());
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let some_behind = watchers.first() < app.handle.revision();
        tokio::select! {
            () = &mut draining => return,
            changed = news.changed() => if changed.is_err() {
                return;
            },
            Some((standing, watcher)) = joined.recv() => watchers.put(standing, vec![watcher]),
            _ = sweep.tick() => watchers.sweep(),
            () = tokio::time::sleep(LOOK), if some_behind => {}
        }
        while let Ok((standing, watcher)) = joined.try_recv() {
            watchers.put(standing, vec![watcher]);
        }
        while watchers.tell(|revision| app.handle.since(revision)) {
            tokio::task::yield_now().await;
        }
        // Under load one round for many batches; and with many watchers fewer rounds, so that telling them
        // does not take the machine from those who hold locks.
        let told = u32::try_from(mem::take(&mut watchers.told)).unwrap_or(u32::MAX);
        tokio::time::sleep((PACE + EACH.saturating_mul(told)).min(LOOK)).await;
    }
}

/// The last revision that watchers were told, or did not want, and their prefix.
type Standing = (u64, Box<str>);

type Watcher = mpsc::Sender<Arc<Batch>>;

/// All watchers, those first that are furthest behind.
#[derive(Default)]
struct Watchers {
    groups: BTreeMap<Standing, Vec<Watcher>>,
    /// Batches sent since this was looked at.
    told: usize,
}

impl Watchers {
    fn put(&mut self, standing: Standing, watchers: Vec<Watcher>) {
        if !watchers.is_empty() {
            self.groups.entry(standing).or_default().extend(watchers);
        }
    }

    /// The revision at which the last of them stands.
    fn first(&self) -> u64 {
        let first = self.groups.first_key_value();
        first.map_or(u64::MAX, |((revision, _), _)| *revision)
    }

    /// Tells everybody who is behind, and reads, one batch. Says whether there is more to tell at once.
    fn tell(&mut self, since: impl Fn(u64) -> Since) -> bool {
        let mut known = News::since(self.first(), &since);
        let up_to_date = self.groups.split_off(&(known.latest, "".into()));
        let mut more = false;
        for ((revision, prefix), watchers) in mem::replace(&mut self.groups, up_to_date) {
            let (reading, full) = watchers
                .into_iter()
                .partition::<Vec<_>, _>(|watcher| watcher.capacity() > 0 || watcher.is_closed());
            self.put((revision, prefix.clone()), full);
            if reading.is_empty() {
                continue;
            }
            if known.from != revision {
                known = News::since(revision, &since);
            }
            let (notices, upto) = known.for_prefix(&prefix);
            let told = if notices.is_empty() {
                reading
            } else {
                self.send(reading, notices)
            };
            more |= !told.is_empty() && upto < known.latest;
            self.put((upto, prefix), told);
        }
        more
    }

    /// Sends to all who have room; returns those who are still there.
    fn send(&mut self, mut watchers: Vec<Watcher>, notices: Vec<Notice>) -> Vec<Watcher> {
        let batch = Arc::new(Batch {
            notices,
            encoded: OnceLock::new(),
        });
        // Nobody else sends, so a watcher that had room has it still.
        watchers.retain(|watcher| watcher.try_send(Arc::clone(&batch)).is_ok());
        self.told += watchers.len();
        watchers
    }

    /// Forgets who is gone.
    fn sweep(&mut self) {
        self.groups.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        });
    }
}

/// What is known of the time after a revision.
struct News {
    from: u64,
    /// What is not known any more.
    gap: Option<Notice>,
    batches: Vec<Arc<[Event]>>,
    /// The revision with which this ends, and the latest there is.
    upto: u64,
    latest: u64,
}

impl News {
    fn since(from: u64, since: impl Fn(u64) -> Since) -> News {
        let Since { batches, latest } = since(from);
        let first = batches.first().and_then(|batch| batch.first());
        let last = batches.last().and_then(|batch| batch.last());
        let next = first.map_or(latest + 1, |event| event.revision);
        News {
            from,
            gap: gap(from, next),
            upto: last.map_or(latest, |event| event.revision),
            batches,
            latest,
        }
    }

    /// What is told of it at once to watchers of this prefix, and up to which revision that goes.
    fn for_prefix(&self, prefix: &str) -> (Vec<Notice>, u64) {
        let mut notices: Vec<Notice> = self.gap.iter().cloned().collect();
        let mut bytes = 0;
        for event in self.batches.iter().flat_map(|batch| batch.iter()) {
            if event.revision > self.from && event.lock.starts_with(prefix) {
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

/// What lies between the last revision told and the next one that is known.
fn gap(position: u64, next: u64) -> Option<Notice> {
    let upto = next.checked_sub(1)?;
    let missed = upto.checked_sub(position).filter(|missed| *missed > 0)?;
    Some(Notice::Missed { missed, upto })
}

/// Batches that wait for one watcher, and the bytes of events with which one is full.
const QUEUE: usize = 2;
const BATCH: usize = 16 << 10;

/// How often is looked whether a slow watcher reads again, and whether one is gone.
const LOOK: Duration = Duration::from_millis(20);
const SWEEP: Duration = Duration::from_secs(1);

/// Between two rounds, and beside that for each watcher that was told something.
const PACE: Duration = Duration::from_millis(1);
const EACH: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use palisade_core::{Change, ClientId, LockName, Timestamp, Token, Ttl};

    use super::*;

    fn event(revision: u64, lock: &str) -> Event {
        Event {
            revision,
            at: Timestamp::ZERO,
            lock: LockName::new(lock).unwrap(),
            client: ClientId::new("a").unwrap(),
            token: Token::FIRST,
            change: Change::Granted { ttl: Ttl::MIN },
        }
    }

    /// A ring that hands out two batches at once, and forgets when told.
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

    fn join(watchers: &mut Watchers, prefix: &str, revision: u64) -> mpsc::Receiver<Arc<Batch>> {
        let (sender, batches) = mpsc::channel(QUEUE);
        watchers.put((revision, prefix.into()), vec![sender]);
        batches
    }

    fn told(batches: &mut mpsc::Receiver<Arc<Batch>>) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(batch) = batches.try_recv() {
            told.extend(batch.notices.iter().map(|notice| match notice {
                Notice::Change(event) => event.revision.to_string(),
                Notice::Missed { missed, upto } => format!("missed {missed} upto {upto}"),
            }));
        }
        told
    }

    fn tell(watchers: &mut Watchers, ring: &Ring) {
        while watchers.tell(|revision| ring.since(revision)) {}
    }

    #[test]
    fn a_prefix_picks_out_its_locks_and_other_changes_are_not_missed() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut a = join(&mut watchers, "a/", 0);
        let mut all = join(&mut watchers, "", 0);
        ring.push([event(1, "a/1"), event(2, "b"), event(3, "a/2")]);
        tell(&mut watchers, &ring);
        assert_eq!(
            (told(&mut a), told(&mut all)),
            (
                vec!["1".into(), "3".into()],
                vec!["1".into(), "2".into(), "3".into()]
            )
        );
        ring.push([event(4, "b")]);
        ring.push([event(5, "a/1")]);
        tell(&mut watchers, &ring);
        assert_eq!(
            (told(&mut a), told(&mut all)),
            (vec!["5".into()], vec!["4".into(), "5".into()])
        );
    }

    #[test]
    fn who_comes_back_is_told_from_the_ring_and_of_the_rest_how_much_it_was() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        ring.push((8..=12).map(|revision| event(revision, "a")));
        let mut nothing = join(&mut watchers, "", 12);
        let mut some = join(&mut watchers, "", 10);
        let mut long = join(&mut watchers, "", 3);
        let mut other = join(&mut watchers, "b", 3);
        tell(&mut watchers, &ring);
        assert_eq!(told(&mut nothing), [""; 0]);
        assert_eq!(told(&mut some), ["11", "12"]);
        let missed = ["missed 4 upto 7", "8", "9", "10", "11", "12"];
        assert_eq!(told(&mut long), missed);
        assert_eq!(told(&mut other), ["missed 4 upto 7"]);
        assert_eq!(watchers.first(), 12);
    }

    #[test]
    fn a_ring_that_is_empty_after_a_start_tells_how_much_was_missed() {
        let mut watchers = Watchers::default();
        let mut notices = join(&mut watchers, "", 4);
        let since = |_| Since {
            batches: Vec::new(),
            latest: 9,
        };
        while watchers.tell(since) {}
        assert_eq!(told(&mut notices), ["missed 5 upto 9"]);
    }

    #[test]
    fn who_does_not_read_is_left_alone_and_told_all_when_it_reads_again() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut slow = join(&mut watchers, "", 0);
        for revision in 1..=192 {
            ring.push([event(revision, "a")]);
            tell(&mut watchers, &ring);
        }
        assert_eq!(watchers.first(), QUEUE as u64);
        let mut seen = Vec::new();
        while let more @ [_, ..] = &*told(&mut slow) {
            seen.extend_from_slice(more);
            tell(&mut watchers, &ring);
        }
        let all: Vec<String> = (1..=192).map(|revision| revision.to_string()).collect();
        assert_eq!(seen, all);
        // What the ring has forgotten meanwhile is missed.
        ring.push((193..=300).map(|revision| event(revision, "a")));
        tell(&mut watchers, &ring);
        ring.push((301..=400).map(|revision| event(revision, "a")));
        tell(&mut watchers, &ring);
        ring.push((401..=500).map(|revision| event(revision, "a")));
        tell(&mut watchers, &ring);
        ring.0.borrow_mut().drain(..195);
        ring.push((501..=600).map(|revision| event(revision, "a")));
        let queued = told(&mut slow);
        let last: u64 = queued.last().unwrap().parse().unwrap();
        assert!(queued[0] == "193" && last < 500, "{queued:?}");
        tell(&mut watchers, &ring);
        let missed = format!("missed {} upto 500", 500 - last);
        assert_eq!(told(&mut slow)[..2], [missed, "501".to_owned()]);
    }

    #[test]
    fn all_who_stand_at_one_place_are_told_one_batch_and_it_has_an_end() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut readers = [(); 3].map(|()| join(&mut watchers, "", 0));
        ring.push((1..=1_000).map(|revision| event(revision, "a")));
        tell(&mut watchers, &ring);
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
    fn who_is_gone_is_forgotten() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        drop(join(&mut watchers, "", 0));
        tell(&mut watchers, &ring);
        watchers.sweep();
        assert!(watchers.groups.is_empty());
        let quiet = join(&mut watchers, "quiet", 0);
        tell(&mut watchers, &ring);
        drop(quiet);
        watchers.sweep();
        assert!(watchers.groups.is_empty());
    }
}

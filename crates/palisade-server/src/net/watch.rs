//! The feed of changes behind both watches, gRPC's and SSE's.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► one task ──┬─► prefix a/ ─► queue · queue · queue
//!                                             │       └─► prefix    ─► queue · queue
//!                                             └─ who is slow or came back is told from the ring,
//!                                                from where it stood, when its queue has room
//! ```
//!
//! One task for all watchers, off the ordering thread. A change is compared once with each prefix, and only
//! watchers that want it cost anything. One whose queue is full costs nothing until it reads again. It is
//! told then what is still in the ring, and of the rest how much it was: nobody is dropped for being slow.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use palisade_core::Event;
use palisade_proto::Code;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::app::App;
use super::convert::Refusal;

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
pub(super) fn watch(app: &Arc<App>, wish: Wish) -> Result<Notices, Refusal> {
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
    let (sender, notices) = mpsc::channel(QUEUE);
    app.feed.join(
        app,
        Watcher {
            prefix: wish.prefix,
            position,
            sender,
        },
    );
    Ok(Notices {
        notices,
        _place: place,
    })
}

/// What one watcher is told, as it comes.
pub(super) struct Notices {
    notices: mpsc::Receiver<Notice>,
    _place: Place,
}

impl Stream for Notices {
    type Item = Notice;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        self.notices.poll_recv(cx)
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
pub(super) struct Feed(Mutex<Option<mpsc::UnboundedSender<Watcher>>>);

impl Feed {
    fn join(&self, app: &Arc<App>, watcher: Watcher) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = match &*task {
            Some(task) => match task.send(watcher) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
            None => watcher,
        };
        let (sender, joining) = mpsc::unbounded_channel();
        let _ = sender.send(watcher);
        *task = Some(sender);
        tokio::spawn(feed(Arc::clone(app), joining));
    }
}

async fn feed(app: Arc<App>, mut joining: mpsc::UnboundedReceiver<Watcher>) {
    let mut news = app.handle.news();
    let mut watchers = Watchers::at(app.handle.revision());
    let mut draining = pin!(app.draining());
    loop {
        let look = if watchers.behind.is_empty() {
            SWEEP
        } else {
            LOOK
        };
        tokio::select! {
            () = &mut draining => return,
            changed = news.changed() => if changed.is_err() {
                return;
            },
            joined = joining.recv() => watchers.behind.extend(joined),
            () = tokio::time::sleep(look) => {}
        }
        while let Ok(joined) = joining.try_recv() {
            watchers.behind.push(joined);
        }
        while watchers.tell(|revision| app.handle.since(revision)) {
            tokio::task::yield_now().await;
        }
        watchers.sweep();
        // Under load one round for many batches.
        tokio::time::sleep(PACE).await;
    }
}

/// One watcher, as far as it was told.
struct Watcher {
    prefix: Box<str>,
    /// The last revision that it was told, or did not want. Those in a group stand where the group does.
    position: u64,
    sender: mpsc::Sender<Notice>,
}

/// All watchers: those that are up to date, by their prefixes, and those that are not.
struct Watchers {
    position: u64,
    groups: BTreeMap<Box<str>, Vec<Watcher>>,
    behind: Vec<Watcher>,
}

impl Watchers {
    fn at(position: u64) -> Watchers {
        Watchers {
            position,
            groups: BTreeMap::new(),
            behind: Vec::new(),
        }
    }

    /// Tells everybody what came since the last time, as far as it was asked for at once. Says whether there
    /// is more to tell at once.
    fn tell(&mut self, since: impl Fn(u64) -> crate::pipeline::Since) -> bool {
        let news = since(self.position);
        for batch in &news.batches {
            self.tell_groups(batch);
        }
        let mut more = self.position < news.latest && !news.batches.is_empty();
        let behind = std::mem::take(&mut self.behind);
        for mut watcher in behind {
            match watcher.catch_up(&since) {
                Told::All if watcher.position == self.position => {
                    let group = self.groups.entry(watcher.prefix.clone()).or_default();
                    group.push(watcher);
                    continue;
                }
                Told::All | Told::Some => more = true,
                Told::Full => {}
                Told::Gone => continue,
            }
            self.behind.push(watcher);
        }
        more
    }

    fn tell_groups(&mut self, batch: &[Event]) {
        let Some((first, last)) = batch.first().zip(batch.last()) else {
            return;
        };
        let gap = gap(self.position, first.revision);
        for (prefix, group) in &mut self.groups {
            let wanted: Vec<&Event> = batch
                .iter()
                .filter(|event| event.revision > self.position)
                .filter(|event| event.lock.starts_with(&**prefix))
                .collect();
            if wanted.is_empty() && gap.is_none() {
                continue;
            }
            for mut watcher in std::mem::take(group) {
                watcher.position = self.position;
                match watcher.tell(gap.as_ref(), &wanted) {
                    Told::Gone => {}
                    Told::All => group.push(watcher),
                    Told::Some | Told::Full => self.behind.push(watcher),
                }
            }
        }
        self.position = self.position.max(last.revision);
    }

    /// Forgets who is gone.
    fn sweep(&mut self) {
        self.groups.retain(|_, group| {
            group.retain(|watcher| !watcher.sender.is_closed());
            !group.is_empty()
        });
    }
}

/// How far a watcher was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// All there is.
    All,
    /// What was asked for at once.
    Some,
    /// As much as fits its queue.
    Full,
    /// It is gone.
    Gone,
}

impl Watcher {
    /// Tells it what is in the ring from where it stands.
    fn catch_up(&mut self, since: impl Fn(u64) -> crate::pipeline::Since) -> Told {
        if self.sender.is_closed() {
            return Told::Gone;
        }
        if self.sender.capacity() == 0 {
            return Told::Full;
        }
        let known = since(self.position);
        let first = known.batches.first().and_then(|batch| batch.first());
        let next = first.map_or(known.latest + 1, |event| event.revision);
        let gap = gap(self.position, next);
        let events = known.batches.iter().flat_map(|batch| batch.iter());
        let (position, mut last) = (self.position, next - 1);
        let wanted: Vec<&Event> = events
            .inspect(|event| last = event.revision)
            .filter(|event| event.revision > position && event.lock.starts_with(&*self.prefix))
            .collect();
        match self.tell(gap.as_ref(), &wanted) {
            Told::All => {
                self.position = self.position.max(last);
                if self.position < known.latest {
                    Told::Some
                } else {
                    Told::All
                }
            }
            other => other,
        }
    }

    /// Puts into its queue what it wants; where that is full, it stands before what did not fit.
    fn tell(&mut self, gap: Option<&Notice>, wanted: &[&Event]) -> Told {
        let changes = wanted.iter().map(|event| Notice::Change((*event).clone()));
        for notice in gap.cloned().into_iter().chain(changes) {
            let revision = match &notice {
                Notice::Change(event) => event.revision,
                Notice::Missed { upto, .. } => *upto,
            };
            match self.sender.try_send(notice) {
                Ok(()) => self.position = revision,
                Err(TrySendError::Full(_)) => return Told::Full,
                Err(TrySendError::Closed(_)) => return Told::Gone,
            }
        }
        Told::All
    }
}

/// What lies between the last revision told and the next one that is known.
fn gap(position: u64, next: u64) -> Option<Notice> {
    let upto = next.checked_sub(1)?;
    let missed = upto.checked_sub(position).filter(|missed| *missed > 0)?;
    Some(Notice::Missed { missed, upto })
}

/// Notices that wait for one watcher.
const QUEUE: usize = 64;

/// How often is looked whether a slow watcher reads again, and whether one is gone.
const LOOK: Duration = Duration::from_millis(20);
const SWEEP: Duration = Duration::from_secs(1);

/// Between two rounds.
const PACE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use palisade_core::{Change, ClientId, LockName, Timestamp, Token, Ttl};

    use super::*;
    use crate::pipeline::Since;

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

    fn join(watchers: &mut Watchers, prefix: &str, position: u64) -> mpsc::Receiver<Notice> {
        let (sender, notices) = mpsc::channel(QUEUE);
        watchers.behind.push(Watcher {
            prefix: prefix.into(),
            position,
            sender,
        });
        notices
    }

    fn told(notices: &mut mpsc::Receiver<Notice>) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(notice) = notices.try_recv() {
            told.push(match notice {
                Notice::Change(event) => event.revision.to_string(),
                Notice::Missed { missed, upto } => format!("missed {missed} upto {upto}"),
            });
        }
        told
    }

    fn tell(watchers: &mut Watchers, ring: &Ring) {
        while watchers.tell(|revision| ring.since(revision)) {}
    }

    #[test]
    fn a_prefix_picks_out_its_locks_and_other_changes_are_not_missed() {
        let (ring, mut watchers) = (Ring::default(), Watchers::at(0));
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
        let (ring, mut watchers) = (Ring::default(), Watchers::at(0));
        for revision in 8..=12 {
            ring.push([event(revision, "a")]);
        }
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
        assert_eq!(watchers.behind.len(), 0);
    }

    #[test]
    fn a_ring_that_is_empty_after_a_start_tells_how_much_was_missed() {
        let mut watchers = Watchers::at(9);
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
        let (ring, mut watchers) = (Ring::default(), Watchers::at(0));
        let mut slow = join(&mut watchers, "", 0);
        let most = QUEUE as u64;
        for revision in 1..=3 * most {
            ring.push([event(revision, "a")]);
            tell(&mut watchers, &ring);
        }
        assert_eq!(
            (watchers.behind.len(), watchers.behind[0].position),
            (1, most)
        );
        assert!(watchers.groups.values().all(Vec::is_empty));
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(told(&mut slow));
            tell(&mut watchers, &ring);
        }
        let all: Vec<String> = (1..=3 * most)
            .map(|revision| revision.to_string())
            .collect();
        assert_eq!(seen, all);
        // What the ring has forgotten meanwhile is missed.
        ring.push((193..=300).map(|revision| event(revision, "a")));
        tell(&mut watchers, &ring);
        ring.push((301..=400).map(|revision| event(revision, "a")));
        ring.0.borrow_mut().drain(..3 * QUEUE + 1);
        let first = told(&mut slow);
        assert_eq!(
            (first.first().unwrap().as_str(), first.len()),
            ("193", QUEUE)
        );
        tell(&mut watchers, &ring);
        assert_eq!(told(&mut slow)[..2], ["missed 44 upto 300", "301"]);
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let (ring, mut watchers) = (Ring::default(), Watchers::at(0));
        drop(join(&mut watchers, "", 0));
        tell(&mut watchers, &ring);
        assert_eq!(watchers.behind.len(), 0);
        let quiet = join(&mut watchers, "quiet", 0);
        tell(&mut watchers, &ring);
        drop(quiet);
        watchers.sweep();
        assert!(watchers.groups.is_empty());
    }
}

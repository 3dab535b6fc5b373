//! Holders that hear of their grants as soon as the authority knows.
//!
//! ```text
//!   events ──── an end: found by (lock, number) ─────────────► listener ──► its task
//!   queues ──── noted by lock ──► at most every PAUSE, one ──► every listener of the lock
//!                                 task tells how many wait
//! ```
//!
//! The ordering thread looks only at locks that somebody listens for, and at nothing while nobody does. An end costs it one
//! look, however many others hold the lock. What a queue does is told from a task of its own, which tells only the latest
//! number, and rests longer the more listeners it has told: a queue that changes a thousand times a second costs as much as
//! one that changes ten times.
//!
//! A listener first names a grant, then asks for its state ([`Request::Listen`](crate::Request::Listen)) and
//! [settles](Listener::settle) it. Whatever happens after the state was read is told, and nothing is told before the state has
//! shown that the listener knows the grant's secret.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade_core::{Change, Ending, Event, GrantState, LockName, Token};
use tokio::runtime;
use tokio::sync::Notify;

use super::request::Listened;

/// A grant, as listeners name it: its lock and its number.
type GrantName = (LockName, Token);

/// A grant of a lock by its number, and one of its listeners.
type ListenerKey = (Token, u64);

/// A message to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// News of one of its grants.
    News {
        /// The lock.
        lock: LockName,
        /// The grant's number.
        number: Token,
        /// The news.
        news: News,
    },
    /// This node tells nothing more: it no longer leads, or it stops. The listener has no grants any more.
    NotHere,
}

/// News of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is over. The listener no longer has it.
    Ended {
        /// How; `None` if the authority knows no such grant, or the secret is not its secret.
        how: Option<Ending>,
        /// The operator's reason, if it is known here.
        reason: Option<Box<str>>,
    },
    /// So many requests wait for its lock: more than the holder knew of, or none any more.
    Wanted(u32),
}

/// All listeners.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// Whether there is any grant.
    on: AtomicBool,
    book: Mutex<Book>,
    /// A queue has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Book {
    /// The listeners of each lock's grants.
    grants: HashMap<LockName, BTreeMap<ListenerKey, Arc<UnreadNews>>>,
    /// How many requests wait for locks whose queues have changed, until their listeners are told.
    queues: BTreeMap<LockName, u32>,
    listeners: u64,
    /// Whether the task runs that tells of queues.
    telling: bool,
}

impl Listening {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of grants that ended. Grows with the ends in the batch and with the listeners of these very grants.
    pub(super) fn events(&self, batch: &[Event]) {
        let mut book = self.book();
        for event in batch {
            if let Change::Ended { how, reason, .. } = &event.change {
                let number = event.shared.map_or(event.token, |id| id.0);
                let news = News::Ended {
                    how: Some(*how),
                    // An operator may have given none.
                    reason: reason.clone().filter(|reason| !reason.is_empty()),
                };
                for ear in book.remove_grant(&event.lock, number) {
                    ear.ended((event.lock.clone(), number), news.clone());
                }
            }
        }
        self.settle(&book);
    }

    /// Notes how many requests wait for locks that somebody listens for.
    pub(super) fn queues(&self, changed: Vec<(LockName, u32)>) {
        if changed.is_empty() {
            return;
        }
        let mut book = self.book();
        let before = book.queues.len();
        for (lock, waiters) in changed {
            if book.grants.contains_key(&lock) {
                book.queues.insert(lock, waiters);
            }
        }
        if before == 0 && !book.queues.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Nothing is told here any more.
    pub(super) fn end(&self) {
        let mut book = self.book();
        book.queues.clear();
        for (_, ears) in mem::take(&mut book.grants) {
            ears.into_values().for_each(|ear| ear.end());
        }
        self.settle(&book);
    }

    fn settle(&self, book: &Book) {
        self.on.store(!book.grants.is_empty(), Ordering::Release);
        if book.grants.is_empty() {
            // The task ends.
            self.changed.notify_one();
        }
    }

    /// Tells listeners how many requests wait, until nobody listens.
    async fn tell(self: Arc<Listening>) {
        let telling = Telling(&self);
        loop {
            self.changed.notified().await;
            let queues = {
                let mut book = self.book();
                if book.grants.is_empty() {
                    book.telling = false;
                    return mem::forget(telling);
                }
                mem::take(&mut book.queues)
            };
            let mut told = 0_u32;
            for (lock, waiters) in queues {
                let mut last = None;
                while let Some(ears) = self.some_of(&lock, last) {
                    last = ears.last().map(|(at, _)| *at);
                    for ((number, _), ear) in ears {
                        let tells = ear.waiting(&(lock.clone(), number), waiters);
                        told = told.saturating_add(tells.into());
                    }
                    tokio::task::yield_now().await;
                }
            }
            let pause = PAUSE + PAUSE_PER_LISTENER.saturating_mul(told);
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        }
    }

    /// The next listeners of a lock, so few that the ordering thread never waits long for the book.
    fn some_of(
        &self,
        lock: &LockName,
        after: Option<ListenerKey>,
    ) -> Option<Vec<(ListenerKey, Arc<UnreadNews>)>> {
        let book = self.book();
        let after = after.map_or(Unbounded, Excluded);
        let ears = book.grants.get(lock)?.range((after, Unbounded));
        let ears: Vec<_> = ears
            .take(AT_ONCE)
            .map(|(at, ear)| (*at, Arc::clone(ear)))
            .collect();
        (!ears.is_empty()).then_some(ears)
    }
}

/// Says that no task runs any more, if its runtime drops it.
struct Telling<'a>(&'a Listening);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.book().telling = false;
    }
}

impl Book {
    /// Removes all listeners of a grant.
    fn remove_grant(&mut self, lock: &LockName, number: Token) -> Vec<Arc<UnreadNews>> {
        let Some(ears) = self.grants.get_mut(lock) else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        while let Some((at, _)) = ears.range((number, 0)..=(number, u64::MAX)).next() {
            let at = *at;
            removed.extend(ears.remove(&at));
        }
        if ears.is_empty() {
            self.forget(lock);
        }
        removed
    }

    /// Removes one listener of a grant.
    fn remove(&mut self, (lock, number): &GrantName, listener: u64) {
        if let Some(ears) = self.grants.get_mut(lock) {
            ears.remove(&(*number, listener));
            if ears.is_empty() {
                self.forget(lock);
            }
        }
    }

    fn forget(&mut self, lock: &LockName) {
        self.grants.remove(lock);
        self.queues.remove(lock);
    }
}

/// The news that one listener has not read. It is bounded by the listener's grants: of each, only the latest is kept.
#[derive(Debug, Default)]
struct UnreadNews(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    grants: HashMap<GrantName, UnreadGrant>,
    /// Those that have news.
    ready: BTreeSet<GrantName>,
    ended: bool,
    waker: Option<Waker>,
}

/// The state of a grant, and how much of it its listener knows.
#[derive(Debug)]
struct UnreadGrant {
    /// Whether the listener has shown that it knows the grant's secret.
    proven: bool,
    /// How many waiting requests the listener knows of.
    known: u32,
    waiters: Option<u32>,
    ended: Option<News>,
}

impl UnreadGrant {
    /// What the listener has to be told.
    fn news(&self) -> Option<News> {
        if !self.proven {
            return None;
        }
        if let Some(ended) = &self.ended {
            return Some(ended.clone());
        }
        let waiters = self.waiters?;
        let tells = waiters > self.known || (waiters == 0 && self.known > 0);
        tells.then_some(News::Wanted(waiters))
    }
}

impl UnreadNews {
    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a grant. Returns whether its listener has something to read now.
    fn change(&self, named: &GrantName, change: impl FnOnce(&mut UnreadGrant)) -> bool {
        let mut unread = self.unread();
        let Some(told) = unread.grants.get_mut(named) else {
            return false;
        };
        change(told);
        let tells = told.news().is_some();
        if tells {
            unread.ready.insert(named.clone());
            unread.wake();
        }
        tells
    }

    fn ended(&self, named: GrantName, news: News) {
        self.change(&named, |told| told.ended = Some(news));
    }

    fn waiting(&self, named: &GrantName, waiters: u32) -> bool {
        self.change(named, |told| told.waiters = Some(waiters))
    }

    fn end(&self) {
        let mut unread = self.unread();
        unread.ended = true;
        unread.grants.clear();
        unread.ready.clear();
        unread.wake();
    }
}

impl Unread {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn next(&mut self) -> Option<Heard> {
        while let Some(named) = self.ready.pop_first() {
            let Some(told) = self.grants.get_mut(&named) else {
                continue;
            };
            // A queue may be as it was again.
            let Some(news) = told.news() else {
                continue;
            };
            match &news {
                News::Ended { .. } => drop(self.grants.remove(&named)),
                News::Wanted(waiters) => told.known = *waiters,
            }
            let (lock, number) = named;
            return Some(Heard::News { lock, number, news });
        }
        mem::take(&mut self.ended).then_some(Heard::NotHere)
    }
}

/// One listener: a long request, or a session. Dropping it ends it.
#[derive(Debug)]
pub struct Listener {
    listening: Arc<Listening>,
    ear: Arc<UnreadNews>,
    id: u64,
}

impl Listener {
    pub(super) fn new(listening: &Arc<Listening>) -> Listener {
        let mut book = listening.book();
        book.listeners += 1;
        Listener {
            ear: Arc::default(),
            id: book.listeners,
            listening: Arc::clone(listening),
        }
    }

    /// Begins to hear of a grant, of which `waiters` waiting requests are known. Its state is asked for after this. To name a
    /// grant again changes nothing.
    ///
    /// A task that tells of queues runs on the given runtime.
    pub fn name(&self, listened: &Listened, runtime: &runtime::Handle) {
        let lock = &listened.grant.lock;
        let (number, waiters) = (listened.number, listened.waiters);
        let named = (lock.clone(), number);
        let mut book = self.listening.book();
        let told = UnreadGrant {
            proven: false,
            known: waiters,
            waiters: None,
            ended: None,
        };
        if self.ear.unread().grants.contains_key(&named) {
            return;
        }
        self.ear.unread().grants.insert(named, told);
        let ears = book.grants.entry(lock.clone()).or_default();
        ears.insert((number, self.id), Arc::clone(&self.ear));
        self.listening.on.store(true, Ordering::Release);
        if !mem::replace(&mut book.telling, true) {
            runtime.spawn(Arc::clone(&self.listening).tell());
        }
    }

    /// The authority's answer about a grant that was named.
    pub fn settle(&self, lock: &LockName, number: Token, state: GrantState) {
        let named = (lock.clone(), number);
        if !matches!(state, GrantState::Live { .. }) {
            self.forget_grant(&named);
        }
        self.ear.change(&named, |told| {
            told.proven = true;
            let over = |how| News::Ended { how, reason: None };
            match state {
                // The number of a change since then is the newer one.
                GrantState::Live { waiters } => told.waiters = told.waiters.or(Some(waiters)),
                GrantState::Over(how) => {
                    told.ended.get_or_insert_with(|| over(Some(how)));
                }
                // The listener does not know the secret, so it is told nothing else.
                GrantState::Unknown => told.ended = Some(over(None)),
            }
        });
    }

    /// Hears no more of a grant.
    pub fn unname(&self, lock: &LockName, number: Token) {
        let named = (lock.clone(), number);
        self.forget_grant(&named);
        self.ear.unread().grants.remove(&named);
    }

    fn forget_grant(&self, named: &GrantName) {
        let mut book = self.listening.book();
        book.remove(named, self.id);
        self.listening.settle(&book);
    }

    /// The next message, if there is one now.
    pub fn try_next(&self) -> Option<Heard> {
        self.ear.unread().next()
    }

    /// Waits for a message.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Heard> {
        let mut unread = self.ear.unread();
        match unread.next() {
            Some(heard) => Poll::Ready(heard),
            None => {
                unread.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for a message.
    pub async fn next(&self) -> Heard {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let grants = mem::take(&mut self.ear.unread().grants);
        let mut book = self.listening.book();
        for named in grants.keys() {
            book.remove(named, self.id);
        }
        self.listening.settle(&book);
    }
}

/// Between two rounds that tell of queues, and an addition for each listener that was told something.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_PER_LISTENER: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Listeners of one lock that are told between two looks at the book.
const AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use palisade_core::{
        ClientId, Detail, GrantRef, LeaseId, LeaseKey, Principal, Slots, Span, Timestamp, WallTime,
    };
    use palisade_testbed::growth::{CROWDS, grows, least};
    use tokio::time::interval;

    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn name(lock: &str) -> LockName {
        LockName::new(lock).unwrap()
    }

    fn end(lock: &str, number: u64) -> Event {
        Event {
            revision: 1,
            at: Timestamp::ZERO,
            wall: WallTime::default(),
            lock: name(lock),
            client: Some(ClientId::new("a").unwrap()),
            token: token(number),
            shared: None,
            slots: Slots::NONE,
            by: Principal::ANONYMOUS,
            lease: Some(LeaseId(token(number))),
            held: Span::ZERO,
            detail: Detail::default(),
            change: Change::Ended {
                how: Ending::Revoked,
                reason: Some("why".into()),
                delayed: None,
            },
        }
    }

    fn listens(listener: &Listener, lock: &str, number: u64, runtime: &runtime::Handle) {
        let listened = Listened {
            grant: GrantRef {
                lock: name(lock),
                key: LeaseKey::from_bytes([1; 16]),
                token: Some(token(number)),
            },
            number: token(number),
            waiters: 0,
        };
        listener.name(&listened, runtime);
    }

    fn live(listener: &Listener, lock: &str, number: u64, waiters: u32) {
        listener.settle(&name(lock), token(number), GrantState::Live { waiters });
    }

    fn news(heard: Option<Heard>) -> Option<News> {
        heard.map(|heard| match heard {
            Heard::News { news, .. } => news,
            Heard::NotHere => panic!("it is here"),
        })
    }

    fn revoked(reason: Option<&str>) -> News {
        News::Ended {
            how: Some(Ending::Revoked),
            reason: reason.map(Box::from),
        }
    }

    #[tokio::test]
    async fn an_end_before_the_state_was_read_is_told_after_the_proof_and_never_without() {
        let (listening, runtime) = (Arc::<Listening>::default(), runtime::Handle::current());
        let [honest, forger] = [(); 2].map(|()| Listener::new(&listening));
        for listener in [&honest, &forger] {
            listens(listener, "x", 1, &runtime);
        }
        listening.events(&[end("x", 1), end("y", 1), end("x", 2)]);
        assert_eq!((honest.try_next(), forger.try_next()), (None, None));
        live(&honest, "x", 1, 0);
        forger.settle(&name("x"), token(1), GrantState::Unknown);
        assert_eq!(news(honest.try_next()), Some(revoked(Some("why"))));
        let (how, reason) = (None, None);
        assert_eq!(news(forger.try_next()), Some(News::Ended { how, reason }));
        assert!(!listening.is_on() && listening.book().grants.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_changes_a_thousand_times_is_told_as_one_that_changes_ten_times() {
        let (listening, runtime) = (Arc::<Listening>::default(), runtime::Handle::current());
        let listener = Listener::new(&listening);
        listens(&listener, "x", 1, &runtime);
        live(&listener, "x", 1, 0);
        let (mut told, mut waiters) = (Vec::new(), 0);
        for changes in [10, 1_000] {
            let mut heard = 0;
            // On the paused clock, a tick comes when nothing else is left to do.
            let mut gap = interval(Duration::from_secs(1) / changes);
            for _ in 0..changes {
                waiters += 1;
                listening.queues(vec![(name("x"), waiters), (name("nobodys"), 1)]);
                gap.tick().await;
                while listener.try_next().is_some() {
                    heard += 1;
                }
            }
            told.push(heard);
        }
        let [slow, quick] = &*told else {
            panic!("{told:?}");
        };
        let range = 5..=12;
        assert!(range.contains(slow) && range.contains(quick), "{told:?}");
        assert!(!listening.book().queues.contains_key("nobodys"));
        // Level-triggered: whatever happened, the last number is told.
        listening.queues(vec![(name("x"), 7_000)]);
        let mut later = interval(Duration::from_secs(1));
        later.tick().await;
        later.tick().await;
        let mut last = None;
        while let Some(heard) = listener.try_next() {
            last = Some(heard);
        }
        assert_eq!(news(last), Some(News::Wanted(7_000)));
    }

    #[tokio::test]
    async fn the_state_does_not_hide_a_later_number() {
        let (listening, runtime) = (Arc::<Listening>::default(), runtime::Handle::current());
        let listener = Listener::new(&listening);
        listens(&listener, "x", 1, &runtime);
        listener.ear.waiting(&(name("x"), token(1)), 3);
        assert_eq!(listener.try_next(), None, "nothing is proven");
        live(&listener, "x", 1, 1);
        assert_eq!(news(listener.try_next()), Some(News::Wanted(3)));
        listening.end();
        assert_eq!(listener.try_next(), Some(Heard::NotHere));
        assert!(!listening.is_on());
    }

    /// Beside others that listen for the same lock.
    #[tokio::test]
    async fn an_end_costs_the_same_beside_any_crowd_and_control_a_round_of_the_queue_does_not() {
        let runtime = runtime::Handle::current();
        let costs = CROWDS.map(|crowd| {
            let listening = Arc::<Listening>::default();
            let listeners: Vec<Listener> = (0..crowd)
                .map(|number| {
                    let listener = Listener::new(&listening);
                    listens(&listener, "x", number + 1_000, &runtime);
                    listener
                })
                .collect();
            let mut number = 0;
            let own = least(50, || {
                number += 1;
                let listener = Listener::new(&listening);
                listens(&listener, "x", number, &runtime);
                listening.events(&[end("x", number)]);
            });
            let nobodys = [end("y", 1)];
            let nobodys = least(50, || listening.events(&nobodys));
            let all = least(2, || {
                let (mut last, mut count) = (None, 0);
                while let Some(some) = listening.some_of(&name("x"), last) {
                    last = some.last().map(|(at, _)| *at);
                    count += some.len() as u64;
                }
                assert_eq!(count, crowd);
            });
            assert_eq!(listeners.len() as u64, crowd);
            [own, nobodys, all]
        });
        for (operation, is_control) in [(0, false), (1, false), (2, true)] {
            let costs = costs.map(|of_crowd| of_crowd[operation]);
            assert_eq!(grows(costs), is_control, "{operation}: {costs:?}");
        }
    }
}

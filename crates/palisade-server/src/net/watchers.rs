//! The watchers that the feed serves, and which of them an event is for.
//!
//! ```text
//!                 ┌── an event of a lock under their prefix: found by the prefix ──► sent ──┐ queue full
//!   current ──────┤                                                                         ▼
//!      ▲          └── an event of another lock: not looked at                             full
//!      │                                                                                    │ reads again
//!      └── has all that current watchers have ◄── behind, each at its own revision ◄────────┴── new with a revision
//! ```
//!
//! So the cost of an event depends on its own watchers, not on all watchers (A13).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use palisade_core::Event;
use tokio::sync::mpsc;

use super::gate::Prefixes;
use super::notice::{Notice, NoticeBatch};
use palisade_pipeline::{Since, bytes_of};

/// The last revision that watchers have processed, and the locks that they see.
pub(super) type WatchPosition = (u64, Prefixes);

pub(super) type Watcher = mpsc::Sender<Arc<NoticeBatch>>;

/// All watchers.
#[derive(Default)]
pub(super) struct Watchers {
    /// The revision that current watchers have processed, and no other watcher is ahead of for long.
    at: u64,
    current: HashMap<Prefixes, Vec<Watcher>>,
    by_prefix: ByPrefix,
    /// Those that get more at once, and those whose queues are full.
    behind: BTreeMap<WatchPosition, Vec<Watcher>>,
    full: BTreeMap<WatchPosition, Vec<Watcher>>,
    /// How many batches were sent since the counter was read.
    sent: usize,
}

/// The locks of current watchers, by each of their prefixes.
#[derive(Default)]
struct ByPrefix {
    of: HashMap<Box<str>, BTreeSet<Prefixes>>,
    /// How many prefixes are so long.
    lengths: BTreeMap<usize, usize>,
}

impl ByPrefix {
    fn insert(&mut self, prefixes: &Prefixes) {
        for prefix in &**prefixes {
            let of_prefix = self.of.entry(prefix.clone()).or_default();
            if of_prefix.is_empty() {
                *self.lengths.entry(prefix.len()).or_default() += 1;
            }
            of_prefix.insert(Arc::clone(prefixes));
        }
    }

    fn remove(&mut self, prefixes: &Prefixes) {
        for prefix in &**prefixes {
            if let Some(of_prefix) = self.of.get_mut(prefix)
                && of_prefix.remove(prefixes)
                && of_prefix.is_empty()
            {
                self.of.remove(prefix);
                if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&prefix.len());
                    }
                }
            }
        }
    }

    /// Returns the watchers of a lock. None of their prefixes begins with another one, so each is found once.
    fn watching<'a>(&'a self, lock: &'a str) -> impl Iterator<Item = &'a Prefixes> {
        let lengths = self.lengths.range(..=lock.len());
        let prefixes = lengths.filter_map(|(length, _)| self.of.get(lock.get(..*length)?));
        prefixes.flatten()
    }
}

/// The notices that current watchers of the same locks get in a round.
#[derive(Default)]
struct RoundNotices {
    notices: Vec<Notice>,
    bytes: usize,
    /// Up to which revision it goes, if it is full.
    upto: Option<u64>,
}

impl Watchers {
    pub(super) fn join(&mut self, position: WatchPosition, watchers: Vec<Watcher>) {
        put(&mut self.behind, position, watchers);
    }

    /// How many batches were sent since this was asked last.
    pub(super) fn take_sent(&mut self) -> usize {
        mem::take(&mut self.sent)
    }

    pub(super) fn some_are_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Those that read again get more.
    pub(super) fn look_at_full(&mut self) {
        for (position, watchers) in mem::take(&mut self.full) {
            let (reading, full) = watchers.into_iter().partition(has_room);
            put(&mut self.behind, position.clone(), reading);
            put(&mut self.full, position, full);
        }
    }

    /// Sends one batch to every watcher that is behind and has room. Returns whether more can be sent at once.
    pub(super) fn send_round(&mut self, since: impl Fn(u64) -> Since) -> bool {
        let more = self.send_to_current(&since);
        self.send_to_behind(&since) || more
    }

    fn send_to_current(&mut self, since: &impl Fn(u64) -> Since) -> bool {
        let known = Backlog::since(self.at, since);
        let before = mem::replace(&mut self.at, known.upto);
        if self.current.is_empty() {
            self.at = known.latest;
            return false;
        }
        if known.gap.is_some() {
            // It is for everybody.
            self.by_prefix = ByPrefix::default();
            for (prefixes, watchers) in mem::take(&mut self.current) {
                put(&mut self.behind, (before, prefixes), watchers);
            }
            return false;
        }
        for (prefixes, news) in self.news(&known) {
            self.by_prefix.remove(&prefixes);
            let watchers = self.current.remove(&prefixes).unwrap_or_default();
            let position = (before, Arc::clone(&prefixes));
            let served = self.send(watchers, position, news.notices);
            self.arrive((news.upto.unwrap_or(self.at), prefixes), served);
        }
        known.upto < known.latest
    }

    /// Collects the news for current watchers.
    fn news(&self, known: &Backlog) -> BTreeMap<Prefixes, RoundNotices> {
        let mut all: BTreeMap<Prefixes, RoundNotices> = BTreeMap::new();
        for event in known.events() {
            for prefixes in self.by_prefix.watching(event.lock.as_str()) {
                let news = match all.get_mut(prefixes) {
                    Some(news) => news,
                    None => all.entry(Arc::clone(prefixes)).or_default(),
                };
                if news.upto.is_none() {
                    news.bytes += bytes_of(event);
                    news.notices.push(Notice::Change(event.clone()));
                    news.upto = (news.bytes >= BATCH).then_some(event.revision);
                }
            }
        }
        all
    }

    fn send_to_behind(&mut self, since: &impl Fn(u64) -> Since) -> bool {
        let mut known: Option<Backlog> = None;
        let mut more = false;
        // A watcher that is ahead joined when the authority was ahead, and waits for the others.
        let ahead = self.behind.split_off(&(self.at + 1, Prefixes::default()));
        for ((revision, prefixes), watchers) in mem::replace(&mut self.behind, ahead) {
            if revision == self.at {
                self.arrive((revision, prefixes), watchers);
                continue;
            }
            let known = match &mut known {
                Some(known) if known.from == revision => known,
                known => known.insert(Backlog::since(revision, since)),
            };
            let (notices, upto) = known.for_prefixes(&prefixes, self.at);
            let served = self.send(watchers, (revision, Arc::clone(&prefixes)), notices);
            more |= !served.is_empty() && upto < self.at;
            self.arrive((upto, prefixes), served);
        }
        more
    }

    /// Watchers have processed everything up to here.
    fn arrive(&mut self, (revision, prefixes): WatchPosition, watchers: Vec<Watcher>) {
        if watchers.is_empty() || revision != self.at {
            return put(&mut self.behind, (revision, prefixes), watchers);
        }
        if !self.current.contains_key(&prefixes) {
            self.by_prefix.insert(&prefixes);
        }
        self.current.entry(prefixes).or_default().extend(watchers);
    }

    /// Sends to those that have room, and returns them; the others stay where they are.
    fn send(
        &mut self,
        watchers: Vec<Watcher>,
        position: WatchPosition,
        notices: Vec<Notice>,
    ) -> Vec<Watcher> {
        let (mut reading, full) = watchers.into_iter().partition::<Vec<_>, _>(has_room);
        put(&mut self.full, position, full);
        if !notices.is_empty() && !reading.is_empty() {
            let batch = NoticeBatch::new(notices);
            // Nobody else sends, so a watcher that had room still has it.
            reading.retain(|watcher| watcher.try_send(Arc::clone(&batch)).is_ok());
            self.sent += reading.len();
        }
        reading
    }

    /// Removes watchers that are gone.
    pub(super) fn sweep(&mut self) {
        let is_there = |watchers: &mut Vec<Watcher>| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        };
        self.behind.retain(|_, watchers| is_there(watchers));
        self.full.retain(|_, watchers| is_there(watchers));
        self.current.retain(|prefixes, watchers| {
            let stays = is_there(watchers);
            if !stays {
                self.by_prefix.remove(prefixes);
            }
            stays
        });
    }
}

fn put(
    into: &mut BTreeMap<WatchPosition, Vec<Watcher>>,
    position: WatchPosition,
    watchers: Vec<Watcher>,
) {
    if !watchers.is_empty() {
        into.entry(position).or_default().extend(watchers);
    }
}

/// Whether a batch can be sent to it now; it is forgotten then if it is gone.
fn has_room(watcher: &Watcher) -> bool {
    watcher.capacity() > 0 || watcher.is_closed()
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

    fn events(&self) -> impl Iterator<Item = &Event> {
        let events = self.batches.iter().flat_map(|batch| batch.iter());
        events.filter(|event| event.revision > self.from)
    }

    /// The notices for watchers of these locks up to a revision, and their last revision, which is later if the missed
    /// changes go further.
    fn for_prefixes(&self, prefixes: &[Box<str>], limit: u64) -> (Vec<Notice>, u64) {
        let mut notices: Vec<Notice> = self.gap.iter().cloned().collect();
        let mut bytes = 0;
        for event in self.events().take_while(|event| event.revision <= limit) {
            let mut prefixes = prefixes.iter();
            if prefixes.any(|prefix| event.lock.starts_with(&**prefix)) {
                bytes += bytes_of(event);
                notices.push(Notice::Change(event.clone()));
                if bytes >= BATCH {
                    return (notices, event.revision);
                }
            }
        }
        let missed = match self.gap {
            Some(Notice::Missed { upto, .. }) => upto,
            _ => 0,
        };
        (notices, self.upto.min(limit).max(missed))
    }
}

/// The gap between the last revision sent and the next one that is known.
fn gap(position: u64, next: u64) -> Option<Notice> {
    let upto = next.checked_sub(1)?;
    let missed = upto.checked_sub(position).filter(|missed| *missed > 0)?;
    Some(Notice::Missed { missed, upto })
}

/// How many batches wait for one watcher, and the bytes of events with which a batch is full.
pub(super) const QUEUE: usize = 2;
const BATCH: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bytes::Bytes;
    use palisade_core::{
        Change, ClientId, Detail, LeaseId, LockName, Principal, Slots, Span, Timestamp, Token, Ttl,
        WallTime,
    };

    use super::*;
    use palisade_testbed::growth::{CROWDS, grows, least};

    fn event(revision: u64, lock: &str) -> Event {
        Event {
            revision,
            at: Timestamp::ZERO,
            wall: WallTime::default(),
            lock: LockName::new(lock).unwrap(),
            client: Some(ClientId::new("a").unwrap()),
            token: Token::FIRST,
            shared: None,
            slots: Slots::NONE,
            by: Principal::ANONYMOUS,
            lease: Some(LeaseId(Token::FIRST)),
            held: Span::ZERO,
            detail: Detail::default(),
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
    fn join(
        watchers: &mut Watchers,
        prefix: &str,
        revision: u64,
    ) -> mpsc::Receiver<Arc<NoticeBatch>> {
        let (sender, batches) = mpsc::channel(QUEUE);
        let prefixes = prefix.split(' ').map(Box::from).collect();
        watchers.join((revision, prefixes), vec![sender]);
        batches
    }

    fn received(batches: &mut mpsc::Receiver<Arc<NoticeBatch>>) -> Vec<String> {
        let mut received = Vec::new();
        while let Ok(batch) = batches.try_recv() {
            received.extend(batch.notices.iter().map(|notice| match notice {
                Notice::Change(event) => event.revision.to_string(),
                Notice::Missed { missed, upto } => format!("missed {missed} upto {upto}"),
            }));
        }
        received
    }

    /// The lowest revision of all watchers.
    fn first(watchers: &Watchers) -> u64 {
        let current = (!watchers.current.is_empty()).then_some(watchers.at);
        let others = [&watchers.behind, &watchers.full].into_iter();
        let others = others.filter_map(|some| Some(some.first_key_value()?.0.0));
        others.chain(current).min().unwrap()
    }

    fn is_empty(watchers: &Watchers) -> bool {
        let by_prefix = &watchers.by_prefix;
        watchers.current.is_empty()
            && watchers.behind.is_empty()
            && watchers.full.is_empty()
            && by_prefix.of.is_empty()
            && by_prefix.lengths.is_empty()
    }

    fn send_all(watchers: &mut Watchers, ring: &Ring) {
        watchers.look_at_full();
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
        assert_eq!(first(&watchers), 12);
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
        assert_eq!(first(&watchers), QUEUE as u64);
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
        assert!(is_empty(&watchers));
        let quiet = join(&mut watchers, "quiet", 0);
        send_all(&mut watchers, &ring);
        drop(quiet);
        watchers.sweep();
        assert!(is_empty(&watchers));
    }

    /// An event of one lock, before which so many are missing. `own` reads its notices.
    fn serve(
        watchers: &mut Watchers,
        own: &mut mpsc::Receiver<Arc<NoticeBatch>>,
        (next, missing): (&mut u64, u64),
        lock: &str,
    ) {
        *next += 1 + missing;
        let (batch, latest) = (Arc::from([event(*next, lock)]), *next);
        let since = |revision| Since {
            batches: Vec::from_iter((revision < latest).then(|| Arc::clone(&batch))),
            latest,
        };
        while watchers.send_round(since) {}
        let _ = own.try_recv();
    }

    /// The control is an event before which others are missing: every watcher gets a notice.
    #[test]
    fn an_event_costs_no_more_beside_watchers_of_other_locks() {
        let costs = CROWDS.map(|crowd| {
            let (mut watchers, mut next) = (Watchers::default(), 0);
            let crowd = (0..crowd).map(|n| join(&mut watchers, &format!("crowd/{n}"), 0));
            let mut crowd: Vec<_> = crowd.collect();
            let mut own = join(&mut watchers, "own", 0);
            serve(&mut watchers, &mut own, (&mut next, 0), "nobodys");
            let mut least = |repeats, missing, lock| {
                least(repeats, || {
                    serve(&mut watchers, &mut own, (&mut next, missing), lock);
                })
            };
            let costs = [
                least(50, 0, "own"),
                least(50, 0, "nobodys"),
                least(1, 1, "nobodys"),
            ];
            assert!(received(&mut crowd[0])[0].starts_with("missed 1"));
            costs
        });
        println!("{costs:?}");
        for (operation, is_control) in [(0, false), (1, false), (2, true)] {
            let costs = costs.map(|of_crowd| of_crowd[operation]);
            assert_eq!(grows(costs), is_control, "{costs:?}");
        }
    }

    /// A watcher that joins ahead of the events read so far, and those that come back, get each change once.
    #[test]
    fn watchers_that_come_at_any_revision_get_each_change_once() {
        let (ring, mut watchers) = (Ring::default(), Watchers::default());
        let mut joined = Vec::new();
        for revision in 1..=60_u64 {
            ring.push([event(revision, if revision % 3 == 0 { "a/1" } else { "b" })]);
            for after in [revision, revision.saturating_sub(7)] {
                let prefix = ["a/", "b a/", ""][(revision % 3) as usize];
                joined.push((
                    after,
                    prefix,
                    join(&mut watchers, prefix, after),
                    Vec::new(),
                ));
            }
            if revision % 4 == 0 {
                send_all(&mut watchers, &ring);
            }
            for (_, _, batches, got) in joined.iter_mut().skip((revision % 5) as usize) {
                got.extend(received(batches));
            }
        }
        for _ in 0..60 {
            send_all(&mut watchers, &ring);
            for (_, _, batches, got) in &mut joined {
                got.extend(received(batches));
            }
        }
        for (after, prefix, _, got) in joined {
            let all = after + 1..=60;
            let all = all.filter(|revision| prefix != "a/" || revision % 3 == 0);
            let all: Vec<String> = all.map(|revision| revision.to_string()).collect();
            assert_eq!(got, all, "{prefix} after {after}");
        }
        assert!(watchers.behind.is_empty() && watchers.full.is_empty());
    }
}

//! Deadlines: a hierarchical timing wheel with lazy renewal.
//!
//! ```text
//!   level 0   64 slots of 1 tick        a slot is a doubly linked list of timers
//!   level 1   64 slots of 64 ticks      (links by slot number, no allocation per timer)
//!   …
//!   level 5   64 slots of 64^5 ticks    2^36 ms = 2.2 years
//! ```
//!
//! A timer is put in once. When its deadline moves later nothing is done here: the wheel finds out
//! when it gets to the old place, asks its owner, and puts the timer where it belongs now. A renewal
//! therefore costs the wheel nothing (Varghese and Lauck 1987, scheme 7, for the hierarchy).
//!
//! A tick is a millisecond. A timer fires at the first tick at or after its deadline: never early.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::time::Timestamp;

/// A timer: the number of its owner's slot.
type Timer = u32;

/// No timer.
const NIL: Timer = Timer::MAX;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 6;
const PLACES: usize = LEVELS * SLOTS;

/// Numbers from here on are no timers: `FIRST_OF + place` stands before the first timer of a place, and
/// [`NIL`] behind the last one.
const FIRST_OF: Timer = NIL - PLACES as Timer;

/// Timers by the slot numbers of their owners' table.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// Every tick up to this one has been worked off.
    elapsed: u64,
    /// No occupied place begins before this tick.
    soonest: u64,
    occupied: [u64; LEVELS],
    heads: Box<[Timer]>,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// [`NIL`] of a timer that is not in.
    prev: Timer,
    next: Timer,
}

const LOOSE: Link = Link {
    prev: NIL,
    next: NIL,
};

impl Wheel {
    /// A wheel that has worked off everything up to `now`.
    pub(super) fn new(now: Timestamp) -> Wheel {
        let heads = vec![NIL; PLACES].into_boxed_slice();
        Wheel {
            elapsed: floor_tick(now),
            soonest: u64::MAX,
            occupied: [0; LEVELS],
            heads,
            links: Vec::new(),
        }
    }

    /// Makes room for this many timers at once.
    pub(super) fn reserve(&mut self, timers: usize) {
        self.links.reserve(timers);
    }

    /// Gives back room for timers that never were.
    pub(super) fn fit(&mut self) {
        self.links.shrink_to_fit();
    }

    /// Puts a timer in. It must not be in already.
    pub(super) fn insert(&mut self, timer: Timer, due: Timestamp) {
        let tick = ceil_tick(due).max(self.elapsed + 1);
        if self.links.len() <= timer as usize {
            self.links.resize(timer as usize + 1, LOOSE);
        }
        let (level, slot) = self.place(tick);
        let place = level * SLOTS + slot;
        let head = self.heads[place];
        let is_in = self.links[timer as usize].prev != NIL;
        assert!(!is_in, "timer {timer} is put in twice");
        self.links[timer as usize] = Link {
            prev: FIRST_OF + place as Timer,
            next: head,
        };
        if head != NIL {
            self.links[head as usize].prev = timer;
        }
        self.heads[place] = timer;
        self.occupied[level] |= 1 << slot;
        self.soonest = self.soonest.min(self.start(level, slot as u64));
    }

    /// Takes a timer out; nothing happens if it is not in.
    pub(super) fn remove(&mut self, timer: Timer) {
        let Some(link) = self.links.get_mut(timer as usize) else {
            return;
        };
        let Link { prev, next } = core::mem::replace(link, LOOSE);
        if prev == NIL {
            return;
        }
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
        if prev < FIRST_OF {
            let link = &mut self.links[prev as usize];
            assert_eq!(
                link.next, timer,
                "the timer before another one is not linked to it"
            );
            link.next = next;
            return;
        }
        let place = (prev - FIRST_OF) as usize;
        assert_eq!(
            self.heads[place], timer,
            "the first timer of a place is another one"
        );
        self.heads[place] = next;
        if next == NIL {
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        }
    }

    /// Works off every tick up to `now` if there is no timer at them, as nearly always; returns whether
    /// it did.
    #[inline]
    pub(super) fn pass(&mut self, now: Timestamp) -> bool {
        let now_tick = floor_tick(now);
        let free = now_tick < self.soonest;
        if free {
            self.elapsed = self.elapsed.max(now_tick);
        }
        free
    }

    /// Works off every tick up to `now`: timers that are due by `due_of` leave the wheel and go to
    /// `fire`, in no particular order; the others move to where they belong.
    pub(super) fn advance(
        &mut self,
        now: Timestamp,
        due_of: impl Fn(Timer) -> Timestamp,
        mut fire: impl FnMut(Timer),
    ) {
        let now_tick = floor_tick(now);
        loop {
            let first = self.next_place();
            self.soonest = first.map_or(u64::MAX, |(_, start)| start);
            let Some((place, start)) = first.filter(|(_, start)| *start <= now_tick) else {
                break;
            };
            self.elapsed = self.elapsed.max(start);
            let mut timer = core::mem::replace(&mut self.heads[place], NIL);
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
            while timer != NIL {
                let next = core::mem::replace(&mut self.links[timer as usize], LOOSE).next;
                let due = due_of(timer);
                if is_due(due, now) {
                    fire(timer);
                } else {
                    self.insert(timer, due);
                }
                timer = next;
            }
        }
        self.elapsed = self.elapsed.max(now_tick);
    }

    /// When the wheel next wants [`Wheel::advance`]: never later than the first deadline, perhaps
    /// earlier (to move timers on).
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.next_place()
            .map(|(_, start)| Timestamp::from_millis(start))
    }

    /// The level a tick belongs to now, and the slot there.
    fn place(&self, tick: u64) -> (usize, usize) {
        let differing = (tick ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / BITS) as usize;
        let level = level.min(LEVELS - 1);
        (level, (tick >> (level as u32 * BITS)) as usize % SLOTS)
    }

    /// The first occupied place and the tick at which its span begins.
    fn next_place(&self) -> Option<(usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.occupied[level];
            if occupied == 0 {
                return None;
            }
            let shift = level as u32 * BITS;
            let current = (self.elapsed >> shift) % SLOTS as u64;
            let ahead = u64::from(occupied.rotate_right(current as u32).trailing_zeros());
            let slot = (current + ahead) % SLOTS as u64;
            Some((level * SLOTS + slot as usize, self.start(level, slot)))
        })
    }

    /// The tick at which the span of an occupied place begins.
    fn start(&self, level: usize, slot: u64) -> u64 {
        let shift = level as u32 * BITS;
        let current = (self.elapsed >> shift) % SLOTS as u64;
        let span = 1_u64 << shift;
        let round = self.elapsed & !(span * SLOTS as u64 - 1);
        let start = round + slot * span;
        // A place behind the hand belongs to the next round (only the top level wraps).
        if slot < current {
            start + span * SLOTS as u64
        } else {
            start
        }
    }
}

/// Whether a timer has fired by `now`: its tick has come.
pub(crate) fn is_due(due: Timestamp, now: Timestamp) -> bool {
    ceil_tick(due) <= floor_tick(now)
}

#[inline]
fn floor_tick(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000_000
}

fn ceil_tick(at: Timestamp) -> u64 {
    at.as_nanos().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use proptest::prelude::*;

    const fn ms(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn fires_at_the_tick_and_not_before() {
        let mut wheel = Wheel::new(ms(10));
        let mut fired = Vec::new();
        wheel.insert(0, Timestamp::from_nanos(110_000_001));
        wheel.advance(
            ms(110),
            |_| Timestamp::from_nanos(110_000_001),
            |slot| fired.push(slot),
        );
        assert!(fired.is_empty(), "a nanosecond early is early");
        wheel.advance(
            ms(111),
            |_| Timestamp::from_nanos(110_000_001),
            |slot| fired.push(slot),
        );
        assert_eq!(fired, [0]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_tick_that_was_worked_off_is_not_worked_off_again() {
        let mut wheel = Wheel::new(ms(10));
        wheel.insert(0, ms(9));
        assert_eq!(wheel.next(), Some(ms(11)));
    }

    #[test]
    fn it_passes_up_to_the_first_occupied_place() {
        let mut wheel = Wheel::new(ms(10));
        wheel.insert(0, ms(100));
        let first = SLOTS as u64;
        assert_eq!(wheel.next(), Some(ms(first)));
        assert!(wheel.pass(ms(first - 1)));
        assert!(!wheel.pass(ms(first)));
    }

    #[test]
    fn the_first_place_is_the_next_one_also_where_the_last_level_begins_anew() {
        let span = 1 << (BITS * (LEVELS as u32 - 1));
        let last = span * (SLOTS as u64 - 1);
        let mut wheel = Wheel::new(ms(last - span));
        wheel.insert(0, ms(last));
        wheel.insert(1, ms(last + span));
        assert_eq!(wheel.next(), Some(ms(last)));
    }

    #[test]
    fn a_deadline_that_moved_later_is_found_out_lazily() {
        let mut wheel = Wheel::new(ms(0));
        let mut fired = Vec::new();
        wheel.insert(3, ms(100));
        wheel.advance(ms(5_000), |_| ms(9_000), |slot| fired.push(slot));
        assert!(fired.is_empty());
        wheel.advance(ms(9_000), |_| ms(9_000), |slot| fired.push(slot));
        assert_eq!(fired, [3]);
    }

    proptest! {
        /// Against the obvious model: a list that is searched.
        #[test]
        fn agrees_with_a_list(
            start in prop_oneof![0_u64..200_000, (1_u64 << 36) - 200_000..1_u64 << 36],
            steps in prop::collection::vec((0_u8..4, 0_u32..32, 0_u64..400_000), 1..200),
        ) {
            let mut wheel = Wheel::new(ms(start));
            let mut due: Vec<Option<u64>> = vec![None; 32];
            let mut now = start;
            for (what, timer, span) in steps {
                let mine = &mut due[timer as usize];
                match what {
                    0 => if mine.is_none() {
                        *mine = Some(now + span + 1);
                        wheel.insert(timer, ms(now + span + 1));
                    },
                    1 => { *mine = None; wheel.remove(timer); }
                    2 => if let Some(at) = mine { *at += span; },
                    _ => {
                        now += span / 8;
                        let mut fired = Vec::new();
                        let known = due.clone();
                        if !wheel.pass(ms(now)) {
                            wheel.advance(ms(now), |slot| ms(known[slot as usize].unwrap()), |slot| fired.push(slot));
                        }
                        fired.sort_unstable();
                        let expected: Vec<Timer> = (0..32).filter(|slot| {
                            due[*slot as usize].is_some_and(|at| at <= now)
                        }).collect();
                        prop_assert_eq!(&fired, &expected);
                        for slot in fired { due[slot as usize] = None; }
                    }
                }
                let first = due.iter().flatten().min().copied();
                match (wheel.next(), first) {
                    (Some(next), Some(first)) => prop_assert!(next <= ms(first)),
                    (next, first) => prop_assert_eq!(next.is_some(), first.is_some()),
                }
            }
        }
    }
}

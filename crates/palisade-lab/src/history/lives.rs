//! The linearizability check: is there one order of instants that explains every answer?
//!
//! For locks in general that is a search. Here the tokens give the order of the grants, so one pass
//! per lock decides: each grant begins as early, and ends as early, as what was seen of it allows,
//! and the next one must find room after it. Expiry is a step of the authority that nobody sees; it
//! may come at any instant from the lease's due time on, and not before.

use palisade_core::{Ending, LockName, Timestamp, Token};

use super::lease::{Clock, Due};
use super::timeline::{Gathered, Life, Timeline, Window, Wish};
use super::violation::{Broken, Violation};

/// Checks every lock.
pub(super) fn check(gathered: &Gathered<'_>, clock: Clock<'_>, found: &mut Vec<Violation>) {
    for (lock, timeline) in &gathered.locks {
        let mut walk = Walk {
            lock,
            timeline,
            gathered,
            clock,
            found,
        };
        walk.lock();
    }
}

/// How a grant can have come to its earliest end.
#[derive(Clone, Copy)]
struct Earliest {
    at: Timestamp,
    /// Waiting for its time to run out is what makes it that late.
    by_expiry: bool,
    /// The earliest end after which the lock was free: a grant that supersedes leaves no gap.
    free: Timestamp,
}

/// When the lock was free between two grants, at most.
struct Gap {
    /// The grant before it ended at this instant or later, perhaps straight into the next one.
    after: Timestamp,
    from: Timestamp,
    to: Timestamp,
}

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

struct Walk<'w, 'h> {
    lock: &'h LockName,
    timeline: &'w Timeline<'h>,
    gathered: &'w Gathered<'h>,
    clock: Clock<'w>,
    found: &'w mut Vec<Violation>,
}

impl<'w, 'h> Walk<'w, 'h> {
    fn lock(&mut self) {
        let lives: Vec<&Life<'h>> = self.timeline.lives.values().collect();
        let by = latest_beginnings(&lives);
        let mut gaps = Vec::with_capacity(lives.len() + 1);
        let (mut free_from, mut gap_from) = (Timestamp::ZERO, Timestamp::ZERO);
        for (n, life) in lives.iter().enumerate() {
            gaps.push(Gap {
                after: free_from,
                from: gap_from,
                to: by[n],
            });
            if life.by < life.sent {
                let what = format!("seen at {}, before it was asked for", at(life.by));
                self.report(Broken::UnknownToken, &[life.token], what);
            }
            let begin = life.sent.max(free_from);
            let due = self.clock.due(self.gathered.lease(self.lock, life.lease));
            let held_to = self.held_to(life, begin, due);
            let next = lives.get(n + 1).copied();
            let end = self.end(life, held_to, due, next);
            self.told(life, held_to, due, end, next);
            if let Some(next) = next
                && end.at > by[n + 1]
            {
                self.no_room(life, next, end);
            }
            let latest = by.get(n + 1).copied().unwrap_or(NEVER);
            free_from = free_from.max(end.at.min(latest));
            gap_from = end.free;
        }
        gaps.push(Gap {
            after: free_from,
            from: gap_from,
            to: NEVER,
        });
        self.free(&gaps);
    }

    /// The last instant at which the grant must have been live, whatever happened.
    fn held_to(&mut self, life: &Life<'h>, begin: Timestamp, due: Due) -> Timestamp {
        let last = life.seen.iter().map(|window| window.sent).max();
        let Some(last) = last else {
            return begin;
        };
        if last > due.latest {
            self.report(
                Broken::AfterEnd,
                &[life.token],
                format!(
                    "held at {} or later, and its time was over at {}",
                    at(last),
                    at(due.latest)
                ),
            );
        }
        begin.max(last)
    }

    /// The earliest end of a grant. One that was acknowledged is the only one there can be.
    fn end(
        &mut self,
        life: &Life<'h>,
        held_to: Timestamp,
        due: Due,
        next: Option<&Life<'h>>,
    ) -> Earliest {
        let acknowledged = life
            .ends
            .iter()
            .filter_map(|end| Some((end.sent, end.back?)));
        let sent = acknowledged.clone().map(|(sent, _)| sent).min();
        let Some((sent, back)) = sent.zip(acknowledged.map(|(_, back)| back).min()) else {
            return self.possible_end(life, held_to, due, next);
        };
        let last = self.last_seen_before_end(life, held_to);
        if last > back {
            self.report(
                Broken::AfterEnd,
                &[life.token],
                format!("held at {} or later, given up by {}", at(last), at(back)),
            );
        }
        let at = held_to.max(sent);
        Earliest {
            at,
            by_expiry: false,
            free: at,
        }
    }

    fn last_seen_before_end(&self, life: &Life<'h>, held_to: Timestamp) -> Timestamp {
        life.seen
            .iter()
            .map(|window| window.sent)
            .max()
            .unwrap_or(held_to)
    }

    fn possible_end(
        &self,
        life: &Life<'h>,
        held_to: Timestamp,
        due: Due,
        next: Option<&Life<'h>>,
    ) -> Earliest {
        let expiry = held_to.max(due.earliest);
        let superseded = next.filter(|next| next.client == life.client);
        let asked = life.ends.iter().map(|end| held_to.max(end.sent));
        let other = asked.chain(self.hidden(life, held_to, next)).min();
        let free = other.map_or(expiry, |other| other.min(expiry));
        match superseded {
            Some(_) if held_to < free => Earliest {
                at: held_to,
                by_expiry: false,
                free,
            },
            _ => Earliest {
                at: free,
                by_expiry: free == expiry,
                free,
            },
        }
    }

    /// The same client may have superseded the grant with one that nobody was told about, and that
    /// one ended in its turn. It needs a token between the two that nobody else has.
    fn hidden(
        &self,
        life: &Life<'h>,
        held_to: Timestamp,
        next: Option<&Life<'h>>,
    ) -> Option<Timestamp> {
        if next.is_some_and(|next| !self.gathered.may_hide(self.lock, life.token, next.token)) {
            return None;
        }
        let in_time = |wish: &&Wish<'h>| wish.dead.is_none_or(|dead| held_to <= dead);
        let ends = self.wishes(life).filter(in_time).map(|wish| {
            let begin = held_to.max(wish.sent);
            let lasts = wish
                .ttl
                .map_or(begin, |ttl| begin.after(self.clock.at_least(ttl)));
            wish.abandoned
                .map_or(lasts, |sent| begin.max(sent).min(lasts))
        });
        ends.min()
    }

    fn wishes(&self, life: &Life<'h>) -> impl Iterator<Item = &'w Wish<'h>> {
        let client = life.client;
        let wishes = self.timeline.wishes.iter();
        wishes.filter(move |wish| wish.client == client)
    }

    /// What others were told about the grant's end must have been possible by then.
    fn told(
        &mut self,
        life: &Life<'h>,
        held_to: Timestamp,
        due: Due,
        end: Earliest,
        next: Option<&Life<'h>>,
    ) {
        for told in &life.told_over {
            let by_kind = match told.how {
                Some(Ending::Expired) => Some(held_to.max(due.earliest)),
                Some(Ending::Superseded) => {
                    let known = next.filter(|next| next.client == life.client);
                    let known = known.map(|next| held_to.max(next.sent));
                    let hidden = self.wishes(life).map(|wish| held_to.max(wish.sent));
                    known.into_iter().chain(hidden).min()
                }
                Some(how) => {
                    let asked = life.ends.iter().filter(|end| end.how == how);
                    asked.map(|end| held_to.max(end.sent)).min()
                }
                None => Some(end.at),
            };
            let possible = match by_kind {
                Some(possible) => possible,
                None => NEVER,
            };
            if possible > told.back {
                let how = told
                    .how
                    .map_or("over".to_owned(), |how| format!("{how:?}").to_lowercase());
                let earliest = match by_kind {
                    Some(possible) => format!("it cannot have been before {}", at(possible)),
                    None => "nothing can have ended it so".to_owned(),
                };
                self.report(
                    Broken::EarlyEnd,
                    &[life.token],
                    format!("said to be {how} by {}, and {earliest}", at(told.back)),
                );
            }
        }
    }

    fn no_room(&mut self, life: &Life<'h>, next: &Life<'h>, end: Earliest) {
        let (broken, why) = match end.by_expiry {
            true => (Broken::EarlyGrant, "its lease lasts"),
            false => (Broken::Overlap, "it was held"),
        };
        let what = format!(
            "granted to {} by {}, but token {} was {}'s and {why} until {} at least",
            next.client,
            at(next.by),
            life.token,
            life.client,
            at(end.at),
        );
        self.report(broken, &[life.token, next.token], what);
    }

    /// Whoever saw the lock free must have looked between two grants.
    fn free(&mut self, gaps: &[Gap]) {
        let timeline = self.timeline;
        for Window { sent, back } in &timeline.free {
            let first = gaps.partition_point(|gap| gap.to < *sent);
            let mut later = gaps[first..].iter().take_while(|gap| gap.after <= *back);
            if !later.any(|gap| gap.from <= *back && gap.from <= gap.to) {
                let what = format!("seen free between {} and {}", at(*sent), at(*back));
                self.report(Broken::NotFree, &[], what);
            }
        }
    }

    fn report(&mut self, broken: Broken, tokens: &[Token], what: String) {
        self.found
            .push(Violation::new(broken, self.lock, tokens, what));
    }
}

/// No grant begins after a later one has begun.
fn latest_beginnings(lives: &[&Life<'_>]) -> Vec<Timestamp> {
    let mut by: Vec<Timestamp> = lives.iter().map(|life| life.by).collect();
    for n in (1..by.len()).rev() {
        by[n - 1] = by[n - 1].min(by[n]);
    }
    by
}

/// An instant as a reader of the file finds it.
fn at(instant: Timestamp) -> String {
    format!("{} ns", instant.as_nanos())
}

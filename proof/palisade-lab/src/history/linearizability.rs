//! The linearizability check: is there an order of instants that explains every answer?
//!
//! For locks in general this needs a search. Here the tokens give the order of the grants, so one pass per lock
//! suffices: each grant begins as early, and ends as early, as the observations allow, and the next one must fit after
//! it. Expiry is a step of the authority that nobody sees; it may happen at any instant from the lease's due time on,
//! and not before.

use palisade_core::{Ending, Timestamp, Token};

use super::lease::{Clock, Due};
use super::timeline::{Gathered, Lifetime, Place, Timeline, Window, Wish};
use super::violation::{Broken, Violation};

/// Checks every lock and every slot.
pub(super) fn check(gathered: &Gathered<'_>, clock: Clock<'_>, found: &mut Vec<Violation>) {
    for (place, timeline) in &gathered.places {
        let mut walk = Walk {
            place: *place,
            timeline,
            gathered,
            clock,
            found,
        };
        walk.lock();
    }
}

/// The earliest end of a grant, and its reason.
#[derive(Clone, Copy)]
struct Earliest {
    at: Timestamp,
    /// It is that late because it waited for the lease's expiry.
    by_expiry: bool,
    /// The earliest end that left the lock free: a grant that supersedes leaves no gap.
    free: Timestamp,
}

/// The longest time for which the lock was free between two grants.
struct Gap {
    /// The grant before it ended at this instant or later, perhaps directly followed by the next one.
    after: Timestamp,
    from: Timestamp,
    to: Timestamp,
}

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

struct Walk<'w, 'h> {
    place: Place<'h>,
    timeline: &'w Timeline<'h>,
    gathered: &'w Gathered<'h>,
    clock: Clock<'w>,
    found: &'w mut Vec<Violation>,
}

impl<'w, 'h> Walk<'w, 'h> {
    fn lock(&mut self) {
        let lifetimes: Vec<&Lifetime<'h>> = self.timeline.lifetimes.values().collect();
        let by = latest_beginnings(&lifetimes);
        let mut gaps = Vec::with_capacity(lifetimes.len() + 1);
        let (mut free_from, mut gap_from) = (Timestamp::ZERO, Timestamp::ZERO);
        // The reader of the present phase that ends last, and when the lock is free of all of them.
        let mut phase: Option<(&Lifetime<'h>, Earliest)> = None;
        // The grant of the present phase that was in mode update last.
        let mut update: Option<(&Lifetime<'h>, Earliest)> = None;
        for (n, lifetime) in lifetimes.iter().enumerate() {
            if phase.is_none() {
                gaps.push(Gap {
                    after: free_from,
                    from: gap_from,
                    to: by[n],
                });
            }
            if lifetime.by < lifetime.sent {
                let what = format!("seen at {}, before it was requested", at(lifetime.by));
                self.report(Broken::UnknownToken, &[lifetime.token], what);
            }
            let begin = lifetime.sent.max(free_from);
            let due = self
                .clock
                .due(self.gathered.lease(self.place.lock, lifetime.lease));
            let held_to = self.held_to(lifetime, begin, due);
            let next = lifetimes.get(n + 1).copied();
            let successor = if lifetime.update {
                self.timeline.after_phase(lifetime)
            } else {
                next
            };
            let end = self.end(lifetime, held_to, due, successor);
            self.check_reported_ends(lifetime, held_to, due, end, successor);
            self.upgrades(lifetime);
            if lifetime.update {
                let before = update.replace((lifetime, end));
                let beside = before.filter(|(other, _)| lifetime.shares_with(other));
                if let Some((other, end)) = beside.filter(|(_, end)| end.at > by[n]) {
                    self.no_room(other, lifetime, end);
                }
            }
            let (last, end) = match phase.take() {
                Some((other, later)) if later.at > end.at => {
                    let free = later.free.max(end.free);
                    (other, Earliest { free, ..later })
                }
                Some((_, earlier)) => {
                    let free = earlier.free.max(end.free);
                    (*lifetime, Earliest { free, ..end })
                }
                None => (*lifetime, end),
            };
            if let Some(next) = next {
                if lifetime.shares_with(next) {
                    // The next one joins: the phase ends with its last reader (S2).
                    phase = Some((last, end));
                    continue;
                }
                self.phase_follows(lifetime, next);
                if end.at > by[n + 1] {
                    self.no_room(last, next, end);
                }
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

    /// Fencing tokens rise from one phase of a lock to the next.
    fn phase_follows(&mut self, lifetime: &Lifetime<'h>, next: &Lifetime<'h>) {
        if next.fencing() <= lifetime.fencing() {
            let what = format!(
                "{} has fencing token {}, after {} had {}",
                next.client,
                next.fencing(),
                lifetime.client,
                lifetime.fencing()
            );
            self.report(Broken::PhaseToken, &[lifetime.token, next.token], what);
        }
    }

    /// An upgrade is of a grant in mode update, and nobody has the lock alone in between (S8).
    fn upgrades(&mut self, writer: &Lifetime<'h>) {
        let reader = self.timeline.upgraded_to(writer);
        let apart = reader.map(|reader| self.timeline.after_phase(reader).map(|next| next.token));
        let may_hide =
            |wish: &Wish<'h>| wish.client == writer.client && wish.may_update(writer.lease);
        let unseen = self.timeline.wishes.iter().any(may_hide);
        if !writer.upgrade || apart == Some(Some(writer.token)) || unseen {
            return;
        }
        let what = match reader {
            Some(reader) => format!(
                "{} upgraded its grant {}, and others had the lock in between",
                writer.client, reader.token
            ),
            None => format!(
                "{} upgraded under lease {}, which was not in mode update",
                writer.client, writer.lease
            ),
        };
        self.report(Broken::Upgrade, &[writer.token], what);
    }

    /// The last instant at which the grant was certainly live.
    fn held_to(&mut self, lifetime: &Lifetime<'h>, begin: Timestamp, due: Due) -> Timestamp {
        let last = lifetime.seen.iter().map(|window| window.sent).max();
        let Some(last) = last else {
            return begin;
        };
        if last > due.latest {
            self.report(
                Broken::AfterEnd,
                &[lifetime.token],
                format!(
                    "held at {} or later, but its lease was over at {}",
                    at(last),
                    at(due.latest)
                ),
            );
        }
        begin.max(last)
    }

    /// The earliest end of a grant. An acknowledged end is the only possible one.
    fn end(
        &mut self,
        lifetime: &Lifetime<'h>,
        held_to: Timestamp,
        due: Due,
        next: Option<&Lifetime<'h>>,
    ) -> Earliest {
        let acknowledged = lifetime
            .ends
            .iter()
            .filter_map(|end| Some((end.sent, end.back?)));
        let sent = acknowledged.clone().map(|(sent, _)| sent).min();
        let Some((sent, back)) = sent.zip(acknowledged.map(|(_, back)| back).min()) else {
            return self.possible_end(lifetime, held_to, due, next);
        };
        let last = self.last_seen_before_end(lifetime, held_to);
        if last > back {
            self.report(
                Broken::AfterEnd,
                &[lifetime.token],
                format!(
                    "held at {} or later, but released by {}",
                    at(last),
                    at(back)
                ),
            );
        }
        let at = held_to.max(sent);
        Earliest {
            at,
            by_expiry: false,
            free: at,
        }
    }

    fn last_seen_before_end(&self, lifetime: &Lifetime<'h>, held_to: Timestamp) -> Timestamp {
        lifetime
            .seen
            .iter()
            .map(|window| window.sent)
            .max()
            .unwrap_or(held_to)
    }

    fn possible_end(
        &self,
        lifetime: &Lifetime<'h>,
        held_to: Timestamp,
        due: Due,
        next: Option<&Lifetime<'h>>,
    ) -> Earliest {
        let expiry = held_to.max(due.earliest);
        let superseded = next.filter(|next| self.is_superseded_by(lifetime, next));
        let asked = lifetime.ends.iter().map(|end| held_to.max(end.sent));
        let other = asked.chain(self.hidden(lifetime, held_to, next)).min();
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

    fn is_superseded_by(&self, lifetime: &Lifetime<'h>, next: &Lifetime<'h>) -> bool {
        let taken_over = lifetime.is_superseded() && next.client == lifetime.client;
        taken_over || lifetime.may_become(next)
    }

    /// The same client may have superseded the grant with an unreported one, which then ended as well. That needs a
    /// token between the two that nobody else has.
    fn hidden(
        &self,
        lifetime: &Lifetime<'h>,
        held_to: Timestamp,
        next: Option<&Lifetime<'h>>,
    ) -> Option<Timestamp> {
        if !lifetime.is_superseded() && !lifetime.update {
            return None;
        }
        if next.is_some_and(|next| {
            !self
                .gathered
                .may_hide(self.place, lifetime.token, next.token)
        }) {
            return None;
        }
        let in_time = |wish: &&Wish<'h>| wish.dead.is_none_or(|dead| held_to <= dead);
        let ends = self.wishes(lifetime).filter(in_time).map(|wish| {
            let begin = held_to.max(wish.sent);
            if wish.is_shared() && next.is_some_and(|next| next.phase.is_some()) {
                // Readers may have joined it.
                return begin;
            }
            let lasts = wish
                .ttl
                .map_or(begin, |ttl| begin.after(self.clock.at_least(ttl)));
            wish.abandoned
                .map_or(lasts, |sent| begin.max(sent).min(lasts))
        });
        ends.min()
    }

    fn wishes(&self, lifetime: &Lifetime<'h>) -> impl Iterator<Item = &'w Wish<'h>> {
        let client = lifetime.client;
        let wishes = self.timeline.wishes.iter();
        // A reader is superseded by its upgrade alone.
        let upgraded = lifetime.update.then_some(lifetime.lease);
        wishes.filter(move |wish| {
            wish.client == client
                && !wish.is_for_permits()
                && upgraded.is_none_or(|lease| wish.upgrades(lease))
        })
    }

    /// Reported ends must have been possible by the time of the report.
    fn check_reported_ends(
        &mut self,
        lifetime: &Lifetime<'h>,
        held_to: Timestamp,
        due: Due,
        end: Earliest,
        next: Option<&Lifetime<'h>>,
    ) {
        for report in &lifetime.reported_ends {
            let by_kind = match report.how {
                Some(Ending::Expired) => Some(held_to.max(due.earliest)),
                Some(Ending::Superseded) => {
                    let known = next.filter(|next| next.client == lifetime.client);
                    let known = known.map(|next| held_to.max(next.sent));
                    let hidden = self.wishes(lifetime).map(|wish| held_to.max(wish.sent));
                    known.into_iter().chain(hidden).min()
                }
                Some(how) => {
                    let asked = lifetime.ends.iter().filter(|end| end.how == how);
                    asked.map(|end| held_to.max(end.sent)).min()
                }
                None => Some(end.at),
            };
            let possible = match by_kind {
                Some(possible) => possible,
                None => NEVER,
            };
            if possible > report.back {
                let how = report
                    .how
                    .map_or("over".to_owned(), |how| format!("{how:?}").to_lowercase());
                let earliest = match by_kind {
                    Some(possible) => format!("it cannot have been before {}", at(possible)),
                    None => "nothing can have ended it this way".to_owned(),
                };
                self.report(
                    Broken::EarlyEnd,
                    &[lifetime.token],
                    format!("reported as {how} by {}, but {earliest}", at(report.back)),
                );
            }
        }
    }

    fn no_room(&mut self, lifetime: &Lifetime<'h>, next: &Lifetime<'h>, end: Earliest) {
        let (broken, why) = if end.by_expiry {
            (Broken::EarlyGrant, "its lease lasts")
        } else {
            (Broken::Overlap, "it was held")
        };
        let what = format!(
            "granted to {} by {}, but token {} was {}'s and {why} until {} at least",
            next.client,
            at(next.by),
            lifetime.token,
            lifetime.client,
            at(end.at),
        );
        self.report(broken, &[lifetime.token, next.token], what);
    }

    /// A client that saw the lock free must have looked between two grants.
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
            .push(Violation::new(broken, self.place, tokens, what));
    }
}

/// No grant begins after a later one.
fn latest_beginnings(lifetimes: &[&Lifetime<'_>]) -> Vec<Timestamp> {
    let mut by: Vec<Timestamp> = lifetimes.iter().map(|lifetime| lifetime.by).collect();
    for n in (1..by.len()).rev() {
        by[n - 1] = by[n - 1].min(by[n]);
    }
    by
}

/// An instant in the file's format.
fn at(instant: Timestamp) -> String {
    format!("{} ns", instant.as_nanos())
}

//! Overlap: a grant is certainly live from its answer until it could first have ended. No two grants of one lock may
//! certainly be live at the same instant, unless both are readers of one phase and not both in mode update. This does not use
//! tokens, so it also works for histories with wrong tokens.
//! Slots of a semaphore are locks of their own here, but all that hold some at the same instant must agree on how many there are.

use std::collections::BTreeMap;

use palisade_core::{ClientId, Timestamp, Token};

use super::lease::Clock;
use super::timeline::{Gathered, Lifetime, Place, Timeline};
use super::violation::{Broken, Violation};

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// Sorts by beginning and sweeps once, in `n log n`.
pub(super) fn check(gathered: &Gathered<'_>, clock: Clock<'_>, found: &mut Vec<Violation>) {
    let mut of_lock: BTreeMap<Place<'_>, Vec<Sure<'_, '_>>> = BTreeMap::new();
    for (place, timeline) in &gathered.places {
        let first_ends = first_ends(timeline);
        let sure = timeline.lifetimes.values().filter_map(|lifetime| {
            let from = lifetime.answered?;
            let due = clock
                .due(gathered.lease(place.lock, lifetime.lease))
                .earliest;
            let until = due.min(*first_ends.get(&lifetime.token)?);
            (from < until).then_some((from, until, lifetime))
        });
        let mut sure: Vec<_> = sure.collect();
        sure.sort_by_key(|(from, ..)| *from);
        sweep(*place, &sure, found);
        of_lock
            .entry(Place::of(place.lock))
            .or_default()
            .extend(sure);
    }
    for (lock, mut sure) in of_lock {
        sure.sort_by_key(|(from, ..)| *from);
        count(lock, &sure, found);
    }
}

/// A grant, and from when until when it was certainly live.
type Sure<'g, 'h> = (Timestamp, Timestamp, &'g Lifetime<'h>);

/// Live grants agree on the number of permits; of a plain lock it is none.
fn count(lock: Place<'_>, sure: &[Sure<'_, '_>], found: &mut Vec<Violation>) {
    let mut last: BTreeMap<Option<u32>, (Timestamp, Token)> = BTreeMap::new();
    for (from, until, lifetime) in sure {
        let of = lifetime.permits.map(|permits| permits.of());
        let others = last
            .iter()
            .filter(|(other, (end, _))| **other != of && from < end);
        for (other, (_, token)) in others {
            let say = |of: Option<u32>| of.map_or("no".to_owned(), |of| of.to_string());
            found.push(Violation::new(
                Broken::PermitCount,
                lock,
                &[*token, lifetime.token],
                format!("with {} permits, and with {}", say(*other), say(of)),
            ));
        }
        let longest = last.entry(of).or_insert((*until, lifetime.token));
        *longest = (*longest).max((*until, lifetime.token));
    }
}

fn sweep(lock: Place<'_>, sure: &[Sure<'_, '_>], found: &mut Vec<Violation>) {
    // The grant that lasts longest, of writers, of readers, and of those in mode update.
    let mut last: [Option<(Timestamp, &Lifetime<'_>)>; 3] = [None; 3];
    for (from, until, lifetime) in sure {
        let [writer, reader, update] = last;
        let update = update.filter(|(_, holder)| lifetime.shares_with(holder));
        let others = [writer, reader, update].into_iter().flatten();
        for (end, holder) in others.filter(|(_, holder)| !lifetime.may_be_beside(holder)) {
            if *from >= end {
                continue;
            }
            found.push(Violation::new(
                Broken::Overlap,
                lock,
                &[holder.token, lifetime.token],
                format!(
                    "{} and {} were both certainly held at {} ns",
                    holder.client,
                    lifetime.client,
                    from.as_nanos()
                ),
            ));
        }
        let [writers, readers, updates] = &mut last;
        let of_kind = match lifetime.phase {
            None => [Some(writers), None],
            Some(_) => [Some(readers), lifetime.update.then_some(updates)],
        };
        for last in of_kind.into_iter().flatten() {
            if last.is_none_or(|(end, _)| end < *until) {
                *last = Some((*until, lifetime));
            }
        }
    }
}

/// When each grant of a lock may first have ended before its time: somebody did something that ends it, or its own
/// client asked again and may have superseded it. From the last grant backwards.
fn first_ends(timeline: &Timeline<'_>) -> BTreeMap<Token, Timestamp> {
    let mut asked: BTreeMap<&ClientId, Timestamp> = BTreeMap::new();
    let mut first_ends = BTreeMap::new();
    for lifetime in timeline.lifetimes.values().rev() {
        let ends = lifetime.ends.iter().map(|end| end.sent);
        if lifetime.permits.is_some() {
            // The same client may hold more.
            first_ends.insert(lifetime.token, ends.min().unwrap_or(NEVER));
            continue;
        }
        let open = timeline.wishes.iter().filter(|wish| {
            wish.client == lifetime.client && wish.dead.is_none_or(|dead| dead >= lifetime.sent)
        });
        let later = asked.get(lifetime.client).copied();
        let first = ends.chain(open.map(|wish| wish.sent)).chain(later).min();
        first_ends.insert(lifetime.token, first.unwrap_or(NEVER));
        let sent = asked.entry(lifetime.client).or_insert(NEVER);
        *sent = lifetime.sent.min(*sent);
    }
    first_ends
}

//! Overlap: from the answer on, until it could first have ended, a grant surely stands. No two of one
//! lock may surely stand at one instant. Tokens play no part, so this also judges histories whose
//! tokens are wrong.

use std::collections::BTreeMap;

use palisade_core::{ClientId, LockName, Timestamp, Token};

use super::lease::Clock;
use super::timeline::{Gathered, Life, Timeline};
use super::violation::{Broken, Violation};

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// Sorts by beginning and sweeps once, in `n log n`.
pub(super) fn check(gathered: &Gathered<'_>, clock: Clock<'_>, found: &mut Vec<Violation>) {
    for (lock, timeline) in &gathered.locks {
        let first_ends = first_ends(timeline);
        let sure = timeline.lives.values().filter_map(|life| {
            let from = life.answered?;
            let due = clock.due(gathered.lease(lock, life.lease)).earliest;
            let until = due.min(*first_ends.get(&life.token)?);
            (from < until).then_some((from, until, life))
        });
        let mut sure: Vec<_> = sure.collect();
        sure.sort_by_key(|(from, ..)| *from);
        sweep(lock, &sure, found);
    }
}

fn sweep(lock: &LockName, sure: &[(Timestamp, Timestamp, &Life<'_>)], found: &mut Vec<Violation>) {
    let mut last: Option<(Timestamp, &Life<'_>)> = None;
    for (from, until, life) in sure {
        if let Some((end, holder)) = last
            && *from < end
        {
            found.push(Violation::new(
                Broken::Overlap,
                lock,
                &[holder.token, life.token],
                format!(
                    "{} and {} both surely held at {} ns",
                    holder.client,
                    life.client,
                    from.as_nanos()
                ),
            ));
        }
        if last.is_none_or(|(end, _)| end < *until) {
            last = Some((*until, life));
        }
    }
}

/// When each grant of a lock first may have ended before its time: somebody did something that ends
/// it, or its own client asked again and may have superseded it. From the last grant back.
fn first_ends(timeline: &Timeline<'_>) -> BTreeMap<Token, Timestamp> {
    let mut asked: BTreeMap<&ClientId, Timestamp> = BTreeMap::new();
    let mut first_ends = BTreeMap::new();
    for life in timeline.lives.values().rev() {
        let ends = life.ends.iter().map(|end| end.sent);
        let open = timeline.wishes.iter().filter(|wish| {
            wish.client == life.client && wish.dead.is_none_or(|dead| dead >= life.sent)
        });
        let later = asked.get(life.client).copied();
        let first = ends.chain(open.map(|wish| wish.sent)).chain(later).min();
        first_ends.insert(life.token, first.unwrap_or(NEVER));
        let sent = asked.entry(life.client).or_insert(NEVER);
        *sent = life.sent.min(*sent);
    }
    first_ends
}

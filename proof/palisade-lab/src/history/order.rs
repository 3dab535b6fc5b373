//! Token order: a grant that was requested after another was known has the higher token (rule A2).

use super::event::Tokens;
use super::timeline::{Gathered, Lifetime, Place};
use super::violation::{Broken, Violation};

/// Sorts by token and sweeps once, in `n log n`.
pub(super) fn check(gathered: &Gathered<'_>, tokens: Tokens, found: &mut Vec<Violation>) {
    let per_place = gathered.places.iter().map(|(place, timeline)| {
        let lifetimes = timeline.lifetimes.values();
        lifetimes
            .map(|lifetime| (*place, lifetime))
            .collect::<Vec<_>>()
    });
    match tokens {
        Tokens::PerLock => per_place.for_each(|lifetimes| sweep(&lifetimes, found)),
        Tokens::Global => {
            let mut all: Vec<_> = per_place.flatten().collect();
            all.sort_by_key(|(_, lifetime)| lifetime.token);
            sweep(&all, found);
        }
    }
}

/// Whether two lifetimes with one token are slots of one grant, or locks of one set.
fn is_one_grant(first: (Place<'_>, &Lifetime<'_>), second: (Place<'_>, &Lifetime<'_>)) -> bool {
    let slots = first.0.lock == second.0.lock;
    let names = |this: &Lifetime<'_>, other: Place<'_>| this.set.contains(&other.lock);
    let set = names(first.1, second.0) || names(second.1, first.0);
    (slots || set) && (first.1.client, first.1.lease) == (second.1.client, second.1.lease)
}

/// Visits the grants in token order and keeps the one that was requested last.
fn sweep(lifetimes: &[(Place<'_>, &Lifetime<'_>)], found: &mut Vec<Violation>) {
    for pair in lifetimes.windows(2) {
        let [(other, first), (lock, second)] = pair else {
            continue;
        };
        if first.token == second.token && !is_one_grant((*other, *first), (*lock, *second)) {
            let what = format!("granted at {other} to {} too", first.client);
            let tokens = [first.token];
            found.push(Violation::new(Broken::RepeatedToken, *lock, &tokens, what));
        }
    }
    let mut latest: Option<&Lifetime<'_>> = None;
    for (lock, lifetime) in lifetimes {
        if let Some(lower) = latest.filter(|lower| lifetime.by < lower.sent) {
            let what = format!(
                "granted to {} by {} ns, before token {} was requested by {}",
                lifetime.client,
                lifetime.by.as_nanos(),
                lower.token,
                lower.client,
            );
            let tokens = [lower.token, lifetime.token];
            found.push(Violation::new(Broken::TokenOrder, *lock, &tokens, what));
        }
        if latest.is_none_or(|last| last.sent <= lifetime.sent) {
            latest = Some(lifetime);
        }
    }
}

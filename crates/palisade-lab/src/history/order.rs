//! Token order: a grant that was requested after another was known has the higher token (rule A2).

use palisade_core::LockName;

use super::event::Tokens;
use super::timeline::{Gathered, Lifetime};
use super::violation::{Broken, Violation};

/// Sorts by token and sweeps once, in `n log n`.
pub(super) fn check(gathered: &Gathered<'_>, tokens: Tokens, found: &mut Vec<Violation>) {
    let per_lock = gathered.locks.iter().map(|(lock, timeline)| {
        let lifetimes = timeline.lifetimes.values();
        lifetimes
            .map(|lifetime| (*lock, lifetime))
            .collect::<Vec<_>>()
    });
    match tokens {
        Tokens::PerLock => per_lock.for_each(|lifetimes| sweep(&lifetimes, found)),
        Tokens::Global => {
            let mut all: Vec<_> = per_lock.flatten().collect();
            all.sort_by_key(|(_, lifetime)| lifetime.token);
            sweep(&all, found);
        }
    }
}

/// Visits the grants in token order and keeps the one that was requested last.
fn sweep(lifetimes: &[(&LockName, &Lifetime<'_>)], found: &mut Vec<Violation>) {
    for pair in lifetimes.windows(2) {
        let [(other, first), (lock, second)] = pair else {
            continue;
        };
        if first.token == second.token {
            let what = format!("granted at {other} to {} too", first.client);
            let tokens = [first.token];
            found.push(Violation::new(Broken::RepeatedToken, lock, &tokens, what));
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
            found.push(Violation::new(Broken::TokenOrder, lock, &tokens, what));
        }
        if latest.is_none_or(|last| last.sent <= lifetime.sent) {
            latest = Some(lifetime);
        }
    }
}

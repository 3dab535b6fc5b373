//! Token order: a grant that was asked for after another was known has the higher token (rule A2).

use palisade_core::LockName;

use super::event::Tokens;
use super::timeline::{Gathered, Life};
use super::violation::{Broken, Violation};

/// Sorts by token and sweeps once, in `n log n`.
pub(super) fn check(gathered: &Gathered<'_>, tokens: Tokens, found: &mut Vec<Violation>) {
    let per_lock = gathered.locks.iter().map(|(lock, timeline)| {
        let lives = timeline.lives.values();
        lives.map(|life| (*lock, life)).collect::<Vec<_>>()
    });
    match tokens {
        Tokens::PerLock => per_lock.for_each(|lives| sweep(&lives, found)),
        Tokens::Global => {
            let mut all: Vec<_> = per_lock.flatten().collect();
            all.sort_by_key(|(_, life)| life.token);
            sweep(&all, found);
        }
    }
}

/// Goes through the grants from the lowest token on, with the one that was asked for last in hand.
fn sweep(lives: &[(&LockName, &Life<'_>)], found: &mut Vec<Violation>) {
    for pair in lives.windows(2) {
        let [(other, first), (lock, second)] = pair else {
            continue;
        };
        if first.token == second.token {
            let what = format!("granted at {other} to {} too", first.client);
            let tokens = [first.token];
            found.push(Violation::new(Broken::RepeatedToken, lock, &tokens, what));
        }
    }
    let mut latest: Option<&Life<'_>> = None;
    for (lock, life) in lives {
        if let Some(lower) = latest.filter(|lower| life.by < lower.sent) {
            let what = format!(
                "granted to {} by {} ns, before token {} was asked for by {}",
                life.client,
                life.by.as_nanos(),
                lower.token,
                lower.client,
            );
            let tokens = [lower.token, life.token];
            found.push(Violation::new(Broken::TokenOrder, lock, &tokens, what));
        }
        if latest.is_none_or(|last| last.sent <= life.sent) {
            latest = Some(life);
        }
    }
}

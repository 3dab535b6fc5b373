//! How long a set may wait (rule M2), computed from the run itself.
//!
//! ```text
//!   one lock   ─ q ─┤├─ p1 ─┤├─ p2 ─┤ set      p1, p2: those ahead of the set; q: the last one before them
//!                   ▲               ▲
//!                   q's release     p2's release      the set waits no longer than from here to there
//!                   is sent         is answered
//! ```
//!
//! When the set arrives, each loop of a lock has at most one request there. So the single grants right before the set's,
//! as many as there are loops, are all that can be ahead of it, and `q` was over before the set arrived. The set is granted
//! when the last one ahead of it on the slowest of its locks is over. Tokens are the order of the grants of a lock. All
//! instants are the client's, on the monotonic clock; only the wait is the server's.

use std::collections::BTreeMap;

/// One lock's part of a grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockTurn {
    /// The lock's number.
    pub(super) lock: usize,
    /// The grant's token.
    pub(super) token: u64,
    /// How long a set waited at the server, in nanoseconds, rounded down; none for a single lock.
    pub(super) set_waited: Option<u64>,
    /// When the release was sent, in nanoseconds.
    pub(super) release_sent: u64,
    /// When the release was answered.
    pub(super) release_answered: u64,
}

/// A set's wait and its bound, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetWait {
    pub(super) waited: u64,
    pub(super) bound: u64,
}

/// The waits of all sets, each with its bound, in the order of their tokens. `loops` has the number of loops of each lock. A
/// set without a grant before those ahead of it, at the beginning of a run, has no bound and is left out.
pub(super) fn waits(mut turns: Vec<LockTurn>, loops: &[usize]) -> Vec<SetWait> {
    turns.sort_unstable_by_key(|turn| (turn.lock, turn.token));
    let mut sets: BTreeMap<u64, Option<SetWait>> = BTreeMap::new();
    for turns in turns.chunk_by(|one, next| one.lock == next.lock) {
        for (at, turn) in turns.iter().enumerate() {
            let Some(waited) = turn.set_waited else {
                continue;
            };
            let loops = loops.get(turn.lock).copied().unwrap_or_default();
            let bound = bound(&turns[..at], loops);
            let set = sets
                .entry(turn.token)
                .or_insert(Some(SetWait { waited, bound: 0 }));
            *set = set.zip(bound).map(|(set, bound)| SetWait {
                bound: set.bound.max(bound),
                ..set
            });
        }
    }
    sets.into_values().flatten().collect()
}

/// How long those ahead of a set took at one lock, given the turns before it; none without a turn before theirs.
fn bound(before: &[LockTurn], loops: usize) -> Option<u64> {
    let singles = before.iter().rev().take(loops);
    let ahead = singles.take_while(|turn| turn.set_waited.is_none()).count();
    let (earlier, ahead) = before.split_at(before.len() - ahead);
    let begin = earlier.last()?.release_sent;
    let end = ahead.last().map_or(begin, |last| last.release_answered);
    Some(end.saturating_sub(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn at a lock, over from its token × 10 to a little later.
    fn turn(lock: usize, token: u64, set_waited: Option<u64>) -> LockTurn {
        LockTurn {
            lock,
            token,
            set_waited,
            release_sent: 10 * token,
            release_answered: 10 * token + 1,
        }
    }

    #[test]
    fn a_set_waits_for_those_ahead_of_it_on_its_slowest_lock() {
        // Two loops at lock 0, one at lock 1; the set has token 9.
        let turns = |waited| {
            let single = |(lock, token)| turn(lock, token, None);
            let singles = [(0, 1), (0, 2), (1, 3), (0, 4), (1, 5), (0, 7)].map(single);
            let set = [0, 1].map(|lock| turn(lock, 9, Some(waited)));
            [&singles[..], &set].concat()
        };
        // Lock 0: 4 and 7 are ahead of it, and 2 was over. Lock 1: 5 is ahead, and 3 was over.
        let bound = 71 - 20;
        let waited = |waited| waits(turns(waited), &[2, 1]);
        assert_eq!(waited(51), [SetWait { waited: 51, bound }]);
        // Overtaken: it waited longer.
        assert_eq!(waited(60), [SetWait { waited: 60, bound }]);
    }

    #[test]
    fn nothing_before_the_set_before_it_counts() {
        let turns = vec![
            turn(0, 1, None),
            turn(0, 2, Some(0)),
            turn(0, 3, None),
            turn(0, 4, Some(11)),
            turn(0, 5, Some(0)),
        ];
        let wait = |waited, bound| SetWait { waited, bound };
        // The first set has nothing before 1 to count from.
        assert_eq!(waits(turns.clone(), &[2]), [wait(11, 11), wait(0, 0)]);
        assert_eq!(waits(turns, &[0])[0], wait(0, 0), "no loop, no wait");
    }
}

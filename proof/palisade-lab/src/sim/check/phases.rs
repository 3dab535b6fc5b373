//! Phases (S1, S2, S7): all holders of one phase have one fencing token, and tokens rise from one phase of a lock to the next,
//! also from a writer to the reader that it becomes.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact, LockChange};

/// See the module.
#[derive(Default)]
pub(crate) struct Phases {
    locks: BTreeMap<u8, Lock>,
    /// The phase of each grant of a lock, and whether it is shared.
    grants: BTreeMap<(u8, u64), (u64, bool)>,
    granted: TokenLocks,
    phases: u64,
}

#[derive(Default)]
struct Lock {
    live: BTreeSet<u64>,
    /// The token of each phase that a client has seen.
    tokens: BTreeMap<u64, u64>,
}

impl Phases {
    fn turn(&mut self, turn: &LockChange) {
        let lock = self.locks.entry(turn.lock).or_default();
        if let ChangeKind::Ended(_) = turn.what {
            lock.live.remove(&turn.token);
            return;
        }
        let live = lock.live.iter();
        let readers = live.filter_map(|live| self.grants.get(&(turn.lock, *live)));
        let joins = readers
            .filter(|(_, shared)| *shared)
            .map(|(phase, _)| *phase)
            .max();
        let phase = joins.filter(|_| turn.phase.is_some()).unwrap_or_else(|| {
            self.phases += 1;
            self.phases
        });
        lock.live.insert(turn.token);
        self.granted.granted(turn);
        let grant = (turn.lock, turn.token);
        self.grants.insert(grant, (phase, turn.phase.is_some()));
    }

    fn told(&mut self, grant: u64, token: u64) -> Result<(), String> {
        let mut locks = self.granted.of(grant).iter();
        locks.try_for_each(|lock| self.told_of(lock, grant, token))
    }

    fn told_of(&mut self, lock: u8, grant: u64, token: u64) -> Result<(), String> {
        let Some((phase, _)) = self.grants.get(&(lock, grant)).copied() else {
            return Ok(());
        };
        let tokens = &mut self.locks.entry(lock).or_default().tokens;
        let known = *tokens.entry(phase).or_insert(token);
        if known != token {
            return Err(format!(
                "lock {lock}: grant {grant} got token {token}, another of its phase {known} (S1)"
            ));
        }
        let before = tokens.range(..phase).next_back().map(|(_, token)| *token);
        let after = tokens.range(phase + 1..).next().map(|(_, token)| *token);
        if before.is_some_and(|before| before >= token) || after.is_some_and(|after| after <= token)
        {
            return Err(format!(
                "lock {lock}: the phase of grant {grant} has token {token}, those around it {before:?} and {after:?} (S2)"
            ));
        }
        Ok(())
    }
}

impl Check for Phases {
    fn name(&self) -> &'static str {
        rule::PHASES
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => self.turn(turn),
            Fact::Acknowledged {
                token,
                fencing: Some(fencing),
                ..
            } => return self.told(*token, *fencing),
            Fact::Recovered { live, .. } => {
                self.granted.restarted();
                self.locks.values_mut().for_each(|lock| lock.live.clear());
                for (lock, token, _) in live {
                    self.locks.entry(*lock).or_default().live.insert(*token);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

//! Mutual exclusion in the log (A1, A8, A9): each lock has at most one live grant, or readers of one phase, or holders of
//! permits; only the right commands end it, and no ended grant is renewed. A client's grant is superseded at its own request only (I5).

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::Ending;

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact, LockChange};

/// See the module.
#[derive(Default)]
pub(crate) struct Exclusion {
    /// The live grants of each lock: their clients, and whether they may be several.
    live: BTreeMap<u8, BTreeMap<u64, (u8, bool)>>,
    /// Grants of readers, and of permits.
    shared: BTreeSet<u64>,
    /// Acquires of each lock by each client that have led to no grant.
    acquires: BTreeMap<(u8, u8), u32>,
    /// Locks and grants.
    released: BTreeSet<(u8, u64)>,
    revoked: BTreeSet<(u8, u64)>,
    abandoned: BTreeSet<u32>,
    /// The request of each grant.
    request_of: BTreeMap<u64, u32>,
    /// Renewals in the log that were not acknowledged yet.
    renewals: BTreeMap<u64, u32>,
}

impl Exclusion {
    fn turn(&mut self, turn: &LockChange) -> Result<(), String> {
        let LockChange {
            lock,
            client,
            token,
            what,
            ..
        } = *turn;
        match what {
            ChangeKind::Granted(_) => {
                let shared = turn.phase.is_some() || turn.slots != 0;
                if let Some(acquires) = self.acquires.get_mut(&(lock, client)) {
                    *acquires = acquires.saturating_sub(1);
                }
                let live = self.live.entry(lock).or_default();
                let other = live.iter().find(|(_, (_, other))| !(shared && *other));
                if let Some((other, (holder, _))) = other {
                    return Err(format!(
                        "lock {lock} was granted with token {token} to client {client} while client {holder} had it with token {other}"
                    ));
                }
                live.insert(token, (client, shared));
                if shared {
                    self.shared.insert(token);
                } else {
                    // A crash may have undone a shared grant with this number.
                    self.shared.remove(&token);
                }
                Ok(())
            }
            ChangeKind::Ended(how) => {
                let live = self.live.entry(lock).or_default();
                if live.remove(&token).map(|(holder, _)| holder) != Some(client) {
                    return Err(format!(
                        "token {token} of lock {lock} ended, but the live grants were {live:?}"
                    ));
                }
                let acquires = self.acquires.get(&(lock, client));
                if how == Ending::Superseded && acquires.is_none_or(|acquires| *acquires == 0) {
                    return Err(format!(
                        "token {token} of lock {lock} was superseded, but client {client} did not ask (I5)"
                    ));
                }
                self.may_end(lock, token, how)
            }
        }
    }

    fn renewed(&mut self, token: u64) -> Result<(), String> {
        *self.renewals.entry(token).or_default() += 1;
        if self.live.values().any(|live| live.contains_key(&token)) {
            Ok(())
        } else {
            Err(format!("token {token} was renewed but is not live (A8)"))
        }
    }

    fn acknowledged(&mut self, token: u64) -> Result<(), String> {
        match self.renewals.get_mut(&token) {
            Some(owed) if *owed > 0 => *owed -= 1,
            _ => {
                return Err(format!(
                    "a renewal of token {token} was acknowledged but is not in the log (A8)"
                ));
            }
        }
        Ok(())
    }

    fn may_end(&self, lock: u8, token: u64, how: Ending) -> Result<(), String> {
        let asked = match how {
            Ending::Released => {
                let request = self.request_of.get(&token);
                self.released.contains(&(lock, token))
                    || request.is_some_and(|request| self.abandoned.contains(request))
            }
            Ending::Revoked => self.revoked.contains(&(lock, token)),
            Ending::Expired | Ending::Superseded => true,
        };
        if asked {
            Ok(())
        } else {
            Err(format!(
                "token {token} of lock {lock} was {how:?}, but no request asked for that (A9, M3)"
            ))
        }
    }
}

impl Check for Exclusion {
    fn name(&self) -> &'static str {
        rule::EXCLUSION
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => return self.turn(turn),
            Fact::AcquireTaken { locks, client, .. } => {
                for lock in locks.iter() {
                    *self.acquires.entry((lock, *client)).or_default() += 1;
                }
            }
            Fact::ReleaseTaken { lock, token } | Fact::Unclaimed { lock, token } => {
                self.released.insert((*lock, *token));
            }
            Fact::RevokeTaken { lock, token } => drop(self.revoked.insert((*lock, *token))),
            Fact::AbandonTaken { request } => drop(self.abandoned.insert(*request)),
            Fact::Decided {
                request,
                token: Some(token),
                ..
            } => drop(self.request_of.insert(*token, *request)),
            Fact::Recovered { live, .. } => {
                self.renewals.clear();
                self.live.clear();
                for (lock, token, client) in live {
                    let shared = self.shared.contains(token);
                    let live = self.live.entry(*lock).or_default();
                    live.insert(*token, (*client, shared));
                }
            }
            Fact::Renewed { token, .. } => return self.renewed(*token),
            Fact::Acknowledged {
                token,
                renewal: true,
                ..
            } => return self.acknowledged(*token),
            _ => {}
        }
        Ok(())
    }
}

//! All locks of a set or none (M1, M2): a request for several locks gets all of them with one token in one entry of the
//! log, or none. Nothing is granted that no request was decided to get, so a request that waits holds nothing.
//!
//! That nobody else has one of the locks is the matter of mutual exclusion, and the order of the queues that of
//! first come, first served.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact, LockChange};
use crate::sim::locks::Locks;

/// See the module.
#[derive(Default)]
pub(crate) struct Sets {
    /// The locks of each request.
    asked: BTreeMap<u32, Locks>,
    /// Every token that a request was given.
    given: BTreeSet<u64>,
    /// The grants of the entry being applied, by token: the request, and its locks that are not granted yet.
    due: BTreeMap<u64, (u32, Locks)>,
    /// Whether changes of that entry were seen: they come after its decisions.
    changing: bool,
}

impl Sets {
    /// The entry is over.
    fn end(&mut self) -> Result<(), String> {
        self.changing = false;
        for (token, (request, missing)) in std::mem::take(&mut self.due) {
            if !missing.is_empty() {
                return Err(format!(
                    "request {request} was granted with token {token}, but not its locks {missing:?} (M1)"
                ));
            }
        }
        Ok(())
    }

    fn decided(&mut self, request: u32, token: Option<u64>) {
        let new = token.filter(|token| self.given.insert(*token));
        if let Some(token) = new {
            let locks = self.asked.get(&request).copied().unwrap_or_default();
            self.due.insert(token, (request, locks));
        }
    }

    fn turn(&mut self, turn: &LockChange) -> Result<(), String> {
        self.changing = true;
        let LockChange { lock, token, .. } = *turn;
        let ChangeKind::Granted(_) = turn.what else {
            return Ok(());
        };
        match self.due.get_mut(&token) {
            Some((_, missing)) if missing.has(lock) => {
                *missing = missing.without(lock);
                Ok(())
            }
            Some((request, _)) => Err(format!(
                "request {request} was granted lock {lock} with token {token}, which it did not ask for (M1)"
            )),
            None => Err(format!(
                "lock {lock} was granted with token {token} to client {}, which no request was decided to get (M2)",
                turn.client
            )),
        }
    }
}

impl Check for Sets {
    fn name(&self) -> &'static str {
        rule::SETS
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => return self.turn(turn),
            // Noted between the changes of an entry.
            Fact::Believers { .. } => return Ok(()),
            _ => {}
        }
        if self.changing {
            self.end()?;
        }
        match fact {
            Fact::AcquireTaken {
                request: Some(request),
                locks,
                ..
            } => drop(self.asked.insert(*request, *locks)),
            Fact::Decided { request, token, .. } => self.decided(*request, *token),
            Fact::Recovered { next, .. } => {
                // Decisions that the crash lost are made again.
                self.given.retain(|token| token < next);
            }
            _ => {}
        }
        Ok(())
    }
}

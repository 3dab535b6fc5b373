//! The lab's memory of the authority across restarts: numbers for the facts, and data for two mutants.

use std::collections::{BTreeMap, HashMap};

use palisade_core::{GrantRef, Granted, LeaseKey, LockName, RequestId, Token};

use crate::sim::mutants::Mutant;

/// See the module.
pub(crate) struct IdMap {
    requests: HashMap<RequestId, u32>,
    /// Lease keys by token, for the release that names no grant.
    keys: BTreeMap<u64, LeaseKey>,
    /// The leases by their keys.
    leases: HashMap<LeaseKey, u64>,
    /// The slots of each grant: an event does not name them.
    slots: BTreeMap<u64, u64>,
    /// The lock of each request.
    asked: HashMap<RequestId, LockName>,
    /// The phases of shared grants by lock, and the lock of each grant, for two more.
    phases: BTreeMap<LockName, Token>,
    locks: BTreeMap<u64, LockName>,
    /// Exclusive grants by their leases and locks, for another.
    writers: BTreeMap<([u8; 16], LockName), Token>,
    names: Option<Names>,
}

/// Tokens as the mutant issues them: in the order in which requests arrived.
#[derive(Default)]
struct Names {
    drawn: HashMap<RequestId, u64>,
    /// From the machine's token to the issued one.
    given: BTreeMap<u64, u64>,
}

impl IdMap {
    pub(crate) fn new(mutant: Option<Mutant>) -> IdMap {
        let renames = mutant == Some(Mutant::TokenBeforeGrant);
        IdMap {
            requests: HashMap::new(),
            keys: BTreeMap::new(),
            leases: HashMap::new(),
            slots: BTreeMap::new(),
            asked: HashMap::new(),
            phases: BTreeMap::new(),
            locks: BTreeMap::new(),
            writers: BTreeMap::new(),
            names: renames.then(Names::default),
        }
    }

    /// A request's number.
    pub(crate) fn number(&mut self, request: RequestId) -> u32 {
        let next = self.requests.len() as u32;
        *self.requests.entry(request).or_insert(next)
    }

    /// An acquire arrives.
    pub(crate) fn arrived(&mut self, request: Option<RequestId>, lock: &LockName) {
        if let Some(request) = request {
            self.asked.insert(request, lock.clone());
        }
        if let (Some(names), Some(request)) = (&mut self.names, request) {
            let next = names.drawn.len() as u64 + 1;
            names.drawn.entry(request).or_insert(next);
        }
    }

    /// The machine granted a lock to a request.
    pub(crate) fn granted(&mut self, request: Option<RequestId>, granted: &Granted) {
        let number = granted.number();
        self.keys.insert(number.get(), granted.key);
        self.leases.insert(granted.key, granted.lease.0.get());
        self.slots.insert(number.get(), granted.slots.bits());
        if let Some(lock) = request.and_then(|request| self.asked.get(&request)) {
            self.of_lock(lock.clone(), number, granted);
        }

        if let (Some(names), Some(request)) = (&mut self.names, request)
            && let Some(drawn) = names.drawn.get(&request)
        {
            names.given.insert(number.get(), *drawn);
        }
    }

    fn of_lock(&mut self, lock: LockName, number: Token, granted: &Granted) {
        self.locks.insert(number.get(), lock.clone());
        match granted.shared {
            None => {
                let writer = (*granted.key.as_bytes(), lock);
                self.writers.insert(writer, granted.token);
            }
            Some(_) => drop(self.phases.entry(lock).or_insert(granted.token)),
        }
    }

    /// The lease with a key, if a client was ever granted something under it.
    pub(crate) fn lease(&self, key: LeaseKey) -> Option<u64> {
        self.leases.get(&key).copied()
    }

    /// The slots of a grant, one bit each.
    pub(crate) fn slots(&self, number: Token) -> u64 {
        self.slots.get(&number.get()).copied().unwrap_or(0)
    }

    /// The token of the first shared phase of a grant's lock.
    pub(crate) fn first_phase(&self, number: Token) -> Option<Token> {
        self.phases.get(self.locks.get(&number.get())?).copied()
    }

    /// The token that the lease of a shared grant had as the lock's writer.
    pub(crate) fn writer_before(&self, granted: &Granted) -> Option<Token> {
        let lock = self.locks.get(&granted.number().get())?;
        let writer = (*granted.key.as_bytes(), lock.clone());
        self.writers.get(&writer).copied()
    }

    /// The issued token for one of the machine's.
    pub(crate) fn outward(&self, token: Token) -> Token {
        let given = self
            .names
            .as_ref()
            .and_then(|names| names.given.get(&token.get()));
        given.map_or(token, |given| Token::new(*given).unwrap_or(token))
    }

    /// The machine's token for an issued one.
    pub(crate) fn inward(&self, token: Token) -> Token {
        let Some(names) = &self.names else {
            return token;
        };
        let found = names
            .given
            .iter()
            .rev()
            .find(|(_, given)| **given == token.get());
        found.map_or(token, |(machine, _)| Token::new(*machine).unwrap_or(token))
    }

    /// The grant that has this token, for any caller.
    pub(crate) fn present(&self, grant: GrantRef, token: Token) -> GrantRef {
        match self.keys.get(&token.get()) {
            Some(key) => GrantRef {
                key: *key,
                token: Some(token),
                ..grant
            },
            None => grant,
        }
    }
}

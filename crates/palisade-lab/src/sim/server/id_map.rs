//! What the lab remembers of the authority across restarts: numbers for the facts, and data for two mutants.

use std::collections::{BTreeMap, HashMap};

use palisade_core::{GrantRef, Granted, LeaseKey, RequestId, Token};

use crate::sim::mutants::Mutant;

/// See the module.
pub(crate) struct IdMap {
    requests: HashMap<RequestId, u32>,
    /// Lease keys by token, for the release that names no grant.
    keys: BTreeMap<u64, LeaseKey>,
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
            names: renames.then(Names::default),
        }
    }

    /// A request's number.
    pub(crate) fn number(&mut self, request: RequestId) -> u32 {
        let next = self.requests.len() as u32;
        *self.requests.entry(request).or_insert(next)
    }

    /// An acquire arrives.
    pub(crate) fn arrived(&mut self, request: Option<RequestId>) {
        if let (Some(names), Some(request)) = (&mut self.names, request) {
            let next = names.drawn.len() as u64 + 1;
            names.drawn.entry(request).or_insert(next);
        }
    }

    /// The machine granted to a request.
    pub(crate) fn granted(&mut self, request: Option<RequestId>, granted: &Granted) {
        self.keys.insert(granted.token.get(), granted.key);
        if let (Some(names), Some(request)) = (&mut self.names, request)
            && let Some(drawn) = names.drawn.get(&request)
        {
            names.given.insert(granted.token.get(), *drawn);
        }
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

    /// The grant that has this token, whoever asks.
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

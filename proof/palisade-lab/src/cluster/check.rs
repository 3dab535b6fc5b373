//! The rules, checked from outside: by the answers to clients, and by the content of the nodes' logs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use palisade_core::{Change, Effect, Ending, Machine, Outcome, RequestId, Timestamp, Token};
use palisade_pipeline::codec::{decode_batch, encode_record};
use palisade_replica::{Entry, LogId, Payload};

use super::network::Place;
use super::rule::Rule;
use super::runtime::now;

/// A rule was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// The observation that breaks it.
    pub what: String,
    /// Virtual time, in milliseconds.
    pub at_ms: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} ms: {}", self.rule, self.at_ms, self.what)
    }
}

/// A client believes that it holds a lock.
#[derive(Clone, Debug)]
struct Belief {
    token: Token,
    client: u8,
    since: u64,
    until: u64,
}

/// Everything that was seen.
#[derive(Default)]
pub(super) struct Check {
    /// By lock.
    beliefs: BTreeMap<u8, Vec<Belief>>,
    requests: HashMap<RequestId, Token>,
    tokens: BTreeMap<Token, RequestId>,
    highest: Option<Token>,
    /// The committed log: the entry at each index, and its hash.
    log: BTreeMap<u64, (LogId, u64)>,
    reference: Reference,
    /// Until when leases must last that were live when a leader took over (rule R10).
    full_time: BTreeMap<Token, u64>,
    pub(super) violation: Option<Violation>,
}

/// The machine that the committed log makes, and the tokens that it grants.
struct Reference {
    machine: Machine,
    /// Committed entries that were seen before one that stands before them.
    ahead: BTreeMap<u64, Entry>,
    next: u64,
    /// With their times to live, in nanoseconds.
    granted: BTreeMap<Token, u64>,
    /// When each was granted or renewed last, by the authority's clock.
    renewed: BTreeMap<Token, Timestamp>,
    expired: Vec<Token>,
    /// The effects of the entries, for a trace.
    did: Vec<String>,
}

impl Default for Reference {
    fn default() -> Reference {
        Reference {
            machine: Machine::new(0),
            ahead: BTreeMap::new(),
            next: 0,
            granted: BTreeMap::new(),
            renewed: BTreeMap::new(),
            expired: Vec::new(),
            did: Vec::new(),
        }
    }
}

impl Reference {
    fn committed(&mut self, entry: &Entry) -> Result<(), String> {
        self.ahead.insert(entry.id.index, entry.clone());
        let mut effects = Vec::new();
        while let Some(entry) = self.ahead.remove(&self.next) {
            self.next += 1;
            let Payload::Batch(batch) = entry.payload else {
                continue;
            };
            let (machine, renewed) = (&mut self.machine, &mut self.renewed);
            let decoded = decode_batch(&batch, |entry| {
                let at = entry.at;
                if let Outcome::Renewed(now) = machine.apply(entry, &mut effects).outcome {
                    renewed.insert(now.token, at);
                }
            });
            decoded.map_err(|error| error.to_string())?;
            for effect in effects.drain(..) {
                let Effect::Event(event) = effect else {
                    continue;
                };
                let (index, lock, client) = (entry.id.index, &event.lock, &event.client);
                let (token, change) = (event.token, &event.change);
                self.did.push(format!(
                    "entry {index}: {lock}, {client:?}, token {token}: {change:?}"
                ));
                match event.change {
                    Change::Granted { ttl } => {
                        self.granted.insert(event.token, ttl.span().as_nanos());
                        self.renewed.insert(event.token, self.machine.now());
                    }
                    Change::Ended {
                        how: Ending::Expired,
                        ..
                    } => {
                        self.expired.push(event.token);
                    }
                    Change::Proclaimed | Change::Opened { .. } | Change::Ended { .. } => {}
                }
            }
        }
        Ok(())
    }
}

impl Check {
    pub(super) fn broken(&mut self, rule: Rule, what: String) {
        let at_ms = now() / 1_000_000;
        self.violation
            .get_or_insert(Violation { rule, what, at_ms });
    }

    /// The highest token that any client has seen.
    pub(super) fn highest(&self) -> Option<Token> {
        self.highest
    }

    /// A client was granted a lock. `floor` is the highest token that was seen when it first asked.
    pub(super) fn granted(
        &mut self,
        (client, lock): (u8, u8),
        request: RequestId,
        token: Token,
        floor: Option<Token>,
        until: u64,
    ) {
        if *self.tokens.entry(token).or_insert(request) != request {
            self.broken(Rule::OneToken, format!("token {token} was issued twice"));
        }
        let first = *self.requests.entry(request).or_insert(token);
        if first != token {
            let what = format!("a request got token {first}, and {token} when it was repeated");
            self.broken(Rule::OneAnswer, what);
        }
        if floor >= Some(token) {
            let floor = floor.map_or(0, Token::get);
            let what =
                format!("token {token} was granted to a request made after {floor} was seen");
            self.broken(Rule::TokenOrder, what);
        }
        self.highest = self.highest.max(Some(token));
        let since = now();
        let others = self.beliefs.entry(lock).or_default();
        others.retain(|belief| belief.until > since);
        let other = others.iter().find(|belief| belief.token != token).cloned();
        others.retain(|belief| belief.token != token);
        others.push(Belief {
            token,
            client,
            since,
            until,
        });
        if let Some(other) = other.filter(|_| until > since) {
            let what = format!(
                "client {client} holds lock {lock} with token {token} while client {} holds it with {}",
                other.client, other.token
            );
            self.broken(Rule::OneHolder, what);
        }
    }

    /// An acknowledged renewal moves the end of a belief.
    pub(super) fn renewed(&mut self, lock: u8, token: Token, until: u64) {
        let at = now();
        for belief in self.beliefs.entry(lock).or_default() {
            if belief.token == token && belief.until > at {
                belief.until = belief.until.max(until);
            }
        }
    }

    /// A client stops believing: it sends a release, or its process ends.
    pub(super) fn gave_up(&mut self, lock: u8, token: Token) {
        let beliefs = self.beliefs.entry(lock).or_default();
        beliefs.retain(|belief| belief.token != token);
    }

    /// A renewal was refused to a holder that was right to believe: nothing but time ends its lease.
    pub(super) fn refused(&mut self, lock: u8, token: Token, what: &str) {
        let at = now();
        let held = self.beliefs.get(&lock).into_iter().flatten();
        if held
            .clone()
            .any(|belief| belief.token == token && belief.until > at)
        {
            let what = format!("the holder of token {token} was told: {what}");
            self.broken(Rule::FullTime, what);
        }
    }

    /// A read that was sent at `sent` shows `shown`.
    pub(super) fn read(&mut self, lock: u8, sent: u64, shown: Option<Token>) {
        let at = now();
        let held = self.beliefs.get(&lock).into_iter().flatten();
        let all_along = held
            .clone()
            .find(|belief| belief.since < sent && belief.until > at);
        if let Some(belief) = all_along
            && shown != Some(belief.token)
        {
            let what = format!(
                "lock {lock} is held with token {}, and a read shows {:?}",
                belief.token,
                shown.map(Token::get)
            );
            self.broken(Rule::StaleRead, what);
        }
    }

    /// A leader took over with this machine, whose last entry is `contains`.
    pub(super) fn took_over(&mut self, place: Place, contains: LogId, machine: &Machine) {
        if self.reference.next == contains.index + 1
            && bytes(machine) != bytes(&self.reference.machine)
        {
            let what = format!("node {place} leads with a machine that its log does not make");
            self.broken(Rule::SameState, what);
        }
        let (held, _) = machine.page("", 0, usize::MAX, machine.now());
        for token in held.into_iter().filter_map(|view| Some(view.holder?.token)) {
            let ttl = self.reference.granted.get(&token).copied().unwrap_or(0);
            // A lease gets its full time again, but no more than twice its time since its last renewal (rule A7).
            let renewed = self.reference.renewed.get(&token).copied();
            let limit = renewed.map_or(0, |at| at.as_nanos() + 2 * ttl);
            let left = ttl.min(limit.saturating_sub(machine.now().as_nanos()));
            // Clocks of nodes run up to 0.4 % fast.
            self.full_time.insert(token, now() + left / 1_000 * 995);
        }
    }

    /// A node holds this entry to be committed.
    pub(super) fn committed(&mut self, place: Place, entry: &Entry) {
        let hash = hash(entry);
        let (id, first) = *self.log.entry(entry.id.index).or_insert((entry.id, hash));
        if (id, first) != (entry.id, hash) {
            let what = format!(
                "node {place} holds {} to be committed, another one {id}",
                entry.id
            );
            self.broken(Rule::SameLog, what);
        }
        if self.reference.next > entry.id.index {
            return;
        }
        if let Err(why) = self.reference.committed(entry) {
            self.broken(Rule::Sound, why);
        }
        for token in std::mem::take(&mut self.reference.expired) {
            let until = self.full_time.remove(&token).unwrap_or(0);
            if now() < until {
                let early = (until - now()) / 1_000_000;
                let what =
                    format!("token {token} expired {early} ms before a leader's lease was over");
                self.broken(Rule::FullTime, what);
            }
        }
    }

    /// A node holds everything up to here to be committed; the entry itself may be in a snapshot.
    pub(super) fn position(&mut self, place: Place, committed: LogId) {
        let first = self.log.get(&committed.index).map(|(id, _)| *id);
        if let Some(first) = first.filter(|first| *first != committed) {
            let what = format!(
                "node {place} holds everything up to {committed} to be committed, another one {first}"
            );
            self.broken(Rule::SameLog, what);
        }
    }

    /// Nobody has a lock or waits for one, as far as entries are known to be committed.
    pub(super) fn is_idle(&self) -> bool {
        let machine = &self.reference.machine;
        machine.leases() == 0 && machine.waiters() == 0
    }

    /// Nothing is committed any more.
    pub(super) fn in_the_end(&mut self) {
        if !self.reference.ahead.is_empty() {
            let what = format!("nobody saw entry {} committed", self.reference.next);
            self.broken(Rule::Sound, what);
        }
        let granted = &self.reference.granted;
        let lost = self
            .tokens
            .keys()
            .find(|token| !granted.contains_key(token));
        if let Some(lost) = lost.copied() {
            let what = format!("token {lost} was acknowledged and is in no log");
            self.broken(Rule::Durable, what);
        }
    }

    /// Returns the effects of the entries that were committed since the last call.
    pub(super) fn did(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reference.did)
    }

    /// A hash of the committed log.
    pub(super) fn digest(&self) -> u64 {
        self.log.iter().fold(0, |hash: u64, (index, (_, entry))| {
            hash.rotate_left(7) ^ entry ^ index
        })
    }

    /// How many grants clients were told of, and how many entries were committed.
    pub(super) fn sizes(&self) -> (u64, u64) {
        (self.tokens.len() as u64, self.log.len() as u64)
    }
}

/// A machine as a snapshot has it.
fn bytes(machine: &Machine) -> Vec<u8> {
    let mut bytes = Vec::new();
    machine
        .records()
        .for_each(|record| encode_record(&mut bytes, &record));
    bytes
}

fn hash(entry: &Entry) -> u64 {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = std::hash::DefaultHasher::new();
    match &entry.payload {
        Payload::Batch(batch) => batch.hash(&mut hasher),
        other => format!("{other:?}").hash(&mut hasher),
    }
    hasher.finish()
}

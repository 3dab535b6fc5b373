//! The places where a clean history can be made illegal: its grants, and the certain
//! facts about each.
//!
//! Every bound here is conservative: uncertain facts are left out.

use std::collections::BTreeMap;

use palisade_core::{ClientId, LockMode, LockName, Permits, Slots, Timestamp, Token, Ttl};

use crate::history::event::{Answer, Call, Event};

/// A grant under its own lease whose answer came once; of a set, one of its locks.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// The answered call.
    pub(super) id: u64,
    /// All calls of the wish.
    pub(super) attempts: Vec<u64>,
    pub(super) lock: LockName,
    pub(super) client: ClientId,
    pub(super) token: Token,
    /// If it is shared: the token of its phase.
    pub(super) phase: Option<Token>,
    /// Whether it is in mode update.
    pub(super) update: bool,
    /// If it is of permits: the permits that it asked for, and the slots.
    pub(super) permits: Option<(Permits, Slots)>,
    /// When the first attempt was sent.
    pub(super) sent: Timestamp,
    pub(super) answered: Timestamp,
    /// Nothing can have ended it before this.
    pub(super) sure_until: Timestamp,
    /// Only its lease's expiry can have ended it.
    pub(super) left_alone: bool,
    /// When its release was acknowledged.
    pub(super) released: Option<Timestamp>,
    /// When the first later grant of the lock was answered.
    pub(super) next_answered: Option<Timestamp>,
    /// When its lease was over at the latest, if nothing prolonged it.
    pub(super) surely_over: Option<Timestamp>,
}

pub(super) struct Sites {
    /// Exclusive ones, also those of sets.
    pub(super) grants: Vec<Grant>,
    /// Shared ones.
    pub(super) readers: Vec<Grant>,
    /// Those of permits.
    pub(super) permits: Vec<Grant>,
}

/// A call and its answer.
struct Op<'e> {
    id: u64,
    client: &'e ClientId,
    call: &'e Call,
    sent: Timestamp,
    answer: Option<(Timestamp, &'e Answer)>,
}

impl Sites {
    pub(super) fn of(events: &[Event]) -> Sites {
        let ops = operations(events);
        let returns: Vec<Timestamp> = events.iter().filter_map(returned).collect();
        let parts = ops
            .iter()
            .flat_map(|op| op.call.locks().map(move |lock| (op, lock)));
        let mut grants: Vec<Grant> = parts
            .filter_map(|(op, lock)| grant(op, lock, &ops, &returns))
            .collect();
        let answered: Vec<(LockName, Token, Timestamp)> = ops.iter().flat_map(granted).collect();
        for grant in &mut grants {
            let later = answered
                .iter()
                .filter(|(lock, token, _)| *lock == grant.lock && *token > grant.token);
            grant.next_answered = later.map(|(.., at)| *at).min();
        }
        let (readers, grants): (_, Vec<_>) =
            grants.into_iter().partition(|grant| grant.phase.is_some());
        let (permits, grants) = grants
            .into_iter()
            .partition(|grant| grant.permits.is_some());
        Sites {
            grants,
            readers,
            permits,
        }
    }
}

fn operations(events: &[Event]) -> Vec<Op<'_>> {
    let mut places = BTreeMap::new();
    let mut ops: Vec<Op<'_>> = Vec::new();
    for event in events {
        match event {
            Event::Call {
                at,
                id,
                client,
                call,
            } => {
                places.insert(*id, ops.len());
                ops.push(Op {
                    id: *id,
                    client,
                    call,
                    sent: *at,
                    answer: None,
                });
            }
            Event::Answer { at, id, answer } => {
                if let Some(place) = places.get(id) {
                    ops[*place].answer = Some((*at, answer));
                }
            }
            Event::Away { .. } => {}
        }
    }
    ops
}

fn returned(event: &Event) -> Option<Timestamp> {
    match event {
        Event::Away { until, .. } => Some(*until),
        _ => None,
    }
}

fn granted(op: &Op<'_>) -> Vec<(LockName, Token, Timestamp)> {
    match op.answer {
        Some((at, Answer::Granted { token, .. })) => {
            let locks = op.call.locks().cloned();
            locks.map(|lock| (lock, *token, at)).collect()
        }
        _ => Vec::new(),
    }
}

fn grant(op: &Op<'_>, lock: &LockName, ops: &[Op<'_>], returns: &[Timestamp]) -> Option<Grant> {
    let Call::Acquire {
        ttl: Some(ttl),
        request,
        mode,
        ..
    } = op.call
    else {
        return None;
    };
    let (
        answered,
        Answer::Granted {
            token,
            phase,
            slots,
            ..
        },
    ) = op.answer?
    else {
        return None;
    };
    let same_wish = |other: &&Op<'_>| match other.call {
        Call::Acquire { request: name, .. } => {
            other.id == op.id || (name.is_some() && name == request && other.client == op.client)
        }
        _ => false,
    };
    let attempts: Vec<&Op<'_>> = ops.iter().filter(same_wish).collect();
    if attempts
        .iter()
        .filter(|other| !granted(other).is_empty())
        .count()
        > 1
    {
        return None;
    }
    let sent = attempts.iter().map(|other| other.sent).min()?;
    let ends = ops
        .iter()
        .filter(|other| may_end(other, lock, *token, request.as_deref()));
    let wishes = ops.iter().filter(|other| {
        // The same client may hold more permits.
        let acquire = matches!(other.call, Call::Acquire { .. }) && mode.permits().is_none();
        let over = other.answer.is_some_and(|(at, _)| at < sent);
        acquire
            && other.call.locks().any(|named| named == lock)
            && other.client == op.client
            && !over
            && !same_wish(other)
    });
    let disturbed = ends.chain(wishes).map(|other| other.sent).min();
    let due = sent.after(ttl.span());
    let released =
        ops.iter()
            .find_map(|other| match (other.call, other.answer) {
                (
                    Call::Release { lock: named, .. },
                    Some((at, Answer::Released { token: over })),
                ) if named == lock && over == token => Some(at),
                _ => None,
            });
    Some(Grant {
        id: op.id,
        attempts: attempts.iter().map(|other| other.id).collect(),
        lock: lock.clone(),
        client: op.client.clone(),
        token: *token,
        phase: *phase,
        update: *mode == LockMode::Update,
        permits: mode.permits().map(|permits| (permits, *slots)),
        sent,
        answered,
        sure_until: disturbed.map_or(due, |first| due.min(first)),
        left_alone: disturbed.is_none(),
        released,
        next_answered: None,
        surely_over: surely_over(*token, *ttl, answered, ops, returns),
    })
}

fn may_end(op: &Op<'_>, lock: &LockName, token: Token, request: Option<&str>) -> bool {
    match op.call {
        Call::Release {
            lock: at,
            token: named,
        }
        | Call::Revoke {
            lock: at,
            token: named,
        } => at == lock && *named == token,
        Call::Abandon { request: named, .. } => request == Some(&**named),
        _ => false,
    }
}

/// Only for a lease that nobody tried to prolong, without an absence of the authority.
fn surely_over(
    token: Token,
    ttl: Ttl,
    answered: Timestamp,
    ops: &[Op<'_>],
    returns: &[Timestamp],
) -> Option<Timestamp> {
    let renewed = ops.iter().any(|op| match op.call {
        Call::Renew { token: named, .. } => *named == token,
        Call::Acquire {
            under: Some(lease), ..
        } => *lease == token,
        _ => false,
    });
    (!renewed && returns.is_empty()).then(|| answered.after(ttl.span()))
}

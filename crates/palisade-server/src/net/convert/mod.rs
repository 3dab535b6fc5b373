//! Conversions between the wire and the pipeline. Total: every input becomes a request or a [`Refusal`], and every
//! answer becomes a reply or a [`Refusal`].

pub(super) mod grpc;
pub(super) mod history;
pub(super) mod json;

use std::collections::BTreeSet;
use std::sync::Arc;

use palisade_core::{
    Ahead, ClientId, Delayed, Ending, Holder, Invalid, LeaseKey, LockName, Others, Outcome,
    Permits, QueueBound, Span, Token, Ttl, Under, limits,
};
use palisade_proto::{Code, json as wire};

use palisade_pipeline::{Answer, Failure, Listened, Request};

/// The reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) message: String,
    /// With code `held`: the holder.
    pub(super) holder: Option<Holder>,
    /// For `stale`: the token with which the lock is held. For `delayed`: the token of its last grant.
    pub(super) highest: Option<Token>,
    /// For a grant that is over: its token.
    pub(super) token: Option<Token>,
    /// For `not_leader`: the leader's URL, if it is known.
    pub(super) leader: Option<Arc<str>>,
    /// For `delayed`: how long nobody is granted the lock. For a rate that is used up: when the next request fits.
    pub(super) retry_after: Option<Span>,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            message: message.into(),
            holder: None,
            highest: None,
            token: None,
            leader: None,
            retry_after: None,
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::Invalid, message)
    }

    /// An invalid value of the named field.
    fn field(name: &str, invalid: &Invalid) -> Refusal {
        Refusal::invalid(format!("{name}: {invalid}"))
    }

    /// After how long a retry makes sense, if known.
    pub(super) fn retry_after_ms(&self) -> Option<u64> {
        match self.code {
            // At least one: with 0 a client would retry in a busy loop.
            Code::Held => {
                let holder = self.holder.as_ref().map(|holder| holder.remaining);
                holder
                    .or(self.retry_after)
                    .map(|span| span.as_millis().max(1))
            }
            Code::Delayed | Code::OverQuota => self.retry_after.map(|span| span.as_millis().max(1)),
            Code::QueueFull | Code::TooManyLocks | Code::Unavailable => Some(1_000),
            // An election takes about this long.
            Code::NotLeader if self.leader.is_none() => Some(500),
            _ => None,
        }
    }
}

/// Permits of a semaphore, as a request counts them.
fn permits(count: u64, of: u64) -> Result<Permits, Refusal> {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let permits = Permits::new(small(count), small(of));
    permits.map_err(|invalid| Refusal::invalid(invalid.to_string()))
}

/// The number of permits that an operator gives a semaphore.
fn permits_of_all(of: u64) -> Result<u32, Refusal> {
    permits(1, of).map(Permits::of)
}

/// The refusal for an answer other than the requested one.
pub(super) fn refusal(answer: Answer) -> Refusal {
    match answer {
        Answer::Outcome(outcome) => denial(outcome),
        Answer::Failed(Failure::Unavailable(why)) => Refusal::new(Code::Unavailable, why),
        Answer::Failed(Failure::NotLeader { leader }) => not_leader(leader),
        Answer::Failed(Failure::UnknownOutcome(why)) => Refusal::new(Code::UnknownOutcome, why),
        Answer::Failed(Failure::Refused(why)) => Refusal::new(Code::Refused, why),
        Answer::Lock(_)
        | Answer::States(_)
        | Answer::Locks { .. }
        | Answer::Grants { .. }
        | Answer::Status(_)
        | Answer::Clock(_) => mismatch(),
    }
}

/// Grants to hear about: 1 to 100, each once.
fn listened(
    grants: impl ExactSizeIterator<Item = Result<Listened, Refusal>>,
) -> Result<Request, Refusal> {
    let (given, most) = (grants.len(), wire::LISTEN_GRANTS);
    if !(1..=most).contains(&given) {
        return Err(Refusal::invalid(format!(
            "grants has {given}; 1 ..= {most} are allowed: send more than one request for more"
        )));
    }
    let grants: Box<[Listened]> = grants.collect::<Result<_, _>>()?;
    let mut named = BTreeSet::new();
    for listened in &grants {
        let (lock, number) = (&listened.grant.lock, listened.number);
        if !named.insert((lock, number)) {
            return Err(Refusal::invalid(format!(
                "the grant of {lock} with number {number} is named twice"
            )));
        }
    }
    Ok(Request::Listen(grants))
}

/// The refusal of a node that does not lead.
pub(super) fn not_leader(leader: Option<Arc<str>>) -> Refusal {
    let message = match &leader {
        Some(leader) => format!("another node leads: {leader}; nothing happened, ask there"),
        None => "no node leads at this moment; nothing happened, try again".to_owned(),
    };
    Refusal {
        leader,
        ..Refusal::new(Code::NotLeader, message)
    }
}

/// A number above the one that the lock is held with is not stale: nobody holds it, and perhaps nobody ever did.
fn stale(named: Token, highest: Token) -> String {
    let held = format!("the lock is held with fencing token {highest}, not with {named}");
    if named < highest {
        format!("token {named} is stale: {named} < {highest}; {held}: look at it again")
    } else {
        format!("{held}: look at it again")
    }
}

fn denial(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Held(holder) => held(holder),
        Outcome::Behind(ahead) => behind(&ahead),
        Outcome::Delayed(delayed) => closed(delayed),
        Outcome::Ended { token, how } => ended(token, how),
        Outcome::NotHeld => Refusal::new(
            Code::NotHeld,
            "this lock_token does not hold this lock: it is unknown, belongs to another lock, or its grant is over",
        ),
        Outcome::OtherNumber { has } => Refusal::new(
            Code::NotHeld,
            format!(
                "this lock_token holds the lock with fencing token or grant id {has}, not with the number given: name that \
                 one, or none"
            ),
        ),
        Outcome::WrongPrincipal { lock } => Refusal::new(
            Code::Forbidden,
            format!(
                "this lock_token is of another principal's lease: only that principal may use it (asked for the lock {lock})"
            ),
        ),
        Outcome::Stale { named, highest } => Refusal {
            highest: Some(highest),
            ..Refusal::new(Code::Stale, stale(named, highest))
        },
        Outcome::QueueFull(bound) => Refusal::new(Code::QueueFull, queue_full(bound)),
        Outcome::Abandoned => Refusal::new(
            Code::Abandoned,
            "this request_id was abandoned: choose a new one",
        ),
        Outcome::TokensExhausted => Refusal::new(
            Code::TokensExhausted,
            format!(
                "the last fencing token, {}, was issued: no more locks can be granted",
                Token::MAX
            ),
        ),
        Outcome::TooManyLocks { max } => Refusal::new(
            Code::TooManyLocks,
            format!("the authority has {max} locks, the most that its settings allow"),
        ),
        Outcome::Invalid(invalid) => Refusal::invalid(invalid.to_string()),
        Outcome::Granted(_)
        | Outcome::Queued
        | Outcome::Renewed(_)
        | Outcome::Proclaimed { .. }
        | Outcome::Released { .. }
        | Outcome::Revoked { .. }
        | Outcome::Done => mismatch(),
    }
}

fn held(holder: Holder) -> Refusal {
    let (client, token) = (holder.client.as_str(), holder.token);
    let message = match holder.remaining.as_millis() {
        0 => format!(
            "held by {client:?} with fencing token {token} until this moment: try again now"
        ),
        _ => format!(
            "held by {client:?} with fencing token {token} for another {} unless renewed",
            holder.remaining.in_words()
        ),
    };
    Refusal {
        holder: Some(holder),
        ..Refusal::new(Code::Held, message)
    }
}

/// Nobody is named as the holder: the request ahead holds nothing.
fn behind(ahead: &Ahead) -> Refusal {
    let message = format!(
        "queued behind {:?}, which waits to be granted: try again in {}, or wait",
        ahead.client.as_str(),
        ahead.remaining.max(Span::from_millis(1)).in_words()
    );
    Refusal {
        retry_after: Some(ahead.remaining),
        ..Refusal::new(Code::Held, message)
    }
}

fn closed(delayed: Delayed) -> Refusal {
    let message = format!(
        "nobody has the lock, and it is closed for another {} after its last grant, which had fencing token {}",
        delayed.remaining.in_words(),
        delayed.token
    );
    Refusal {
        highest: Some(delayed.token),
        retry_after: Some(delayed.remaining),
        ..Refusal::new(Code::Delayed, message)
    }
}

/// An option of a grant above its bound; the message begins with the field of a body.
fn of_option(invalid: &Invalid) -> Refusal {
    match invalid {
        Invalid::Option { option, .. } => Refusal::field(option.field(), invalid),
        other => Refusal::invalid(other.to_string()),
    }
}

fn ended(token: Token, how: Ending) -> Refusal {
    let (code, what) = match how {
        Ending::Released => (Code::NotHeld, "was released"),
        Ending::Expired => (Code::Expired, "has expired"),
        Ending::Revoked => (Code::Revoked, "was revoked by an operator"),
        Ending::Superseded => (
            Code::Superseded,
            "was superseded by a later one of the same client",
        ),
    };
    let message = format!("the grant with fencing token {token} {what}");
    Refusal {
        token: Some(token),
        ..Refusal::new(code, message)
    }
}

fn queue_full(bound: QueueBound) -> String {
    match bound {
        QueueBound::Lock { max } => {
            format!("{max} requests wait for this lock, which is the limit")
        }
        QueueBound::Client { max } => {
            format!("{max} requests of this client wait, which is the limit")
        }
    }
}

/// The pipeline answered a different question: a defect, reported to the caller as such.
fn mismatch() -> Refusal {
    Refusal::new(
        Code::Internal,
        "the authority's answer does not match the request",
    )
}

pub(super) fn lock_name(field: &str, name: &str) -> Result<LockName, Refusal> {
    LockName::new(name).map_err(|invalid| Refusal::field(field, &invalid))
}

/// The locks of a set in the order in which the log has them: the first, and the others.
fn set(lock: LockName, also: &[String]) -> Result<(LockName, Others), Refusal> {
    if also.is_empty() {
        return Ok((lock, Others::NONE));
    }
    if also.len() >= limits::SET_LOCKS {
        // Before any of them is read.
        let invalid = Invalid::SetSize {
            given: also.len() + 1,
        };
        return Err(Refusal::field("also", &invalid));
    }
    let also = also.iter().map(|name| lock_name("also", name));
    let all: Result<Vec<LockName>, Refusal> = std::iter::once(Ok(lock)).chain(also).collect();
    palisade_core::set_of(all?).map_err(|invalid| Refusal::field("also", &invalid))
}

fn client_id(id: &str) -> Result<ClientId, Refusal> {
    ClientId::new(id).map_err(|invalid| Refusal::field("client_id", &invalid))
}

fn ttl(millis: u64) -> Result<Ttl, Refusal> {
    Ttl::from_millis(millis).map_err(|invalid| Refusal::field("lease_duration_ms", &invalid))
}

fn token(number: u64) -> Result<Token, Refusal> {
    token_in("fencing_token", number)
}

/// The token in a field.
pub(super) fn token_in(field: &str, number: u64) -> Result<Token, Refusal> {
    Token::new(number).map_err(|invalid| Refusal::field(field, &invalid))
}

/// A new lease needs a time to live; one under an existing lease may leave it out.
fn under(lease: Option<LeaseKey>, ttl: Option<Ttl>) -> Result<Under<()>, Refusal> {
    match (lease, ttl) {
        (Some(key), ttl) => Ok(Under::Existing { key, ttl }),
        (None, Some(ttl)) => Ok(Under::new(ttl)),
        (None, None) => {
            let (min, max) = (Ttl::MIN, Ttl::MAX);
            Err(Refusal::invalid(format!(
                "lease_duration_ms is missing: a new lease needs one in {min} ..= {max}"
            )))
        }
    }
}

/// A wait of zero is a try.
fn wait(millis: u64) -> Result<Option<Span>, Refusal> {
    if millis > limits::MAX_WAIT.as_millis() {
        return Err(Refusal::field(
            "wait_ms",
            &Invalid::Wait { given_ms: millis },
        ));
    }
    Ok((millis > 0).then(|| Span::from_millis(millis)))
}

/// A leader's value.
fn value(text: &str) -> Result<Box<str>, Refusal> {
    short("value", text, limits::METADATA_BYTES)?;
    Ok(text.into())
}

fn metadata(text: &str) -> Result<Option<Box<str>>, Refusal> {
    short("metadata", text, limits::METADATA_BYTES)?;
    Ok((!text.is_empty()).then(|| text.into()))
}

fn reason(text: &str) -> Result<Box<str>, Refusal> {
    short("reason", text, limits::REASON_BYTES)?;
    Ok(text.into())
}

fn short(what: &'static str, text: &str, max: usize) -> Result<(), Refusal> {
    if text.len() > max {
        let invalid = Invalid::TooLong {
            what,
            bytes: text.len(),
            max,
        };
        return Err(Refusal::invalid(invalid.to_string()));
    }
    Ok(())
}

/// The start of the names to list or watch; empty means all.
pub(super) fn prefix(text: &str) -> Result<Box<str>, Refusal> {
    if !text.is_empty() {
        lock_name("prefix", text)?;
    }
    Ok(text.into())
}

/// How many locks a page may contain.
pub(super) fn page_limit(asked: Option<u64>) -> Result<usize, Refusal> {
    let (most, default) = wire::LIST_LIMIT;
    match asked.map(usize::try_from) {
        None => Ok(default),
        Some(Ok(limit)) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(Refusal::invalid(format!(
            "limit must be an integer in 1 ..= {most}"
        ))),
    }
}

/// The protocol crate documents the ranges for its readers; they must be the core's.
const _: () = {
    assert!(*wire::LEASE_DURATION_MS.start() == Ttl::MIN.as_millis() as u64);
    assert!(*wire::LEASE_DURATION_MS.end() == Ttl::MAX.as_millis() as u64);
    assert!(wire::MAX_WAIT_MS == limits::MAX_WAIT.as_millis());
    assert!(wire::MAX_FENCING_TOKEN == Token::MAX.get());
    assert!(wire::NAME_BYTES == limits::NAME_BYTES);
    assert!(wire::TEXT_BYTES == limits::METADATA_BYTES && wire::TEXT_BYTES == limits::REASON_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    #[test]
    fn every_denial_has_its_code() {
        let holder = Holder {
            client: ClientId::new("b").unwrap(),
            token: token(3),
            remaining: Span::from_millis(4_210),
        };
        let wrong_principal = Outcome::WrongPrincipal {
            lock: LockName::new("orders").unwrap(),
        };
        let ended = |how| Outcome::Ended {
            token: token(7),
            how,
        };
        for (outcome, code) in [
            (Outcome::Held(holder), Code::Held),
            (
                Outcome::Delayed(Delayed {
                    token: token(3),
                    remaining: Span::from_millis(1),
                }),
                Code::Delayed,
            ),
            (ended(Ending::Released), Code::NotHeld),
            (ended(Ending::Expired), Code::Expired),
            (ended(Ending::Revoked), Code::Revoked),
            (ended(Ending::Superseded), Code::Superseded),
            (Outcome::NotHeld, Code::NotHeld),
            (Outcome::OtherNumber { has: token(3) }, Code::NotHeld),
            (
                Outcome::Behind(Ahead {
                    client: ClientId::new("b").unwrap(),
                    remaining: Span::from_millis(1),
                }),
                Code::Held,
            ),
            (wrong_principal, Code::Forbidden),
            (
                Outcome::Stale {
                    named: token(8),
                    highest: token(9),
                },
                Code::Stale,
            ),
            (
                Outcome::QueueFull(QueueBound::Lock { max: 5 }),
                Code::QueueFull,
            ),
            (
                Outcome::QueueFull(QueueBound::Client { max: 5 }),
                Code::QueueFull,
            ),
            (Outcome::Abandoned, Code::Abandoned),
            (Outcome::TokensExhausted, Code::TokensExhausted),
            (Outcome::TooManyLocks { max: 2 }, Code::TooManyLocks),
            (Outcome::Invalid(Invalid::LeaseKey), Code::Invalid),
            (Outcome::Queued, Code::Internal),
            (Outcome::Done, Code::Internal),
        ] {
            assert_eq!(denial(outcome.clone()).code, code, "{outcome:?}");
        }
    }

    #[test]
    fn a_denial_carries_what_its_receiver_needs() {
        let holder = Holder {
            client: ClientId::new("b").unwrap(),
            token: token(3),
            remaining: Span::from_nanos(1),
        };
        let held = denial(Outcome::Held(holder.clone()));
        assert_eq!(
            (held.retry_after_ms(), held.holder),
            (Some(1), Some(holder))
        );
        let stale = |named, highest| {
            let (named, highest) = (token(named), token(highest));
            let refusal = denial(Outcome::Stale { named, highest });
            assert_eq!(refusal.highest, Some(highest));
            refusal.message
        };
        let said = stale(8, 9);
        assert!(said.starts_with("token 8 is stale: 8 < 9; "), "{said}");
        // A number that is above is wrong, and not stale.
        let said = stale(9, 8);
        assert!(!said.contains("stale"), "{said}");
        assert!(said.contains("token 8, not with 9"), "{said}");
        let gone = denial(Outcome::Ended {
            token: token(7),
            how: Ending::Expired,
        });
        assert_eq!(gone.token, Some(token(7)));
    }

    #[test]
    fn bounds_are_named() {
        for (refusal, says) in [
            (
                ttl(99).unwrap_err(),
                "lease_duration_ms: a lease of 99 ms is outside 100 ms ..= 86400000 ms",
            ),
            (
                wait(86_400_001).unwrap_err(),
                "wait_ms: a wait of 86400001 ms is outside 0 ..= 86400000 ms",
            ),
            (
                super::token(0).unwrap_err(),
                "fencing_token: fencing token 0 is outside 1 ..= 9007199254740991",
            ),
            (
                metadata(&"x".repeat(257)).unwrap_err(),
                "metadata has 257 bytes; at most 256 are allowed",
            ),
            (
                client_id("").unwrap_err(),
                "client_id: client id is empty; 1 ..= 255 bytes are allowed",
            ),
            (
                page_limit(Some(0)).unwrap_err(),
                "limit must be an integer in 1 ..= 1000",
            ),
            (
                prefix("ü").unwrap_err(),
                "prefix: lock name has a byte at offset 0 that is not printable ASCII",
            ),
        ] {
            assert_eq!(
                (refusal.code, refusal.message.as_str()),
                (Code::Invalid, says)
            );
        }
    }

    #[test]
    fn a_wait_of_zero_is_a_try() {
        assert_eq!(wait(0), Ok(None));
        assert_eq!(wait(86_400_000), Ok(Some(limits::MAX_WAIT)));
    }
}

//! Conversion between the wire's types and the client's types.

use std::error::Error as StdError;

use palisade_core::{
    Ahead, AuthorityId, Change, ClientId, Delayed, Ending, GrantId, Granted, Holder, Invalid,
    LeaseId, LeaseKey, LockMode, LockName, LockView, Permits, Queued, Reader, Renewed, Slots, Span,
    Token, Ttl, WallTime, limits,
};
use palisade_proto::borrowed::{self, Reply};
use palisade_proto::{Code, options, v1 as pb};
use pb::acquire_option::Option as AcquireOption;
use pb::reply::Outcome;

use crate::fault::{Fault, Reason, causes};
use crate::service::{
    AcquireRequest, Acquired, Cursor, GrantNews, Notice, Page, Proclamation, Released, Renewal,
    Reopened, Resized, Revocation, SequencerAnswer, Status, Under, WatchEvent,
};

pub(super) fn acquire(request: AcquireRequest) -> pb::AcquireRequest {
    let (lease_duration_ms, lock_token) = match request.under {
        Under::New { ttl, .. } => (ttl.as_millis(), Vec::new()),
        Under::Existing { key, .. } => (0, bytes(key.as_bytes())),
    };
    let also = option_also(&request.also);
    pb::AcquireRequest {
        lock: request.lock.to_string(),
        client_id: request.client.to_string(),
        lease_duration_ms,
        wait_ms: request.wait.map_or(0, wait_ms),
        lock_token,
        request_id: bytes(request.request.as_bytes()),
        metadata: request.metadata.map_or_else(String::new, String::from),
        options: match request.mode {
            LockMode::Exclusive => options::messages(request.options)
                .into_iter()
                .chain(also)
                .collect(),
            LockMode::Shared => vec![in_mode(pb::LockMode::Shared)],
            LockMode::Update => vec![in_mode(pb::LockMode::Update)],
            LockMode::Upgrade => vec![in_mode(pb::LockMode::Upgrade)],
            LockMode::Permits(permits) => vec![option(AcquireOption::Permits(pb::Permits {
                count: permits.wanted(),
                of: permits.of(),
            }))],
        },
    }
}

fn in_mode(mode: pb::LockMode) -> pb::AcquireOption {
    option(AcquireOption::Mode(mode.into()))
}

fn option_also(also: &[LockName]) -> Option<pb::AcquireOption> {
    (!also.is_empty()).then(|| {
        let locks = also.iter().map(ToString::to_string).collect();
        option(AcquireOption::Also(pb::LockNames { locks }))
    })
}

const fn option(option: AcquireOption) -> pb::AcquireOption {
    pb::AcquireOption {
        option: Some(option),
    }
}

/// Converts a wait of up to 24 h, rounded up, so that it never becomes a try.
pub(super) fn wait_ms(wait: Span) -> u32 {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    u32::try_from(millis).unwrap_or(u32::MAX)
}

pub(super) fn list(
    prefix: &str,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<pb::ListRequest, Fault> {
    let cursor = after.map_or(Ok(0), |cursor| cursor.0.parse());
    let cursor =
        cursor.map_err(|_| Fault::invalid("the cursor is from a listing of another authority"))?;
    Ok(pb::ListRequest {
        prefix: prefix.to_owned(),
        cursor,
        limit,
    })
}

pub(super) fn acquired(reply: Reply, mode: LockMode) -> Result<Acquired, Fault> {
    let outcome = match reply {
        Reply::Granted(it) if mode == LockMode::Exclusive && it.grant_id == 0 => {
            return grant(it, Slots::NONE).map(Acquired::Granted);
        }
        other => Outcome::from(other),
    };
    Ok(match outcome {
        // A server from before shared grants ignores the mode. Nothing releases its grant, which expires with its
        // lease.
        Outcome::Granted(granted) if !is_of(&granted, mode) => {
            return Err(Fault::unsupported(
                "grant shared locks or permits: it granted another mode",
            ));
        }
        Outcome::Granted(granted) => Acquired::Granted(any_grant(&granted)?),
        // Without a token, the named client is waiting too, and is ahead.
        Outcome::Held(other) if other.fencing_token == 0 => Acquired::Behind(Ahead {
            client: ClientId::new(&other.client_id).map_err(malformed)?,
            remaining: Span::from_millis(other.remaining_ms),
        }),
        Outcome::Held(other) => Acquired::Held(holder(other)?),
        Outcome::Ended(ended) => Acquired::Over(Some(ending(ended.how)?)),
        Outcome::Error(error) => match Code::from_name(&error.code) {
            Some(Code::Delayed) => Acquired::Delayed(Delayed {
                token: token(error.highest)?,
                remaining: Span::from_millis(error.retry_after_ms),
            }),
            Some(Code::QueueFull) => Acquired::QueueFull(error.message.into()),
            Some(Code::TooManyLocks) => Acquired::TooManyLocks(error.message.into()),
            Some(Code::TokensExhausted) => Acquired::TokensExhausted,
            Some(Code::Abandoned) => Acquired::Abandoned,
            Some(Code::NotHeld) => Acquired::Over(None),
            _ => return Err(refusal(error)),
        },
        _ => return Err(misplaced()),
    })
}

/// Whether a grant has the requested mode.
fn is_of(granted: &pb::Granted, mode: LockMode) -> bool {
    let wanted = mode.permits().map_or(0, Permits::wanted);
    (granted.grant_id != 0) == mode.is_shared()
        && usize::try_from(wanted) == Ok(granted.slots.len())
}

pub(super) fn renewal(outcome: Outcome) -> Result<Renewal, Fault> {
    Ok(match outcome {
        Outcome::Renewed(renewed) => Renewal::Renewed(Renewed {
            token: token(renewed.fencing_token)?,
            ttl: ttl(renewed.lease_duration_ms)?,
            valid_for: Span::from_millis(renewed.valid_for_ms),
            near_deadline: false,
            waiters: renewed.waiters,
        }),
        other => match not_live(other)? {
            NotLive::Ended(how) => Renewal::Ended(how),
            NotLive::NotHeld => Renewal::NotHeld,
            NotLive::Stale(highest) => Renewal::Stale { highest },
        },
    })
}

pub(super) fn proclaimed(outcome: Outcome) -> Result<Proclamation, Fault> {
    Ok(match outcome {
        Outcome::Proclaimed(proclaimed) => Proclamation::Proclaimed {
            revision: proclaimed.revision,
        },
        other => match not_live(other)? {
            NotLive::Ended(how) => Proclamation::Ended(how),
            NotLive::NotHeld => Proclamation::NotHeld,
            NotLive::Stale(highest) => Proclamation::Stale { highest },
        },
    })
}

pub(super) fn sequencer(outcome: Outcome) -> Result<SequencerAnswer, Fault> {
    Ok(match outcome {
        Outcome::Sequencer(signed) => SequencerAnswer::Signed(signed.sequencer.into()),
        other => match not_live(other)? {
            NotLive::Ended(how) => SequencerAnswer::Ended(how),
            NotLive::NotHeld => SequencerAnswer::NotHeld,
            NotLive::Stale(highest) => SequencerAnswer::Stale { highest },
        },
    })
}

pub(super) fn released(outcome: Outcome) -> Result<Released, Fault> {
    Ok(match outcome {
        Outcome::Released(released) => Released::new(delayed(released.delayed_ms)),
        other => match not_live(other)? {
            NotLive::Ended(how) => Released::Ended(how),
            NotLive::NotHeld => Released::NotHeld,
            NotLive::Stale(highest) => Released::Stale { highest },
        },
    })
}

pub(super) fn revoked(outcome: Outcome) -> Result<Revocation, Fault> {
    Ok(match outcome {
        // The protocol answers a revocation with the message of a release.
        Outcome::Released(_) => Revocation::Revoked,
        Outcome::Ended(ended) if ending(ended.how)? == Ending::Revoked => Revocation::Revoked,
        other => match not_live(other)? {
            NotLive::Ended(how) => Revocation::Ended(how),
            NotLive::NotHeld => Revocation::NotHeld,
            NotLive::Stale(highest) => Revocation::Stale { highest },
        },
    })
}

pub(super) fn reopened(outcome: Outcome) -> Result<Reopened, Fault> {
    match outcome {
        Outcome::Error(error) if Code::from_name(&error.code) == Some(Code::NotHeld) => {
            Ok(Reopened::NotClosed)
        }
        other => done(other).map(|()| Reopened::Reopened),
    }
}

pub(super) fn resized(outcome: Outcome) -> Result<Resized, Fault> {
    match outcome {
        Outcome::Error(error) if Code::from_name(&error.code) == Some(Code::NotHeld) => {
            Ok(Resized::NotInUse)
        }
        other => done(other).map(|()| Resized::Resized),
    }
}

/// The ways in which a named grant is not live.
enum NotLive {
    Ended(Ending),
    NotHeld,
    Stale(Token),
}

fn not_live(outcome: Outcome) -> Result<NotLive, Fault> {
    match outcome {
        Outcome::Ended(ended) => Ok(NotLive::Ended(ending(ended.how)?)),
        Outcome::Error(error) => match Code::from_name(&error.code) {
            Some(Code::NotHeld) => Ok(NotLive::NotHeld),
            Some(Code::Expired) => Ok(NotLive::Ended(Ending::Expired)),
            Some(Code::Revoked) => Ok(NotLive::Ended(Ending::Revoked)),
            Some(Code::Superseded) => Ok(NotLive::Ended(Ending::Superseded)),
            Some(Code::Stale) => Ok(NotLive::Stale(token(error.highest)?)),
            _ => Err(refusal(error)),
        },
        _ => Err(misplaced()),
    }
}

pub(super) fn done(outcome: Outcome) -> Result<(), Fault> {
    match outcome {
        Outcome::Done(_) => Ok(()),
        Outcome::Error(error) => Err(refusal(error)),
        _ => Err(misplaced()),
    }
}

pub(super) fn shown(outcome: Outcome) -> Result<LockView, Fault> {
    match outcome {
        Outcome::Lock(lock) => view(lock),
        Outcome::Error(error) => Err(refusal(error)),
        _ => Err(misplaced()),
    }
}

pub(super) fn page(outcome: Outcome) -> Result<Page, Fault> {
    match outcome {
        Outcome::Page(page) => Ok(Page {
            locks: page.locks.into_iter().map(view).collect::<Result<_, _>>()?,
            next: (page.next_cursor != 0).then(|| Cursor(page.next_cursor.to_string().into())),
        }),
        Outcome::Error(error) => Err(refusal(error)),
        _ => Err(misplaced()),
    }
}

pub(super) fn status(outcome: Outcome) -> Result<Status, Fault> {
    match outcome {
        Outcome::Status(status) => Ok(Status {
            authority: AuthorityId::new(&status.authority).map_err(malformed)?,
            incarnation: status.incarnation,
            next_token: (status.next_token != 0)
                .then(|| token(status.next_token))
                .transpose()?,
            locks: status.locks,
            leases: status.leases,
            waiters: status.waiters,
            version: status.version,
            manual_clock: status.manual_clock,
        }),
        Outcome::Error(error) => Err(refusal(error)),
        _ => Err(misplaced()),
    }
}

pub(super) fn event(event: pb::Event) -> Result<Notice, Fault> {
    let change = match event.change {
        Some(pb::event::Change::GrantedMs(millis)) => Change::Granted { ttl: ttl(millis)? },
        Some(pb::event::Change::Proclaimed(_)) => Change::Proclaimed,
        Some(pb::event::Change::Opened(_)) => Change::Opened {
            reason: event.reason.into(),
        },
        Some(pb::event::Change::Ended(how)) => Change::Ended {
            how: ending(how)?,
            reason: (!event.reason.is_empty()).then(|| event.reason.into()),
            delayed: delayed(event.delayed_ms),
        },
        None if event.missed > 0 => {
            return Ok(Notice::Missed {
                missed: event.missed,
                revision: event.revision,
            });
        }
        None => return Err(empty()),
    };
    Ok(Notice::Change(WatchEvent {
        revision: event.revision,
        time: WallTime(event.time_ms),
        lock: LockName::new(&event.lock).map_err(malformed)?,
        client: match &*event.client_id {
            "" => None,
            client => Some(ClientId::new(client).map_err(malformed)?),
        },
        token: token(event.fencing_token)?,
        shared: grant_id(event.grant_id)?,
        options: options::of_messages(&event.options).map_err(malformed)?,
        change,
    }))
}

/// News of a grant; `None` for news that this client does not know.
pub(super) fn notice(notice: pb::Notice) -> Result<Option<GrantNews>, Fault> {
    use pb::notice::Event;
    let named = |notice: &pb::Notice| {
        let lock = LockName::new(&notice.lock).map_err(malformed)?;
        Ok::<_, Fault>((lock, token(notice.fencing_token)?))
    };
    Ok(match &notice.event {
        Some(Event::Ended(ended)) => {
            let (lock, number) = named(&notice)?;
            let is_known = ended.how != i32::from(pb::Ending::Unspecified);
            Some(GrantNews::Ended {
                lock,
                number,
                how: is_known.then(|| ending(ended.how)).transpose()?,
                reason: (!ended.reason.is_empty()).then(|| ended.reason.as_str().into()),
            })
        }
        Some(Event::Wanted(waiters)) => {
            let (lock, number) = named(&notice)?;
            Some(GrantNews::Wanted {
                lock,
                number,
                waiters: *waiters,
            })
        }
        Some(Event::NotHere(_)) => {
            return Err(Fault::unavailable("the server tells no more of grants"));
        }
        None => None,
    })
}

fn any_grant(granted: &pb::Granted) -> Result<Granted, Fault> {
    let slots = slots(&granted.slots)?;
    let fields = borrowed::Granted {
        fencing_token: granted.fencing_token,
        lock_token: *key(&granted.lock_token)?.as_bytes(),
        lease_id: granted.lease_id,
        lease_duration_ms: granted.lease_duration_ms,
        valid_for_ms: granted.valid_for_ms,
        waited_ms: granted.waited_ms,
        acquired_at_ms: granted.acquired_at_ms,
        grant_id: granted.grant_id,
    };
    grant(fields, slots)
}

fn grant(granted: borrowed::Granted, slots: Slots) -> Result<Granted, Fault> {
    Ok(Granted {
        token: token(granted.fencing_token)?,
        shared: grant_id(granted.grant_id)?,
        slots,
        lease: LeaseId(token(granted.lease_id)?),
        key: LeaseKey::from_bytes(granted.lock_token),
        ttl: ttl(granted.lease_duration_ms)?,
        valid_for: Span::from_millis(granted.valid_for_ms),
        waited: Span::from_millis(granted.waited_ms),
        acquired_at: WallTime(granted.acquired_at_ms),
    })
}

fn holder(holder: pb::Holder) -> Result<Holder, Fault> {
    Ok(Holder {
        client: ClientId::new(&holder.client_id).map_err(malformed)?,
        token: token(holder.fencing_token)?,
        remaining: Span::from_millis(holder.remaining_ms),
    })
}

fn view(lock: pb::LockView) -> Result<LockView, Fault> {
    let held = lock.holder.is_some();
    Ok(LockView {
        lock: LockName::new(&lock.lock).map_err(malformed)?,
        revision: (lock.revision != 0).then_some(lock.revision),
        holder: lock.holder.map(holder).transpose()?,
        extensions: lock.extensions,
        delayed: delayed(lock.delayed_ms),
        lease: if held {
            Some(LeaseId(token(lock.lease_id)?))
        } else {
            None
        },
        acquired_at: held.then_some(WallTime(lock.acquired_at_ms)),
        metadata: (!lock.metadata.is_empty()).then(|| lock.metadata.into()),
        options: options::of_messages(&lock.options).map_err(malformed)?,
        reader_count: lock.reader_count,
        readers: lock
            .readers
            .into_iter()
            .map(reader)
            .collect::<Result<_, _>>()?,
        permits: (lock.permits != 0).then_some(lock.permits),
        waiters: lock.waiters,
        waited: None,
        queue: lock
            .queue
            .into_iter()
            .map(queued)
            .collect::<Result<_, _>>()?,
    })
}

fn reader(reader: pb::Reader) -> Result<Reader, Fault> {
    Ok(Reader {
        holder: holder(reader.holder.ok_or_else(empty)?)?,
        id: GrantId(token(reader.grant_id)?),
        acquired_at: WallTime(reader.acquired_at_ms),
        update: reader.update,
        slots: slots(&reader.slots)?,
        metadata: (!reader.metadata.is_empty()).then(|| reader.metadata.into()),
    })
}

fn queued(queued: pb::Queued) -> Result<Queued, Fault> {
    Ok(Queued {
        client: ClientId::new(&queued.client_id).map_err(malformed)?,
        mode: match pb::LockMode::try_from(queued.mode) {
            Ok(pb::LockMode::Exclusive) => LockMode::Exclusive,
            Ok(pb::LockMode::Shared) => LockMode::Shared,
            Ok(pb::LockMode::Update) => LockMode::Update,
            Ok(pb::LockMode::Upgrade) => LockMode::Upgrade,
            Ok(pb::LockMode::Permits) => LockMode::Permits(
                queued
                    .permits
                    .map(|permits| Permits::new(permits.count, permits.of))
                    .ok_or_else(empty)?
                    .map_err(malformed)?,
            ),
            Ok(pb::LockMode::Unspecified) | Err(_) => {
                return Err(malformed(format!("mode {}", queued.mode)));
            }
        },
        waited: Span::from_millis(queued.waited_ms),
        remaining: Span::from_millis(queued.remaining_ms),
    })
}

/// How long a lock is closed; 0 means that it is not.
fn delayed(ms: u64) -> Option<Span> {
    (ms != 0).then(|| Span::from_millis(ms))
}

/// Converts the numbers of slots, each of which must occur once.
fn slots(numbers: &[u32]) -> Result<Slots, Fault> {
    numbers.iter().try_fold(Slots::NONE, |slots, &number| {
        let slot = Slots::all(number).without(Slots::all(number.saturating_sub(1)));
        let is_new = number <= limits::PERMITS && slots.without(slot) == slots && !slot.is_empty();
        is_new
            .then(|| slots.with(slot))
            .ok_or_else(|| malformed(format!("slots {numbers:?}")))
    })
}

/// The number of a shared grant; 0 means that the grant is exclusive.
fn grant_id(number: u64) -> Result<Option<GrantId>, Fault> {
    match number {
        0 => Ok(None),
        number => token(number).map(GrantId).map(Some),
    }
}

fn ending(how: i32) -> Result<Ending, Fault> {
    match pb::Ending::try_from(how) {
        Ok(pb::Ending::Released) => Ok(Ending::Released),
        Ok(pb::Ending::Expired) => Ok(Ending::Expired),
        Ok(pb::Ending::Revoked) => Ok(Ending::Revoked),
        Ok(pb::Ending::Superseded) => Ok(Ending::Superseded),
        Ok(pb::Ending::Unspecified) | Err(_) => Err(malformed(format!("ending {how}"))),
    }
}

fn token(number: u64) -> Result<Token, Fault> {
    Token::new(number).map_err(malformed)
}

fn ttl(millis: u32) -> Result<Ttl, Fault> {
    Ttl::from_millis(millis.into()).map_err(malformed)
}

fn key(key: &[u8]) -> Result<LeaseKey, Fault> {
    key.try_into()
        .map(LeaseKey::from_bytes)
        .map_err(|_| malformed(Invalid::LeaseKey))
}

pub(super) fn bytes(bytes: &[u8; 16]) -> Vec<u8> {
    bytes.to_vec()
}

/// Converts a reply with an error into a fault, by what the caller may do next.
pub(super) fn refusal(error: pb::Error) -> Fault {
    match Code::from_name(&error.code) {
        Some(
            Code::Unavailable
            | Code::NotLeader
            | Code::QueueFull
            | Code::TooManyLocks
            | Code::OverQuota,
        ) => Fault::unavailable(error.message),
        Some(Code::UnknownOutcome | Code::Internal) => Fault::unknown_outcome(error.message),
        Some(Code::Refused) => Fault::unsupported(format!("do this: {}", error.message)),
        Some(Code::Invalid) => Fault::invalid(error.message),
        Some(code @ (Code::Forbidden | Code::Unauthenticated)) => {
            Fault::Denied(code, error.message.into())
        }
        _ => Fault::invalid(format!("{}: {}", error.code, error.message)),
    }
}

/// Returns a fault if the session's token has expired. Nothing happened, so the caller may repeat the operation. It
/// then uses a new session, with the file's current token.
pub(super) fn expired(outcome: &mut Outcome) -> Option<Fault> {
    match outcome {
        Outcome::Error(error) if error.code == Code::Unauthenticated.name() => {
            error.code = Code::Unavailable.name().to_owned();
            Some(Fault::unavailable(error.message.clone()))
        }
        _ => None,
    }
}

/// Returns `Some` if a node refused because it does not lead, with the leader's URL if the node knows it.
pub(super) fn leads_elsewhere(outcome: &Outcome) -> Option<Option<Box<str>>> {
    match outcome {
        Outcome::Error(error) if error.code == Code::NotLeader.name() => {
            Some((!error.leader.is_empty()).then(|| error.leader.as_str().into()))
        }
        _ => None,
    }
}

/// Converts the failure of a gRPC call.
pub(super) fn fault(status: tonic::Status) -> Fault {
    let (code, said) = (status.code(), said(&status));
    let words = match code {
        tonic::Code::Unimplemented => format!("the server at this address is not Palisade: {said}"),
        tonic::Code::FailedPrecondition => format!("do this: {said}"),
        _ => said,
    };
    let why = Reason::new(words).quoting(status);
    match code {
        tonic::Code::Unimplemented | tonic::Code::InvalidArgument | tonic::Code::OutOfRange => {
            Fault::Invalid(why)
        }
        tonic::Code::PermissionDenied => Fault::Denied(Code::Forbidden, why),
        tonic::Code::Unauthenticated => Fault::Denied(Code::Unauthenticated, why),
        tonic::Code::FailedPrecondition => Fault::Unsupported(why),
        tonic::Code::Unavailable => Fault::Unavailable(why),
        _ => Fault::UnknownOutcome(why),
    }
}

/// Returns the message of a failed call with its causes, because "transport error" alone does not help.
fn said(status: &tonic::Status) -> String {
    match status.source() {
        Some(source) => format!("{}: {}", status.message(), causes(source)),
        None if status.message().is_empty() => status.code().description().to_owned(),
        None => status.message().to_owned(),
    }
}

pub(super) fn empty() -> Fault {
    malformed("a reply without content")
}

fn misplaced() -> Fault {
    malformed("a reply that does not match the question")
}

/// The fault for an answer that this client does not understand. The outcome is unknown.
fn malformed(what: impl ToString) -> Fault {
    Fault::unknown_outcome(format!(
        "the server sent an answer that this client does not understand: {}",
        what.to_string()
    ))
}

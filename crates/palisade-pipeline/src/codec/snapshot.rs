//! Snapshot records.

use std::num::NonZero;

use palisade_core::machine::{
    Answered, Closing, Extension, Head, KeptRecord, LeaseRecord, LiveGrant, Over, Part, Record,
    ShareRecord, WaiterRecord,
};
use palisade_core::{
    Ahead, Delayed, Ending, GrantId, GrantOptions, Granted, Holder, LeaseId, LockMode, Others,
    Outcome, Permits, Principal, QueueBound, Slots, Timestamp, Token,
};

use super::command::{
    get_limits, get_options, get_others, get_permits, get_under, put_limits, put_options,
    put_others, put_permits, put_under,
};
use super::reader::{Malformed, PRINCIPAL_BYTES, Reader};
use super::writer::Put;

const HEAD: u8 = 1;
const LEASE: u8 = 2;
const GRANT: u8 = 3;
const WAITER: u8 = 4;
const ANSWERED: u8 = 5;
const OVER: u8 = 6;
const KEPT: u8 = 7;
/// As [`WAITER`], with the end of its window behind it.
const ORPHAN: u8 = 8;
/// As [`GRANT`], with the token of its phase behind it.
const SHARE: u8 = 9;
/// As [`WAITER`] and [`ORPHAN`], but waiting for a shared grant.
const READER: u8 = 10;
const ORPHAN_READER: u8 = 11;
/// As [`SHARE`], with the number of permits and the slots behind it.
const HOLDER: u8 = 12;
/// As [`KEPT`], with the number of permits behind it.
const KEPT_SEMAPHORE: u8 = 13;
/// As [`WAITER`] and [`ORPHAN`], with the permits behind it.
const PERMITS: u8 = 14;
const ORPHAN_PERMITS: u8 = 15;
/// As [`GRANT`], with its options and its reservation behind it; 0 stands for none.
const GRANT_OPTIONS: u8 = 16;
/// As [`KEPT`], with the instant at which the lock opens behind it.
const CLOSED: u8 = 17;
/// As [`WAITER`] and [`ORPHAN`], with the options behind it.
const OPTIONS: u8 = 18;
const ORPHAN_OPTIONS: u8 = 19;
/// As [`GRANT_OPTIONS`], with the inherited part of the reservation behind it.
const GRANT_INHERITING: u8 = 20;
/// As [`SHARE`], in mode update.
const SHARE_UPDATE: u8 = 21;
/// As [`WAITER`] and [`ORPHAN`], but waiting for mode update, or for an upgrade.
const UPDATER: u8 = 22;
const ORPHAN_UPDATER: u8 = 23;
const UPGRADE: u8 = 24;
const ORPHAN_UPGRADE: u8 = 25;
/// As [`HEAD`], with the next token at a restore behind it.
const HEAD_RESTORED: u8 = 26;
/// As [`LEASE`], with the limit and the number of its extensions behind it.
const LEASE_EXTENDED: u8 = 27;

/// As [`ANSWERED`], of a set: with its other locks in front.
const ANSWERED_SET: u8 = 28;
/// As [`OVER`], with how often it was remembered again behind it.
const OVER_AGAIN: u8 = 29;

/// The principal of the lease, waiting request, answer or ending behind it, if that principal has a name.
const BY: u8 = 64;

/// The part that the bytes of a record belong to; unreadable bytes belong to the last.
#[must_use]
pub fn part(record: &[u8]) -> Part {
    let tag = match record {
        [BY, whose @ ..] => whose.get(PRINCIPAL_BYTES),
        _ => record.first(),
    };
    match tag {
        Some(&(HEAD | HEAD_RESTORED | LEASE | LEASE_EXTENDED)) => Part::Leases,
        Some(
            &(GRANT | SHARE | KEPT | WAITER | ORPHAN | READER | ORPHAN_READER | HOLDER
            | KEPT_SEMAPHORE | PERMITS | ORPHAN_PERMITS | GRANT_OPTIONS | CLOSED | OPTIONS
            | ORPHAN_OPTIONS | GRANT_INHERITING | SHARE_UPDATE | UPDATER | ORPHAN_UPDATER
            | UPGRADE | ORPHAN_UPGRADE),
        ) => Part::Grants,
        _ => Part::Past,
    }
}

/// Appends one record of a snapshot.
pub fn encode_record(out: &mut Vec<u8>, record: &Record) {
    put_by(out, record.by());
    match record {
        Record::Head(head) => put_head(out, head),
        Record::Lease(lease) => {
            out.byte(match lease.extension {
                None => LEASE,
                Some(_) => LEASE_EXTENDED,
            });
            out.number(lease.id.0.get());
            out.bytes(lease.key.as_bytes());
            out.text(&lease.client);
            out.number(lease.ttl.as_millis().into());
            out.number(lease.expires.as_nanos());
            if let Some(extension) = lease.extension {
                out.number(extension.limit.as_nanos());
                out.number(extension.times.get().into());
            }
        }
        Record::Grant(grant) => {
            let closing = grant.closing;
            out.byte(match closing.inherited {
                Some(_) => GRANT_INHERITING,
                None if closing != Closing::NONE => GRANT_OPTIONS,
                None => GRANT,
            });
            put_grant(out, grant);
            if closing != Closing::NONE {
                put_options(out, closing.options);
                out.number(closing.reserved.map_or(0, Timestamp::as_nanos));
            }
            if let Some(inherited) = closing.inherited {
                out.number(inherited.as_nanos());
            }
        }
        Record::Share(share) => {
            out.byte(match (share.permits, share.update) {
                (Some(_), _) => HOLDER,
                (None, false) => SHARE,
                (None, true) => SHARE_UPDATE,
            });
            put_grant(out, &share.grant);
            out.number(share.phase.get());
            if let Some((of, slots)) = share.permits {
                out.number(of.into());
                out.number(slots.bits());
            }
        }
        Record::Kept(kept) => {
            out.byte(match (kept.permits, kept.closed) {
                (None, None) => KEPT,
                (None, Some(_)) => CLOSED,
                // A semaphore is never closed.
                (Some(_), _) => KEPT_SEMAPHORE,
            });
            out.text(&kept.lock);
            out.number(kept.last.get());
            if let Some(of) = kept.permits {
                out.number(of.into());
            } else if let Some(until) = kept.closed {
                out.number(until.as_nanos());
            }
        }
        Record::Waiter(waiter) => put_waiter(out, waiter),
        Record::Answered(answered) => {
            if answered.also.is_empty() {
                out.byte(ANSWERED)
            } else {
                out.byte(ANSWERED_SET);
                put_others(out, &answered.also);
            }
            out.bytes(answered.request.as_bytes());
            put_optional_text(out, answered.lock.as_deref());
            put_outcome(out, &answered.outcome);
        }
        Record::Over(over) => {
            out.byte(match over.again {
                0 => OVER,
                _ => OVER_AGAIN,
            });
            out.bytes(over.key.as_bytes());
            out.text(&over.lock);
            out.number(over.token.get());
            out.byte(ending_tag(over.how));
            if over.again > 0 {
                out.number(over.again.into());
            }
        }
    }
}

fn put_by(out: &mut Vec<u8>, by: Principal) {
    if !by.is_anonymous() {
        out.byte(BY);
        out.bytes(&by.to_bytes());
    }
}

fn put_head(out: &mut Vec<u8>, head: &Head) {
    out.byte(match head.restored {
        None => HEAD,
        Some(_) => HEAD_RESTORED,
    });
    out.number(head.now.as_nanos());
    // 0 is never a token; here it stands for the end of the range.
    out.number(head.next_token.map_or(0, Token::get));
    out.number(head.revision);
    out.number(head.arrivals);
    put_limits(out, &head.limits);
    if let Some(restored) = head.restored {
        out.number(restored.get());
    }
}

fn put_grant(out: &mut Vec<u8>, grant: &LiveGrant) {
    out.text(&grant.lock);
    out.number(grant.token.get());
    out.bytes(grant.key.as_bytes());
    out.number(grant.wall.0);
    put_optional_text(out, grant.metadata.as_deref());
}

fn put_waiter(out: &mut Vec<u8>, waiter: &WaiterRecord) {
    out.byte(match (waiter.mode, waiter.orphan) {
        (LockMode::Exclusive, None) if !waiter.options.is_none() => OPTIONS,
        (LockMode::Exclusive, Some(_)) if !waiter.options.is_none() => ORPHAN_OPTIONS,
        (LockMode::Exclusive, None) => WAITER,
        (LockMode::Exclusive, Some(_)) => ORPHAN,
        (LockMode::Shared, None) => READER,
        (LockMode::Shared, Some(_)) => ORPHAN_READER,
        (LockMode::Update, None) => UPDATER,
        (LockMode::Update, Some(_)) => ORPHAN_UPDATER,
        (LockMode::Upgrade, None) => UPGRADE,
        (LockMode::Upgrade, Some(_)) => ORPHAN_UPGRADE,
        (LockMode::Permits(_), None) => PERMITS,
        (LockMode::Permits(_), Some(_)) => ORPHAN_PERMITS,
    });
    out.bytes(waiter.request.as_bytes());
    out.text(&waiter.lock);
    out.text(&waiter.client);
    put_under(out, &waiter.under);
    put_optional_text(out, waiter.metadata.as_deref());
    out.number(waiter.since.as_nanos());
    out.number(waiter.deadline.as_nanos());
    out.number(waiter.arrival);
    if let Some(until) = waiter.orphan {
        out.number(until.as_nanos());
    }
    if let Some(permits) = waiter.mode.permits() {
        put_permits(out, permits);
    } else if !waiter.options.is_none() {
        put_options(out, waiter.options);
    }
}

/// Reads the record that [`encode_record`] wrote; nothing may follow it.
///
/// # Errors
/// [`Malformed`] where the bytes are not those of one record.
pub fn decode_record(bytes: &[u8]) -> Result<Record, Malformed> {
    let mut reader = Reader(bytes);
    let record = if reader.skip(BY) {
        let by = reader.principal()?;
        let mut record = get_record(&mut reader)?;
        match &mut record {
            Record::Lease(lease) => lease.by = by,
            Record::Waiter(waiter) => waiter.by = by,
            Record::Answered(answered) => answered.by = by,
            Record::Over(over) => over.by = by,
            _ => return reader.bad("a record that has no principal names one"),
        }
        record
    } else {
        get_record(&mut reader)?
    };
    if reader.is_empty() {
        Ok(record)
    } else {
        reader.bad("something follows a record")
    }
}

fn get_record(reader: &mut Reader<'_>) -> Result<Record, Malformed> {
    Ok(match reader.byte()? {
        tag @ (HEAD | HEAD_RESTORED) => Record::Head(get_head(reader, tag)?),
        tag @ (LEASE | LEASE_EXTENDED) => Record::Lease(LeaseRecord {
            id: LeaseId(reader.token()?),
            key: reader.key()?,
            by: Principal::ANONYMOUS,
            client: reader.client()?,
            ttl: reader.ttl()?,
            expires: reader.timestamp()?,
            extension: reader.optional(tag == LEASE_EXTENDED, get_extension)?,
        }),
        GRANT => Record::Grant(get_grant(reader)?),
        tag @ (GRANT_OPTIONS | GRANT_INHERITING) => {
            let grant = get_grant(reader)?;
            let closing = Closing {
                options: get_options(reader)?,
                reserved: Some(reader.timestamp()?).filter(|at| *at != Timestamp::ZERO),
                inherited: reader.optional(tag == GRANT_INHERITING, Reader::timestamp)?,
            };
            Record::Grant(LiveGrant { closing, ..grant })
        }
        tag @ (SHARE | HOLDER | SHARE_UPDATE) => Record::Share(ShareRecord {
            grant: get_grant(reader)?,
            phase: reader.token()?,
            permits: reader.optional(tag == HOLDER, |reader| {
                Ok((get_size(reader)?, Slots::from_bits(reader.number()?)))
            })?,
            update: tag == SHARE_UPDATE,
        }),
        tag @ (KEPT | KEPT_SEMAPHORE | CLOSED) => Record::Kept(KeptRecord {
            lock: reader.lock()?,
            last: reader.token()?,
            permits: reader.optional(tag == KEPT_SEMAPHORE, get_size)?,
            closed: reader.optional(tag == CLOSED, Reader::timestamp)?,
        }),
        tag @ (WAITER | ORPHAN | READER | ORPHAN_READER | PERMITS | ORPHAN_PERMITS | OPTIONS
        | ORPHAN_OPTIONS | UPDATER | ORPHAN_UPDATER | UPGRADE | ORPHAN_UPGRADE) => {
            Record::Waiter(get_waiter(reader, tag)?)
        }
        ANSWERED => Record::Answered(get_answered(reader)?),
        ANSWERED_SET => {
            let also = get_others(reader)?;
            let answered = get_answered(reader)?;
            Record::Answered(Answered { also, ..answered })
        }
        tag @ (OVER | OVER_AGAIN) => Record::Over(Over {
            by: Principal::ANONYMOUS,
            key: reader.key()?,
            lock: reader.lock()?,
            token: reader.token()?,
            how: get_ending(reader)?,
            again: reader
                .optional(tag == OVER_AGAIN, get_again)?
                .map_or(0, NonZero::get),
        }),
        _ => return reader.bad("a record has an unknown tag"),
    })
}

fn get_head(reader: &mut Reader<'_>, tag: u8) -> Result<Head, Malformed> {
    let now = reader.timestamp()?;
    let next_token = match reader.number()? {
        0 => None,
        number => match Token::new(number) {
            Ok(token) => Some(token),
            Err(_) => return reader.bad("the token counter is out of range"),
        },
    };
    let (revision, arrivals) = (reader.number()?, reader.number()?);
    Ok(Head {
        now,
        next_token,
        revision,
        arrivals,
        limits: get_limits(reader)?,
        restored: reader.optional(tag == HEAD_RESTORED, Reader::token)?,
    })
}

fn get_extension(reader: &mut Reader<'_>) -> Result<Extension, Malformed> {
    let limit = reader.timestamp()?;
    let times = u32::try_from(reader.number()?).ok().and_then(NonZero::new);
    match times {
        Some(times) => Ok(Extension { limit, times }),
        None => reader.bad("the number of a lease's extensions is out of range"),
    }
}

fn get_grant(reader: &mut Reader<'_>) -> Result<LiveGrant, Malformed> {
    Ok(LiveGrant {
        lock: reader.lock()?,
        token: reader.token()?,
        key: reader.key()?,
        wall: reader.wall()?,
        metadata: get_optional_text(reader)?.map(Into::into),
        closing: Closing::NONE,
    })
}

fn get_waiter(reader: &mut Reader<'_>, tag: u8) -> Result<WaiterRecord, Malformed> {
    let is_orphan = matches!(
        tag,
        ORPHAN | ORPHAN_READER | ORPHAN_PERMITS | ORPHAN_OPTIONS | ORPHAN_UPDATER | ORPHAN_UPGRADE
    );
    let waiter = WaiterRecord {
        by: Principal::ANONYMOUS,
        request: reader.request()?,
        lock: reader.lock()?,
        client: reader.client()?,
        mode: match tag {
            READER | ORPHAN_READER => LockMode::Shared,
            UPDATER | ORPHAN_UPDATER => LockMode::Update,
            UPGRADE | ORPHAN_UPGRADE => LockMode::Upgrade,
            _ => LockMode::Exclusive,
        },
        under: get_under(reader)?,
        metadata: get_optional_text(reader)?.map(Into::into),
        options: GrantOptions::NONE,
        since: reader.timestamp()?,
        deadline: reader.timestamp()?,
        arrival: reader.number()?,
        orphan: reader.optional(is_orphan, Reader::timestamp)?,
    };
    let permits = reader.optional(tag == PERMITS || tag == ORPHAN_PERMITS, get_permits)?;
    let options = reader.optional(tag == OPTIONS || tag == ORPHAN_OPTIONS, get_options)?;
    Ok(WaiterRecord {
        options: options.unwrap_or_default(),
        mode: permits.map_or(waiter.mode, LockMode::Permits),
        ..waiter
    })
}

/// How many permits a semaphore has.
fn get_again(reader: &mut Reader<'_>) -> Result<NonZero<u32>, Malformed> {
    match NonZero::new(reader.small()?) {
        Some(again) => Ok(again),
        None => reader.bad("an ending was never remembered again"),
    }
}

fn get_size(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let of = reader.small()?;
    match Permits::new(1, of) {
        Ok(_) => Ok(of),
        Err(_) => reader.bad("a number of permits is out of range"),
    }
}

fn get_answered(reader: &mut Reader<'_>) -> Result<Answered, Malformed> {
    let request = reader.request()?;
    let lock = match get_optional_text(reader)? {
        None => None,
        Some(name) => match palisade_core::LockName::new(name) {
            Ok(lock) => Some(lock),
            Err(_) => return reader.bad("a lock has an impossible name"),
        },
    };
    Ok(Answered {
        by: Principal::ANONYMOUS,
        request,
        lock,
        also: Others::NONE,
        outcome: get_outcome(reader)?,
    })
}

const GRANTED: u8 = 1;
const HELD: u8 = 2;
const ENDED: u8 = 3;
const NOT_HELD: u8 = 4;
const LOCK_QUEUE_FULL: u8 = 5;
const CLIENT_QUEUE_FULL: u8 = 6;
const ABANDONED: u8 = 7;
const EXHAUSTED: u8 = 8;
const TOO_MANY_LOCKS: u8 = 9;
/// As [`GRANTED`], with the number of the grant behind it.
const GRANTED_SHARED: u8 = 10;
/// As [`GRANTED`], with the slots behind it.
const GRANTED_PERMITS: u8 = 11;
const DELAYED: u8 = 12;
const BEHIND: u8 = 13;

/// The outcomes that a machine remembers for a retry.
fn put_outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    match outcome {
        Outcome::Granted(granted) => {
            out.byte(match granted.shared {
                Some(_) => GRANTED_SHARED,
                None if granted.slots.is_empty() => GRANTED,
                None => GRANTED_PERMITS,
            });
            out.number(granted.token.get());
            out.number(granted.lease.0.get());
            out.bytes(granted.key.as_bytes());
            out.number(granted.ttl.as_millis().into());
            out.number(granted.valid_for.as_nanos());
            out.number(granted.waited.as_nanos());
            out.number(granted.acquired_at.0);
            if let Some(GrantId(number)) = granted.shared {
                out.number(number.get());
            } else if !granted.slots.is_empty() {
                out.number(granted.slots.bits());
            }
        }
        Outcome::Held(holder) => {
            out.byte(HELD);
            out.text(&holder.client);
            out.number(holder.token.get());
            out.number(holder.remaining.as_nanos());
        }
        Outcome::Behind(ahead) => {
            out.byte(BEHIND);
            out.text(&ahead.client);
            out.number(ahead.remaining.as_nanos());
        }
        Outcome::Delayed(delayed) => {
            out.byte(DELAYED);
            out.number(delayed.token.get());
            out.number(delayed.remaining.as_nanos());
        }
        Outcome::Ended { token, how } => {
            out.byte(ENDED);
            out.number(token.get());
            out.byte(ending_tag(*how));
        }
        Outcome::QueueFull(QueueBound::Lock { max }) => put_bound(out, LOCK_QUEUE_FULL, *max),
        Outcome::QueueFull(QueueBound::Client { max }) => put_bound(out, CLIENT_QUEUE_FULL, *max),
        Outcome::TooManyLocks { max } => put_bound(out, TOO_MANY_LOCKS, *max),
        Outcome::Abandoned => out.byte(ABANDONED),
        Outcome::TokensExhausted => out.byte(EXHAUSTED),
        // Answers to other commands and refusals of form are never remembered.
        Outcome::NotHeld
        | Outcome::OtherNumber { .. }
        | Outcome::Queued
        | Outcome::Renewed(_)
        | Outcome::Proclaimed { .. }
        | Outcome::Released { .. }
        | Outcome::Revoked { .. }
        | Outcome::Stale { .. }
        | Outcome::WrongPrincipal { .. }
        | Outcome::Invalid(_)
        | Outcome::Done => out.byte(NOT_HELD),
    }
}

fn put_bound(out: &mut Vec<u8>, tag: u8, max: u32) {
    out.byte(tag);
    out.number(max.into());
}

fn get_outcome(reader: &mut Reader<'_>) -> Result<Outcome, Malformed> {
    Ok(match reader.byte()? {
        tag @ (GRANTED | GRANTED_SHARED | GRANTED_PERMITS) => Outcome::Granted(Granted {
            token: reader.token()?,
            lease: LeaseId(reader.token()?),
            key: reader.key()?,
            ttl: reader.ttl()?,
            valid_for: reader.span()?,
            waited: reader.span()?,
            acquired_at: reader.wall()?,
            shared: reader
                .optional(tag == GRANTED_SHARED, Reader::token)?
                .map(GrantId),
            slots: reader
                .optional(tag == GRANTED_PERMITS, Reader::number)?
                .map_or(Slots::NONE, Slots::from_bits),
        }),
        HELD => Outcome::Held(Holder {
            client: reader.client()?,
            token: reader.token()?,
            remaining: reader.span()?,
        }),
        BEHIND => Outcome::Behind(Ahead {
            client: reader.client()?,
            remaining: reader.span()?,
        }),
        DELAYED => Outcome::Delayed(Delayed {
            token: reader.token()?,
            remaining: reader.span()?,
        }),
        ENDED => Outcome::Ended {
            token: reader.token()?,
            how: get_ending(reader)?,
        },
        NOT_HELD => Outcome::NotHeld,
        LOCK_QUEUE_FULL => Outcome::QueueFull(QueueBound::Lock {
            max: reader.small()?,
        }),
        CLIENT_QUEUE_FULL => Outcome::QueueFull(QueueBound::Client {
            max: reader.small()?,
        }),
        ABANDONED => Outcome::Abandoned,
        EXHAUSTED => Outcome::TokensExhausted,
        TOO_MANY_LOCKS => Outcome::TooManyLocks {
            max: reader.small()?,
        },
        _ => return reader.bad("an answer has an unknown tag"),
    })
}

fn ending_tag(how: Ending) -> u8 {
    match how {
        Ending::Released => 1,
        Ending::Expired => 2,
        Ending::Revoked => 3,
        Ending::Superseded => 4,
    }
}

fn get_ending(reader: &mut Reader<'_>) -> Result<Ending, Malformed> {
    Ok(match reader.byte()? {
        1 => Ending::Released,
        2 => Ending::Expired,
        3 => Ending::Revoked,
        4 => Ending::Superseded,
        _ => return reader.bad("an ending has an unknown tag"),
    })
}

/// A presence mark, then the text.
fn put_optional_text(out: &mut Vec<u8>, text: Option<&str>) {
    out.byte(u8::from(text.is_some()));
    if let Some(text) = text {
        out.text(text);
    }
}

fn get_optional_text<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, Malformed> {
    match reader.byte()? {
        0 => Ok(None),
        1 => reader.text().map(Some),
        _ => reader.bad("a presence mark is neither 0 nor 1"),
    }
}

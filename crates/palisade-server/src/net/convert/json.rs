//! Conversions of the JSON types.

use std::time::Duration;

use palisade_core::{
    Change, Ending, Event, GrantRef, Granted, Holder, LeaseKey, LockMode, LockName, LockView,
    Queued, Reader, Renewed, RequestId, Span, Token, WallTime, Wish,
};
use palisade_proto::json as wire;

use super::Refusal;
use crate::net::ranked::Ranked;
use palisade_pipeline::{Identity, Listened, News, Request, Status};

pub(in crate::net) fn acquire(
    lock: LockName,
    body: &wire::AcquireBody,
) -> Result<Request, Refusal> {
    let lease = body.lock_token.as_deref().map(lock_token).transpose()?;
    let ttl = body.lease_duration_ms.map(super::ttl).transpose()?;
    let (lock, also) = super::set(lock, body.also.as_deref().unwrap_or_default())?;
    Ok(Request::Acquire(Wish {
        lock,
        client: super::client_id(&body.client_id)?,
        mode: mode(body)?,
        under: super::under(lease, ttl)?,
        wait: super::wait(body.wait_ms.unwrap_or(0))?,
        request: body.request_id.as_deref().map(request_id).transpose()?,
        metadata: super::metadata(body.metadata.as_deref().unwrap_or_default())?,
        options: body
            .options()
            .map_err(|invalid| super::of_option(&invalid))?,
        also,
    }))
}

/// How long the caller of an acquire goes without an answer.
pub(in crate::net) fn poll(body: &wire::AcquireBody) -> Result<Option<Duration>, Refusal> {
    let Some(ms) = body.poll_ms else {
        return Ok(None);
    };
    if !wire::POLL_MS.contains(&ms) {
        let (least, most) = (wire::POLL_MS.start(), wire::POLL_MS.end());
        return Err(Refusal::invalid(format!(
            "poll_ms is {ms}; {least} ..= {most} are allowed"
        )));
    }
    if body.request_id.is_none() {
        return Err(Refusal::invalid(
            "poll_ms needs a request_id: without one the request cannot be asked again",
        ));
    }
    Ok(Some(Duration::from_millis(ms)))
}

fn mode(body: &wire::AcquireBody) -> Result<LockMode, Refusal> {
    use wire::LockMode::{Exclusive, Permits, Shared, Update, Upgrade};
    match (body.mode, body.permits) {
        (None | Some(Exclusive), None) => Ok(LockMode::Exclusive),
        (Some(Shared), None) => Ok(LockMode::Shared),
        (Some(Update), None) => Ok(LockMode::Update),
        (Some(Upgrade), None) => Ok(LockMode::Upgrade),
        (None | Some(Permits), Some(wanted)) => {
            super::permits(wanted.count, wanted.of).map(LockMode::Permits)
        }
        (Some(Permits), None) => Err(Refusal::invalid(
            "mode \"permits\" does not say how many: add permits, such as {\"count\": 1, \"of\": 5}",
        )),
        (Some(Exclusive | Shared | Update | Upgrade), Some(_)) => Err(Refusal::invalid(
            "mode and permits are both given: leave mode out for permits of a semaphore, or permits for a plain lock",
        )),
    }
}

pub(in crate::net) fn renew(lock: LockName, body: &wire::RenewBody) -> Result<Request, Refusal> {
    Ok(Request::Renew {
        grant: grant(lock, &body.lock_token, body.fencing_token)?,
        ttl: body.lease_duration_ms.map(super::ttl).transpose()?,
    })
}

/// Grants to hear about, and how long to wait.
pub(in crate::net) fn listen(body: &wire::ListenBody) -> Result<(Request, Duration), Refusal> {
    let (most, usual) = wire::LISTEN_MS;
    let wait = body.wait_ms.unwrap_or(usual);
    if wait > most {
        return Err(Refusal::invalid(format!(
            "wait_ms is {wait}; 0 ..= {most} are allowed"
        )));
    }
    let grants = body.grants.iter().map(|named| {
        let lock = super::lock_name("resource_id", &named.resource_id)?;
        let waiters = u32::try_from(named.waiters.unwrap_or(0));
        Ok(Listened {
            grant: grant(lock, &named.lock_token, Some(named.fencing_token))?,
            number: super::token(named.fencing_token)?,
            waiters: waiters
                .map_err(|_| Refusal::invalid("waiters must be an integer in 0 ..= 4294967295"))?,
        })
    });
    Ok((super::listened(grants)?, Duration::from_millis(wait)))
}

pub(in crate::net) fn notice(lock: &LockName, number: Token, news: News) -> wire::NoticeBody {
    let notice = wire::NoticeBody {
        resource_id: lock.as_str().to_owned(),
        fencing_token: number.get(),
        event: wire::NoticeEvent::Ended,
        how: None,
        reason: None,
        waiters: None,
    };
    match news {
        News::Ended { how, reason } => wire::NoticeBody {
            how: Some(how.map_or(wire::NoticeEnding::Unknown, |how| match how {
                Ending::Released => wire::NoticeEnding::Released,
                Ending::Expired => wire::NoticeEnding::Expired,
                Ending::Revoked => wire::NoticeEnding::Revoked,
                Ending::Superseded => wire::NoticeEnding::Superseded,
            })),
            reason: reason.map(String::from),
            ..notice
        },
        News::Wanted(waiters) => wire::NoticeBody {
            event: wire::NoticeEvent::Wanted,
            waiters: Some(waiters),
            ..notice
        },
    }
}

pub(in crate::net) fn proclaim(
    lock: LockName,
    body: &wire::ProclaimBody,
) -> Result<Request, Refusal> {
    Ok(Request::Proclaim {
        grant: grant(lock, &body.lock_token, body.fencing_token)?,
        value: super::value(&body.value)?,
    })
}

pub(in crate::net) fn release(
    lock: LockName,
    body: &wire::ReleaseBody,
) -> Result<Request, Refusal> {
    grant(lock, &body.lock_token, body.fencing_token).map(Request::Release)
}

pub(in crate::net) fn revoke(lock: LockName, body: &wire::BreakBody) -> Result<Request, Refusal> {
    Ok(Request::Revoke {
        lock,
        token: super::token(body.fencing_token)?,
        reason: super::reason(body.reason.as_deref().unwrap_or_default())?,
    })
}

pub(in crate::net) fn open(lock: LockName, body: &wire::OpenBody) -> Result<Request, Refusal> {
    Ok(Request::Open {
        lock,
        reason: super::reason(body.reason.as_deref().unwrap_or_default())?,
    })
}

pub(in crate::net) fn resize(lock: LockName, body: &wire::ResizeBody) -> Result<Request, Refusal> {
    Ok(Request::Resize {
        lock,
        permits: super::permits_of_all(body.of)?,
    })
}

pub(in crate::net) fn advance(body: &wire::AdvanceBody) -> Result<Request, Refusal> {
    if !(1..=wire::MAX_ADVANCE_MS).contains(&body.ms) {
        let most = wire::MAX_ADVANCE_MS;
        return Err(Refusal::invalid(format!(
            "ms must be an integer in 1 ..= {most}"
        )));
    }
    Ok(Request::Advance(Span::from_millis(body.ms)))
}

fn grant(lock: LockName, key: &str, token: Option<u64>) -> Result<GrantRef, Refusal> {
    Ok(GrantRef {
        lock,
        key: lock_token(key)?,
        token: token.map(super::token).transpose()?,
    })
}

fn lock_token(hex: &str) -> Result<LeaseKey, Refusal> {
    LeaseKey::from_hex(hex).map_err(|invalid| Refusal::invalid(invalid.to_string()))
}

/// 32 hexadecimal digits, with or without the hyphens of a UUID.
pub(in crate::net) fn request_id(text: &str) -> Result<RequestId, Refusal> {
    let hyphens = [8, 13, 18, 23];
    let is_uuid = text.len() == 36 && hyphens.iter().all(|&at| text.as_bytes()[at] == b'-');
    let digits = if is_uuid {
        text.replace('-', "")
    } else {
        text.to_owned()
    };
    RequestId::from_hex(&digits).map_err(|_| {
        Refusal::invalid("request_id must be a string of 32 hexadecimal digits, or a UUID")
    })
}

/// A listing's position; callers return it without reading it.
pub(in crate::net) fn cursor(text: &str) -> Result<u64, Refusal> {
    text.strip_prefix(CURSOR)
        .filter(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| Refusal::invalid("cursor must be a next_cursor of an earlier answer"))
}

fn next_cursor(position: u64) -> String {
    format!("{CURSOR}{position:016x}")
}

/// The kind of cursor, so that another kind can follow one day.
const CURSOR: &str = "a";

pub(in crate::net) fn granted(
    lock: &LockName,
    granted: &Granted,
    identity: &Identity,
) -> wire::AcquireReply {
    let remaining = granted
        .valid_for
        .as_nanos()
        .saturating_sub(granted.waited.as_nanos());
    wire::AcquireReply {
        resource_id: lock.as_str().to_owned(),
        lock_acquired: true,
        lock_token: granted.key.to_hex(),
        fencing_token: granted.token.get(),
        grant_id: granted.shared.map(|id| id.0.get()),
        slots: granted.slots.iter().collect(),
        lease_duration_ms: granted.ttl.as_millis().into(),
        valid_for_ms: granted.valid_for.as_millis(),
        waited_ms: granted.waited.as_millis(),
        remaining_ms: Span::from_nanos(remaining).as_millis(),
        acquired_at: wall_time(granted.acquired_at),
        authority: identity.authority.as_str().to_owned(),
    }
}

pub(in crate::net) fn renewed(
    lock: &LockName,
    renewed: &Renewed,
    identity: &Identity,
) -> wire::RenewReply {
    wire::RenewReply {
        resource_id: lock.as_str().to_owned(),
        fencing_token: renewed.token.get(),
        authority: identity.authority.as_str().to_owned(),
        lease_duration_ms: renewed.ttl.as_millis().into(),
        valid_for_ms: renewed.valid_for.as_millis(),
        remaining_ms: renewed.valid_for.as_millis(),
        waiters: renewed.waiters,
    }
}

pub(in crate::net) fn lock(view: &LockView) -> wire::LockReply {
    wire::LockReply {
        resource_id: view.lock.as_str().to_owned(),
        revision: view.revision,
        holder: view.holder.as_ref().map(|held| wire::HolderBody {
            acquired_at: view.acquired_at.map(wall_time),
            metadata: view.metadata.as_deref().map(str::to_owned),
            ..holder(held).with_options(view.options)
        }),
        extensions: view.extensions,
        delayed_ms: view.delayed.map(Span::as_millis),
        permits: view.permits,
        reader_count: view.reader_count,
        readers: view.readers.iter().map(reader).collect(),
        waiters: view.waiters,
        waited_ms: view.waited.map(Span::as_millis),
        queue: view.queue.iter().map(queued).collect(),
        trace_id: None,
    }
}

fn reader(reader: &Reader) -> wire::HolderBody {
    wire::HolderBody {
        grant_id: Some(reader.id.0.get()),
        update: reader.update,
        slots: reader.slots.iter().collect(),
        acquired_at: Some(wall_time(reader.acquired_at)),
        metadata: reader.metadata.as_deref().map(str::to_owned),
        ..holder(&reader.holder)
    }
}

fn queued(queued: &Queued) -> wire::QueuedBody {
    wire::QueuedBody {
        client_id: queued.client.as_str().to_owned(),
        mode: match queued.mode {
            LockMode::Exclusive => wire::LockMode::Exclusive,
            LockMode::Shared => wire::LockMode::Shared,
            LockMode::Update => wire::LockMode::Update,
            LockMode::Upgrade => wire::LockMode::Upgrade,
            LockMode::Permits(_) => wire::LockMode::Permits,
        },
        permits: queued.mode.permits().map(|permits| wire::PermitsBody {
            count: permits.wanted().into(),
            of: permits.of().into(),
        }),
        waited_ms: queued.waited.as_millis(),
        remaining_ms: queued.remaining.as_millis(),
    }
}

pub(in crate::net) fn holder(holder: &Holder) -> wire::HolderBody {
    wire::HolderBody {
        client_id: holder.client.as_str().to_owned(),
        fencing_token: holder.token.get(),
        remaining_ms: holder.remaining.as_millis(),
        ..wire::HolderBody::default()
    }
}

pub(in crate::net) fn page(locks: &[LockView], next: Option<u64>) -> wire::ListReply {
    wire::ListReply {
        locks: locks.iter().map(lock).collect(),
        next_cursor: next.map(next_cursor),
    }
}

pub(in crate::net) fn ranking(ranked: &Ranked) -> wire::RankingReply {
    wire::RankingReply {
        age_ms: u64::try_from(ranked.age().as_millis()).unwrap_or(u64::MAX),
        held: ranked.held,
        contended: ranked.contended.iter().map(lock).collect(),
        oldest: ranked.oldest.iter().map(lock).collect(),
        longest_wait: ranked.longest_wait.as_ref().map(lock),
    }
}

pub(in crate::net) fn status(
    status: &Status,
    identity: &Identity,
    log_full: bool,
    counts: wire::CountsBody,
) -> wire::StatusReply {
    wire::StatusReply {
        authority: identity.authority.as_str().to_owned(),
        incarnation: identity.incarnation.clone(),
        next_token: status.next_token.map(Token::get),
        locks: status.locks as u64,
        leases: status.leases as u64,
        waiters: status.waiters as u64,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        manual_clock: status.manual_clock,
        log_full,
        counts,
    }
}

/// The name and the data of a server-sent event.
pub(in crate::net) fn event(event: &Event) -> (&'static str, wire::EventBody) {
    let (name, ttl, reason, delayed) = match &event.change {
        Change::Granted { ttl } => ("granted", Some(ttl.as_millis().into()), None, None),
        Change::Proclaimed => ("proclaimed", None, None, None),
        Change::Opened { reason } => ("opened", None, Some(&**reason), None),
        Change::Ended {
            how,
            reason,
            delayed,
        } => (ending(*how), None, reason.as_deref(), *delayed),
    };
    let body = wire::EventBody {
        revision: event.revision,
        time: wall_time(event.wall),
        resource_id: event.lock.as_str().to_owned(),
        client_id: event.client.as_ref().map(ToString::to_string),
        fencing_token: event.token.get(),
        grant_id: event.shared.map(|id| id.0.get()),
        lease_duration_ms: ttl,
        reason: reason.map(str::to_owned),
        delayed_ms: delayed.map(Span::as_millis),
        ..wire::EventBody::default()
    };
    (name, body.with_options(event.detail.options))
}

pub(in crate::net) fn ending(how: Ending) -> &'static str {
    match how {
        Ending::Released => "released",
        Ending::Expired => "expired",
        Ending::Revoked => "revoked",
        Ending::Superseded => "superseded",
    }
}

pub(in crate::net) fn error(refusal: &Refusal) -> wire::ErrorBody {
    wire::ErrorBody {
        retry_after_ms: refusal.retry_after_ms(),
        highest: refusal.highest.map(Token::get),
        fencing_token: refusal.token.map(Token::get),
        leader: refusal.leader.as_deref().map(str::to_owned),
        ..wire::ErrorBody::new(refusal.code, refusal.message.clone())
    }
}

/// RFC 3339, UTC, with milliseconds.
pub(in crate::net) fn wall_time(wall: WallTime) -> String {
    let instant = i64::try_from(wall.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    // A time beyond the year 9999 cannot be printed; no decision depends on it.
    format!("{:.3}", instant.unwrap_or(jiff::Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> wire::AcquireBody {
        wire::AcquireBody {
            client_id: "a".into(),
            lease_duration_ms: Some(10_000),
            ..wire::AcquireBody::default()
        }
    }

    #[test]
    fn wall_times_are_rfc_3339_with_milliseconds() {
        assert_eq!(wall_time(WallTime(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            wall_time(WallTime(1_779_530_400_123)),
            "2026-05-23T10:00:00.123Z"
        );
        assert_eq!(wall_time(WallTime(u64::MAX)), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn request_ids_are_digits_or_a_uuid() {
        let plain = request_id("000102030405060708090a0b0c0d0e0f").unwrap();
        assert_eq!(
            request_id("00010203-0405-0607-0809-0A0B0C0D0E0F").unwrap(),
            plain
        );
        for bad in [
            "",
            "0",
            "00010203-0405-0607-08090a0b0c0d0e0f00",
            "ü00102030405060708090a0b0c0d0e0f",
        ] {
            assert!(request_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cursors_survive_a_round_trip() {
        for position in [0, 1, u64::MAX] {
            assert_eq!(cursor(&next_cursor(position)), Ok(position));
        }
        for bad in ["", "7", "a", "a+00000000000000f", "b0000000000000000"] {
            assert!(cursor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_clock_moves_forward_and_not_too_far() {
        for ms in [0, wire::MAX_ADVANCE_MS + 1, u64::MAX] {
            assert!(advance(&wire::AdvanceBody { ms }).is_err());
        }
        assert!(advance(&wire::AdvanceBody { ms: 1 }).is_ok());
    }

    #[test]
    fn a_request_has_a_duration_or_names_a_lease() {
        let lock = LockName::new("x").unwrap();
        assert!(acquire(lock.clone(), &body()).is_ok());
        let none = wire::AcquireBody {
            lease_duration_ms: None,
            ..body()
        };
        assert!(acquire(lock.clone(), &none).is_err());
        let under = wire::AcquireBody {
            lock_token: Some("00".repeat(16)),
            ..none
        };
        assert!(acquire(lock, &under).is_ok());
    }
}

//! Conversions of the gRPC types.

use std::mem::discriminant;

use palisade_core::{
    Change, Ending, Event, GrantOptions, GrantRef, LeaseKey, LockMode, LockView, Outcome, Queued,
    Reader, RequestId, Span, Token, Wish,
};
use palisade_proto::borrowed;
use palisade_proto::v1::{self, notice::Event as Told, reply::Outcome as Say, request::Operation};

use super::{Refusal, refusal};
use palisade_pipeline::{Answer, Heard, Identity, Listened, News, Request, Status};

/// One operation of a session.
pub(in crate::net) fn operation(operation: Option<Operation>) -> Result<Request, Refusal> {
    match operation {
        Some(Operation::Acquire(message)) => acquire(&message),
        Some(Operation::Renew(message)) => renew(&message),
        Some(Operation::Proclaim(message)) => proclaim(&message),
        Some(Operation::Release(message)) => release(&message),
        Some(Operation::Abandon(message)) => abandon(&message),
        Some(Operation::Break(message)) => revoke(&message),
        Some(Operation::Open(message)) => open(&message),
        Some(Operation::Resize(message)) => resize(&message),
        Some(Operation::Show(message)) => show(&message),
        Some(Operation::List(message)) => list(&message),
        Some(Operation::Status(v1::StatusRequest {})) => Ok(Request::Status),
        Some(Operation::Listen(message)) => listen(&message),
        None => Err(Refusal::invalid(
            "the operation is missing, or unknown to this server",
        )),
    }
}

/// One of the operations that most frames consist of.
pub(in crate::net) fn borrowed(operation: borrowed::Operation<'_>) -> Result<Request, Refusal> {
    use borrowed::Operation;
    match operation {
        Operation::Acquire(message) => wish(message, &[]),
        Operation::Renew {
            grant,
            lease_duration_ms,
        } => Ok(Request::Renew {
            grant: self::grant(grant.lock, grant.lock_token, grant.fencing_token)?,
            ttl: number(lease_duration_ms.into(), super::ttl)?,
        }),
        Operation::Release(of) => {
            grant(of.lock, of.lock_token, of.fencing_token).map(Request::Release)
        }
    }
}

pub(in crate::net) fn acquire(message: &v1::AcquireRequest) -> Result<Request, Refusal> {
    let plain = borrowed::Acquire {
        lock: &message.lock,
        client_id: &message.client_id,
        lease_duration_ms: message.lease_duration_ms,
        wait_ms: message.wait_ms,
        lock_token: &message.lock_token,
        request_id: &message.request_id,
        metadata: &message.metadata,
    };
    wish(plain, &message.options)
}

fn wish(message: borrowed::Acquire<'_>, wanted: &[v1::AcquireOption]) -> Result<Request, Refusal> {
    let lock = super::lock_name("lock", message.lock)?;
    let client = super::client_id(message.client_id)?;
    let lease = given(message.lock_token, lease_key)?;
    let ttl = number(message.lease_duration_ms.into(), super::ttl)?;
    let Options { mode, grant, also } = options(wanted)?;
    let (lock, also) = super::set(lock, also)?;
    Ok(Request::Acquire(Wish {
        lock,
        client,
        mode,
        under: super::under(lease, ttl)?,
        wait: super::wait(message.wait_ms.into())?,
        request: given(message.request_id, request_id)?,
        metadata: super::metadata(message.metadata)?,
        options: grant,
        also,
    }))
}

pub(in crate::net) fn renew(message: &v1::RenewRequest) -> Result<Request, Refusal> {
    Ok(Request::Renew {
        grant: grant(&message.lock, &message.lock_token, message.fencing_token)?,
        ttl: number(message.lease_duration_ms.into(), super::ttl)?,
    })
}

/// A request for a sequencer carries the lease's key, as a renewal does.
pub(in crate::net) fn sequencer(message: &v1::SequencerRequest) -> Result<Request, Refusal> {
    Ok(Request::Renew {
        grant: grant(&message.lock, &message.lock_token, message.fencing_token)?,
        ttl: None,
    })
}

pub(in crate::net) fn proclaim(message: &v1::ProclaimRequest) -> Result<Request, Refusal> {
    Ok(Request::Proclaim {
        grant: grant(&message.lock, &message.lock_token, message.fencing_token)?,
        value: super::value(&message.value)?,
    })
}

pub(in crate::net) fn release(message: &v1::ReleaseRequest) -> Result<Request, Refusal> {
    grant(&message.lock, &message.lock_token, message.fencing_token).map(Request::Release)
}

fn listen(message: &v1::ListenRequest) -> Result<Request, Refusal> {
    let grants = message.grants.iter().map(|named| {
        let number = super::token(named.fencing_token)?;
        Ok(Listened {
            grant: grant(&named.lock, &named.lock_token, named.fencing_token)?,
            number,
            waiters: named.waiters,
        })
    });
    super::listened(grants)
}

/// News for the session that named the grant with operation `id`.
pub(in crate::net) fn notice(id: u64, heard: Heard) -> v1::Reply {
    let notice = match heard {
        Heard::News { lock, number, news } => v1::Notice {
            lock: lock.as_str().to_owned(),
            fencing_token: number.get(),
            event: Some(match news {
                News::Ended { how, reason } => Told::Ended(v1::GrantEnded {
                    how: how.map_or(v1::Ending::Unspecified, ending).into(),
                    reason: reason.map(String::from).unwrap_or_default(),
                }),
                News::Wanted(waiters) => Told::Wanted(waiters),
            }),
        },
        Heard::NotHere => v1::Notice {
            event: Some(Told::NotHere(v1::Done {})),
            ..v1::Notice::default()
        },
    };
    v1::Reply {
        id,
        outcome: Some(Say::Notice(notice)),
    }
}

pub(in crate::net) fn abandon(message: &v1::AbandonRequest) -> Result<Request, Refusal> {
    request_id(&message.request_id).map(Request::Abandon)
}

pub(in crate::net) fn revoke(message: &v1::BreakRequest) -> Result<Request, Refusal> {
    Ok(Request::Revoke {
        lock: super::lock_name("lock", &message.lock)?,
        token: super::token(message.fencing_token)?,
        reason: super::reason(&message.reason)?,
    })
}

pub(in crate::net) fn open(message: &v1::OpenRequest) -> Result<Request, Refusal> {
    Ok(Request::Open {
        lock: super::lock_name("lock", &message.lock)?,
        reason: super::reason(&message.reason)?,
    })
}

pub(in crate::net) fn resize(message: &v1::ResizeRequest) -> Result<Request, Refusal> {
    Ok(Request::Resize {
        lock: super::lock_name("lock", &message.lock)?,
        permits: super::permits_of_all(message.permits.into())?,
    })
}

pub(in crate::net) fn show(message: &v1::ShowRequest) -> Result<Request, Refusal> {
    super::lock_name("lock", &message.lock).map(Request::Show)
}

pub(in crate::net) fn list(message: &v1::ListRequest) -> Result<Request, Refusal> {
    Ok(Request::List {
        prefix: super::prefix(&message.prefix)?,
        cursor: message.cursor,
        limit: super::page_limit((message.limit > 0).then(|| message.limit.into()))?,
    })
}

fn grant(lock: &str, key: &[u8], token: u64) -> Result<GrantRef, Refusal> {
    Ok(GrantRef {
        lock: super::lock_name("lock", lock)?,
        key: lease_key(key)?,
        token: number(token, super::token)?,
    })
}

/// The options of an acquire, decoded.
struct Options<'a> {
    mode: LockMode,
    grant: GrantOptions,
    also: &'a [String],
}

/// Decodes the options. An option that this server does not know decodes to none.
fn options(options: &[v1::AcquireOption]) -> Result<Options<'_>, Refusal> {
    let (mut mode, mut grant, mut also) = (None, GrantOptions::NONE, None);
    for (place, option) in options.iter().enumerate() {
        use v1::acquire_option::Option as Wanted;
        let wanted = option.option.as_ref().ok_or_else(|| {
            Refusal::invalid("an option of the acquire is empty, or unknown to this server")
        })?;
        let wanted = match wanted {
            Wanted::Mode(wanted) => plain_mode(*wanted)?,
            Wanted::Permits(v1::Permits { count, of }) => {
                super::permits((*count).into(), (*of).into()).map(LockMode::Permits)?
            }
            Wanted::Also(wanted) => {
                if also.replace(wanted.locks.as_slice()).is_some() {
                    return Err(Refusal::invalid("the option also is given twice"));
                }
                continue;
            }
            of_grant => {
                // There are few options, so a message of many has one twice near its beginning.
                let same = |other: &v1::AcquireOption| other.option.as_ref().map(discriminant);
                let kind = Some(discriminant(of_grant));
                if options[..place].iter().any(|other| same(other) == kind) {
                    let name = palisade_proto::options::name(of_grant);
                    return Err(Refusal::invalid(format!(
                        "the option {name} is given twice"
                    )));
                }
                let with = palisade_proto::options::add(grant, of_grant);
                grant = with.map_err(|invalid| super::of_option(&invalid))?;
                continue;
            }
        };
        if mode.replace(wanted).is_some() {
            return Err(Refusal::invalid(
                "the option mode is given twice, or together with permits",
            ));
        }
    }
    Ok(Options {
        mode: mode.unwrap_or_default(),
        grant,
        also: also.unwrap_or_default(),
    })
}

fn plain_mode(wanted: i32) -> Result<LockMode, Refusal> {
    match v1::LockMode::try_from(wanted) {
        Ok(v1::LockMode::Exclusive) => Ok(LockMode::Exclusive),
        Ok(v1::LockMode::Shared) => Ok(LockMode::Shared),
        Ok(v1::LockMode::Update) => Ok(LockMode::Update),
        Ok(v1::LockMode::Upgrade) => Ok(LockMode::Upgrade),
        Ok(v1::LockMode::Permits) => Err(Refusal::invalid(
            "mode permits (3) does not say how many: use the option permits instead",
        )),
        Ok(v1::LockMode::Unspecified) | Err(_) => Err(Refusal::invalid(format!(
            "mode must be exclusive (1), shared (2), update (4) or upgrade (5), not {wanted}"
        ))),
    }
}

/// In the messages an empty field means "not given".
fn given<T>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Result<T, Refusal>,
) -> Result<Option<T>, Refusal> {
    if bytes.is_empty() {
        Ok(None)
    } else {
        read(bytes).map(Some)
    }
}

/// In the messages 0 means "not given".
fn number<T>(number: u64, read: impl Fn(u64) -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    if number == 0 {
        Ok(None)
    } else {
        read(number).map(Some)
    }
}

fn lease_key(bytes: &[u8]) -> Result<LeaseKey, Refusal> {
    sixteen("lock_token", bytes).map(LeaseKey::from_bytes)
}

fn request_id(bytes: &[u8]) -> Result<RequestId, Refusal> {
    sixteen("request_id", bytes).map(RequestId::from_bytes)
}

fn sixteen(field: &str, bytes: &[u8]) -> Result<[u8; 16], Refusal> {
    bytes
        .try_into()
        .map_err(|_| Refusal::invalid(format!("{field} must be 16 bytes, not {}", bytes.len())))
}

/// The reply to operation `id`.
pub(in crate::net) fn reply(id: u64, answer: Answer, identity: &Identity) -> v1::Reply {
    let outcome = match answer {
        Answer::Outcome(outcome) => say(outcome),
        Answer::Lock(view) => Say::Lock(lock_view(*view)),
        Answer::States(_) => Say::Listening(v1::Done {}),
        Answer::Locks { locks, next } => Say::Page(v1::LockPage {
            locks: locks.into_iter().map(lock_view).collect(),
            next_cursor: next.unwrap_or(0),
        }),
        Answer::Status(status) => Say::Status(self::status(&status, identity)),
        other @ (Answer::Grants { .. } | Answer::Clock(_) | Answer::Failed(_)) => {
            Say::Error(error(&refusal(other)))
        }
    };
    v1::Reply {
        id,
        outcome: Some(outcome),
    }
}

/// The reply with a sequencer.
pub(in crate::net) fn sequenced(token: Token, sequencer: String) -> v1::Reply {
    v1::Reply {
        id: 0,
        outcome: Some(Say::Sequencer(v1::Sequencer {
            fencing_token: token.get(),
            sequencer,
        })),
    }
}

/// The reply to an operation that never reached the pipeline.
pub(in crate::net) fn refused(id: u64, refusal: &Refusal) -> v1::Reply {
    v1::Reply {
        id,
        outcome: Some(Say::Error(error(refusal))),
    }
}

fn say(outcome: Outcome) -> Say {
    match outcome {
        Outcome::Granted(granted) => Say::Granted(v1::Granted {
            fencing_token: granted.token.get(),
            lock_token: granted.key.as_bytes().to_vec(),
            lease_id: granted.lease.0.get(),
            lease_duration_ms: granted.ttl.as_millis(),
            valid_for_ms: granted.valid_for.as_millis(),
            waited_ms: granted.waited.as_millis(),
            acquired_at_ms: granted.acquired_at.0,
            grant_id: granted.shared.map_or(0, |id| id.0.get()),
            slots: granted.slots.iter().collect(),
        }),
        Outcome::Held(holder) => Say::Held(self::holder(&holder)),
        // Without a token: it holds nothing.
        Outcome::Behind(ahead) => Say::Held(v1::Holder {
            client_id: ahead.client.as_str().to_owned(),
            fencing_token: 0,
            remaining_ms: ahead.remaining.as_millis(),
        }),
        Outcome::Renewed(renewed) => Say::Renewed(v1::Renewed {
            fencing_token: renewed.token.get(),
            lease_duration_ms: renewed.ttl.as_millis(),
            valid_for_ms: renewed.valid_for.as_millis(),
            waiters: renewed.waiters,
        }),
        Outcome::Proclaimed { token, revision } => Say::Proclaimed(v1::Proclaimed {
            fencing_token: token.get(),
            revision,
        }),
        Outcome::Released { token, delayed } => released(token, delayed),
        // The revoked grant is over: reported as an ending, which a repeat gets too.
        Outcome::Revoked { token } => self::ended(token, Ending::Revoked),
        Outcome::Ended { token, how } => self::ended(token, how),
        Outcome::Done => Say::Done(v1::Done {}),
        other => Say::Error(error(&super::denial(other))),
    }
}

fn released(token: Token, delayed: Option<Span>) -> Say {
    Say::Released(v1::Released {
        fencing_token: token.get(),
        delayed_ms: delayed.map_or(0, Span::as_millis),
    })
}

fn ended(token: Token, how: Ending) -> Say {
    Say::Ended(v1::Ended {
        fencing_token: token.get(),
        how: ending(how).into(),
    })
}

fn ending(how: Ending) -> v1::Ending {
    match how {
        Ending::Released => v1::Ending::Released,
        Ending::Expired => v1::Ending::Expired,
        Ending::Revoked => v1::Ending::Revoked,
        Ending::Superseded => v1::Ending::Superseded,
    }
}

fn holder(holder: &palisade_core::Holder) -> v1::Holder {
    v1::Holder {
        client_id: holder.client.as_str().to_owned(),
        fencing_token: holder.token.get(),
        remaining_ms: holder.remaining.as_millis(),
    }
}

fn lock_view(view: LockView) -> v1::LockView {
    v1::LockView {
        lock: view.lock.as_str().to_owned(),
        revision: view.revision.unwrap_or(0),
        holder: view.holder.as_ref().map(holder),
        extensions: view.extensions,
        waiters: view.waiters,
        lease_id: view.lease.map_or(0, |lease| lease.0.get()),
        acquired_at_ms: view.acquired_at.map_or(0, |wall| wall.0),
        metadata: view.metadata.map(String::from).unwrap_or_default(),
        reader_count: view.reader_count,
        readers: view.readers.into_iter().map(reader).collect(),
        queue: view.queue.into_iter().map(queued).collect(),
        permits: view.permits.unwrap_or(0),
        delayed_ms: view.delayed.map_or(0, Span::as_millis),
        options: palisade_proto::options::messages(view.options),
    }
}

fn reader(reader: Reader) -> v1::Reader {
    v1::Reader {
        holder: Some(holder(&reader.holder)),
        grant_id: reader.id.0.get(),
        acquired_at_ms: reader.acquired_at.0,
        metadata: reader.metadata.map(String::from).unwrap_or_default(),
        slots: reader.slots.iter().collect(),
        update: reader.update,
    }
}

fn queued(queued: Queued) -> v1::Queued {
    let mode = match queued.mode {
        LockMode::Exclusive => v1::LockMode::Exclusive,
        LockMode::Shared => v1::LockMode::Shared,
        LockMode::Update => v1::LockMode::Update,
        LockMode::Upgrade => v1::LockMode::Upgrade,
        LockMode::Permits(_) => v1::LockMode::Permits,
    };
    v1::Queued {
        client_id: queued.client.as_str().to_owned(),
        mode: mode.into(),
        waited_ms: queued.waited.as_millis(),
        remaining_ms: queued.remaining.as_millis(),
        permits: queued.mode.permits().map(|permits| v1::Permits {
            count: permits.wanted(),
            of: permits.of(),
        }),
    }
}

fn status(status: &Status, identity: &Identity) -> v1::Status {
    v1::Status {
        authority: identity.authority.as_str().to_owned(),
        incarnation: identity.incarnation.clone(),
        next_token: status.next_token.map_or(0, Token::get),
        locks: status.locks as u64,
        leases: status.leases as u64,
        waiters: status.waiters as u64,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        manual_clock: status.manual_clock,
    }
}

fn error(refusal: &Refusal) -> v1::Error {
    v1::Error {
        code: refusal.code.name().to_owned(),
        message: refusal.message.clone(),
        highest: refusal.highest.map_or(0, Token::get),
        leader: refusal.leader.as_deref().unwrap_or_default().to_owned(),
        retry_after_ms: refusal.retry_after.map_or(0, Span::as_millis),
    }
}

/// One change, for a watcher.
pub(in crate::net) fn event(event: &Event) -> v1::Event {
    use v1::event::Change as Wire;
    let (change, reason, delayed) = match &event.change {
        Change::Granted { ttl } => (Wire::GrantedMs(ttl.as_millis()), None, None),
        Change::Proclaimed => (Wire::Proclaimed(v1::Done {}), None, None),
        Change::Opened { reason } => (Wire::Opened(v1::Done {}), Some(&**reason), None),
        Change::Ended {
            how,
            reason,
            delayed,
        } => (
            Wire::Ended(ending(*how).into()),
            reason.as_deref(),
            *delayed,
        ),
    };
    v1::Event {
        revision: event.revision,
        lock: event.lock.as_str().to_owned(),
        client_id: event.client.as_deref().unwrap_or_default().to_owned(),
        fencing_token: event.token.get(),
        change: Some(change),
        reason: reason.unwrap_or_default().to_owned(),
        missed: 0,
        grant_id: event.shared.map_or(0, |id| id.0.get()),
        delayed_ms: delayed.map_or(0, Span::as_millis),
        time_ms: event.wall.0,
        options: palisade_proto::options::messages(event.detail.options),
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::{AuthorityId, Ttl, Under, WallTime};
    use palisade_proto::Code;
    use prost::Message as _;

    use super::*;

    fn message() -> v1::AcquireRequest {
        v1::AcquireRequest {
            lock: "orders".into(),
            client_id: "a".into(),
            lease_duration_ms: 10_000,
            ..v1::AcquireRequest::default()
        }
    }

    fn identity() -> Identity {
        Identity {
            authority: AuthorityId::new("auth").unwrap(),
            incarnation: "i1".into(),
        }
    }

    #[test]
    fn a_plain_acquire_is_a_try_under_a_new_lease() {
        let Ok(Request::Acquire(acquire)) = acquire(&message()) else {
            panic!("refused")
        };
        assert_eq!(
            (acquire.lock.as_str(), acquire.client.as_str()),
            ("orders", "a")
        );
        assert_eq!(acquire.under, Under::new(Ttl::from_millis(10_000).unwrap()));
        assert!(acquire.wait.is_none() && acquire.request.is_none());
        assert!(acquire.metadata.is_none());
    }

    #[test]
    fn an_existing_lease_may_leave_its_duration_out_and_a_new_one_may_not() {
        let under = v1::AcquireRequest {
            lock_token: vec![7; 16],
            lease_duration_ms: 0,
            ..message()
        };
        assert!(acquire(&under).is_ok());
        let new = v1::AcquireRequest {
            lease_duration_ms: 0,
            ..message()
        };
        let refused = acquire(&new).unwrap_err();
        assert!(
            refused.message.starts_with("lease_duration_ms is missing"),
            "{refused:?}"
        );
    }

    #[test]
    fn bad_fields_are_invalid_and_named() {
        type Spoil = fn(&mut v1::AcquireRequest);
        let cases: [(&str, Spoil); 10] = [
            ("lock: lock name is empty", |m| m.lock.clear()),
            ("lock: lock name has 256 bytes", |m| {
                m.lock = "x".repeat(256)
            }),
            ("lock: lock name has a byte at offset 1", |m| {
                m.lock = "aü".into()
            }),
            ("client_id: client id is empty", |m| m.client_id.clear()),
            ("lease_duration_ms: a lease of 99 ms", |m| {
                m.lease_duration_ms = 99
            }),
            ("lease_duration_ms: a lease of 4294967295 ms", |m| {
                m.lease_duration_ms = u32::MAX
            }),
            ("wait_ms: a wait of 4294967295 ms", |m| m.wait_ms = u32::MAX),
            ("lock_token must be 16 bytes, not 3", |m| {
                m.lock_token = vec![0; 3]
            }),
            ("request_id must be 16 bytes, not 17", |m| {
                m.request_id = vec![0; 17]
            }),
            ("metadata has 257 bytes", |m| m.metadata = "x".repeat(257)),
        ];
        for (says, spoil) in cases {
            let mut bad = message();
            spoil(&mut bad);
            let refused = acquire(&bad).unwrap_err();
            assert_eq!(refused.code, Code::Invalid);
            assert!(
                refused.message.starts_with(says),
                "{says}: {}",
                refused.message
            );
        }
    }

    #[test]
    fn an_option_is_known_whole_and_given_once_or_the_request_is_refused() {
        use v1::acquire_option::Option::Mode as Wanted;
        let with = |options: &[Option<v1::acquire_option::Option>]| v1::AcquireRequest {
            options: options
                .iter()
                .map(|option| v1::AcquireOption {
                    option: option.clone(),
                })
                .collect(),
            ..message()
        };
        for (options, mode) in [
            (vec![], LockMode::Exclusive),
            (vec![Some(Wanted(1))], LockMode::Exclusive),
            (vec![Some(Wanted(2))], LockMode::Shared),
        ] {
            let Ok(Request::Acquire(asked)) = acquire(&with(&options)) else {
                panic!("refused")
            };
            assert_eq!(asked.mode, mode);
        }
        for (options, says) in [
            (vec![None], "an option of the acquire is empty, or unknown"),
            (
                vec![Some(Wanted(0))],
                "mode must be exclusive (1), shared (2), update (4) or upgrade (5), not 0",
            ),
            (
                vec![Some(Wanted(9))],
                "mode must be exclusive (1), shared (2), update (4) or upgrade (5), not 9",
            ),
            (
                vec![Some(Wanted(2)), Some(Wanted(1))],
                "the option mode is given twice",
            ),
        ] {
            let refused = acquire(&with(&options)).unwrap_err();
            assert!(refused.message.starts_with(says), "{}", refused.message);
        }
        // An option of a later version, as its bytes arrive: field 15 of AcquireOption.
        let later = v1::AcquireOption::decode(&[0x78, 0x05][..]).unwrap();
        assert_eq!(later.option, None);
    }

    #[test]
    fn tokens_out_of_range_are_refused_and_zero_means_none_where_allowed() {
        let renewal = |fencing_token| v1::RenewRequest {
            lock: "x".into(),
            lock_token: vec![0; 16],
            fencing_token,
            lease_duration_ms: 0,
        };
        let Ok(Request::Renew { grant, ttl: None }) = renew(&renewal(0)) else {
            panic!("refused")
        };
        assert_eq!(grant.token, None);
        assert!(renew(&renewal(1 << 53)).is_err());
        let revocation = |fencing_token| v1::BreakRequest {
            lock: "x".into(),
            fencing_token,
            reason: String::new(),
        };
        assert!(revoke(&revocation(0)).is_err());
        assert!(revoke(&revocation(1 << 53)).is_err());
        assert!(revoke(&revocation(1)).is_ok());
        assert!(abandon(&v1::AbandonRequest { request_id: vec![] }).is_err());
        assert!(operation(None).is_err());
    }

    #[test]
    fn a_grant_reply_has_all_fields() {
        let granted = palisade_core::Granted {
            token: Token::new(34).unwrap(),
            shared: Some(palisade_core::GrantId(Token::new(36).unwrap())),
            slots: palisade_core::Slots::NONE,
            lease: palisade_core::LeaseId(Token::new(30).unwrap()),
            key: LeaseKey::from_bytes([9; 16]),
            ttl: Ttl::from_millis(10_000).unwrap(),
            valid_for: Span::from_millis(10_500),
            waited: Span::from_millis(500),
            acquired_at: WallTime(77),
        };
        let reply = reply(5, Answer::Outcome(Outcome::Granted(granted)), &identity());
        let granted = v1::Granted {
            slots: Vec::new(),
            fencing_token: 34,
            lock_token: vec![9; 16],
            lease_id: 30,
            lease_duration_ms: 10_000,
            valid_for_ms: 10_500,
            waited_ms: 500,
            acquired_at_ms: 77,
            grant_id: 36,
        };
        assert_eq!(
            reply,
            v1::Reply {
                id: 5,
                outcome: Some(Say::Granted(granted))
            }
        );
    }

    #[test]
    fn a_refusal_is_an_error_reply_with_its_code() {
        let failed = Answer::Failed(palisade_pipeline::Failure::Unavailable("full".into()));
        let Some(Say::Error(error)) = reply(1, failed, &identity()).outcome else {
            panic!("none")
        };
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            ("unavailable", "full")
        );
        let stale = Answer::Outcome(Outcome::Stale {
            named: Token::new(8).unwrap(),
            highest: Token::new(9).unwrap(),
        });
        let Some(Say::Error(error)) = reply(1, stale, &identity()).outcome else {
            panic!("none")
        };
        assert_eq!((error.code.as_str(), error.highest), ("stale", 9));
    }
}

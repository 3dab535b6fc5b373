//! A request that waits for a connection, and its encoding into a frame.

use palisade_core::{GrantRef, Timestamp, Token, Ttl};
use palisade_proto::borrowed::{Acquire, Grant, Operation};
use palisade_proto::frames::FrameBuilder;
use palisade_proto::v1 as pb;

use super::listening::NoticeSender;
use super::wire;
use crate::clock::{BootClock, Clock as _};
use crate::service::{AcquireRequest, Under};

/// A request. The frequent ones are encoded from the client's own types, without a copy.
#[derive(Debug)]
pub(super) enum Request {
    /// An acquire without options.
    Acquire(AcquireRequest),
    Renew(GrantRef, Option<Ttl>),
    Release(GrantRef),
    /// Grants to hear of; the first ones of a listener bring where to send its notices.
    Listen(pb::ListenRequest, Option<NoticeSender>),
    /// Anything else.
    Message(Box<pb::request::Operation>),
}

impl From<pb::request::Operation> for Request {
    fn from(operation: pb::request::Operation) -> Request {
        Request::Message(Box::new(operation))
    }
}

impl From<AcquireRequest> for Request {
    fn from(request: AcquireRequest) -> Request {
        if request.is_plain() {
            return Request::Acquire(request);
        }
        pb::request::Operation::Acquire(wire::acquire(request)).into()
    }
}

impl Request {
    /// Whether it may wait in the lock's queue.
    pub(super) fn waits(&self) -> bool {
        match self {
            Request::Acquire(request) => request.wait.is_some(),
            Request::Message(operation) => {
                matches!(&**operation, pb::request::Operation::Acquire(acquire) if acquire.wait_ms > 0)
            }
            Request::Renew(..) | Request::Release(_) | Request::Listen(..) => false,
        }
    }

    /// Encodes it into a frame that is sent now. The time that it has waited for a connection since `since` is part of
    /// its wait.
    pub(super) fn put(
        self,
        id: u64,
        since: Option<Timestamp>,
        frame: &FrameBuilder,
        out: &mut Vec<u8>,
    ) {
        match self {
            Request::Acquire(request) => acquire(&request, since).put(id, out),
            Request::Renew(grant, ttl) => {
                let renew = Operation::Renew {
                    grant: named(&grant),
                    lease_duration_ms: ttl.map_or(0, Ttl::as_millis),
                };
                renew.put(id, out);
            }
            Request::Release(grant) => Operation::Release(named(&grant)).put(id, out),
            Request::Listen(listen, _) => {
                let operation = Some(pb::request::Operation::Listen(listen));
                frame.put(out, &pb::Request { id, operation });
            }
            Request::Message(mut operation) => {
                if let pb::request::Operation::Acquire(acquire) = &mut *operation {
                    acquire.wait_ms = left(acquire.wait_ms, since);
                }
                let operation = Some(*operation);
                frame.put(out, &pb::Request { id, operation });
            }
        }
    }
}

fn acquire(request: &AcquireRequest, since: Option<Timestamp>) -> Operation<'_> {
    let (lease_duration_ms, lock_token) = match &request.under {
        Under::New { ttl, .. } => (ttl.as_millis(), &[][..]),
        Under::Existing { key, .. } => (0, &key.as_bytes()[..]),
    };
    Operation::Acquire(Acquire {
        lock: &request.lock,
        client_id: &request.client,
        lease_duration_ms,
        wait_ms: left(request.wait.map_or(0, wire::wait_ms), since),
        lock_token,
        request_id: request.request.as_bytes(),
        metadata: request.metadata.as_deref().unwrap_or_default(),
    })
}

fn named(grant: &GrantRef) -> Grant<'_> {
    Grant {
        lock: &grant.lock,
        lock_token: grant.key.as_bytes(),
        fencing_token: grant.token.map_or(0, Token::get),
    }
}

/// Returns the rest of a wait, at least 1 ms, because 0 would be a try.
fn left(wait_ms: u32, since: Option<Timestamp>) -> u32 {
    since.map_or(wait_ms, |since| {
        let waited = BootClock.now().since(since).as_millis();
        let waited = u32::try_from(waited).unwrap_or(u32::MAX);
        wait_ms.saturating_sub(waited).max(1)
    })
}

#[cfg(test)]
mod tests {
    use palisade_core::{ClientId, LeaseKey, LockMode, LockName, RequestId, Span};

    use super::*;

    fn sent(request: impl Into<Request>, since: Option<Timestamp>) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = FrameBuilder::at_end(&mut out);
        request.into().put(300, since, &frame, &mut out);
        frame.close(&mut out);
        out
    }

    fn acquire(lock: &str, client: &str, under: Under<()>) -> AcquireRequest {
        AcquireRequest::new(
            LockName::new(lock).unwrap(),
            ClientId::new(client).unwrap(),
            under,
            RequestId::from_bytes([9; 16]),
        )
    }

    #[test]
    fn a_plain_acquire_is_sent_as_its_message() {
        let long = "n".repeat(255);
        let waits = [0, 1, 999_999, 30_000_000_000, 86_400_000_000_000];
        for (lock, client) in [("a", "b"), ("orders", "host-1-7f/12"), (&long, &long)] {
            for under in [
                Under::new(Ttl::MAX),
                Under::existing(LeaseKey::from_bytes([0; 16])),
            ] {
                for wait in waits.map(|nanos| (nanos > 0).then(|| Span::from_nanos(nanos))) {
                    for metadata in [None, Some(""), Some("x"), Some(&*long)] {
                        let request = AcquireRequest {
                            wait,
                            metadata: metadata.map(Box::from),
                            ..acquire(lock, client, under)
                        };
                        let message = wire::acquire(request.clone());
                        assert!(matches!(request.clone().into(), Request::Acquire(_)));
                        assert_eq!(
                            sent(request, None),
                            sent(pb::request::Operation::Acquire(message), None)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn an_acquire_with_options_is_sent_as_its_message() {
        let request = AcquireRequest {
            mode: LockMode::Shared,
            ..acquire("a", "b", Under::new(Ttl::MIN))
        };
        let message = wire::acquire(request.clone());
        assert!(!message.options.is_empty());
        let message = pb::request::Operation::Acquire(message);
        assert_eq!(sent(request, None), sent(message, None));
    }

    #[test]
    fn renewals_and_releases_are_sent_as_their_messages() {
        for token in [None, Some(Token::FIRST), Some(Token::MAX)] {
            let grant = GrantRef {
                lock: LockName::new("orders").unwrap(),
                key: LeaseKey::from_bytes([7; 16]),
                token,
            };
            let fencing_token = token.map_or(0, Token::get);
            let release = pb::ReleaseRequest {
                lock: "orders".to_owned(),
                lock_token: vec![7; 16],
                fencing_token,
            };
            assert_eq!(
                sent(Request::Release(grant.clone()), None),
                sent(pb::request::Operation::Release(release), None)
            );
            for ttl in [None, Some(Ttl::MIN), Some(Ttl::MAX)] {
                let renew = pb::RenewRequest {
                    lock: "orders".to_owned(),
                    lock_token: vec![7; 16],
                    fencing_token,
                    lease_duration_ms: ttl.map_or(0, Ttl::as_millis),
                };
                assert_eq!(
                    sent(Request::Renew(grant.clone(), ttl), None),
                    sent(pb::request::Operation::Renew(renew), None)
                );
            }
        }
    }

    #[test]
    fn time_spent_here_is_part_of_a_wait_which_never_becomes_a_try() {
        let since = Some(Timestamp::ZERO);
        let request = |mode, wait_ms: u64| {
            let wait = (wait_ms > 0).then(|| Span::from_millis(wait_ms));
            let request = acquire("a", "b", Under::new(Ttl::MIN));
            AcquireRequest {
                mode,
                wait,
                ..request
            }
        };
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            assert_eq!(
                sent(request(mode, 5), since),
                sent(request(mode, 1), None),
                "{mode:?}"
            );
            let waits = [5, 0].map(|wait_ms| Request::from(request(mode, wait_ms)).waits());
            assert_eq!(waits, [true, false]);
        }
    }
}

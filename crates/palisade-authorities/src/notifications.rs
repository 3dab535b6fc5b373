//! Notifications of grants, for authorities that send a message to the waiter when they grant.
//!
//! ```text
//!   a release grants to the next in the queue ─► message: REQUEST TOKEN MILLIS ─► Notifications ─► its Waiting
//! ```
//!
//! The message *is* the grant: its receiver holds the lock without asking again. The message does not say when the
//! lease began, but it began after the holder sent the request whose answer was "you wait". The holder counts from that
//! instant, so it never overestimates its time. A lost message is harmless: a waiter asks again after a third of its
//! lease and gets its grant as the answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{Granted, LeaseId, LeaseKey, RequestId, Span, Timestamp, Token, Ttl, WallTime};
use tokio::sync::oneshot;

use palisade_client::clock::{BootClock, Clock as _};

/// The waiting requests of this process.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    waiting: Mutex<HashMap<RequestId, oneshot::Sender<Notified>>>,
    wake_ups: AtomicU64,
}

/// One request that waits for its notification. Dropping it removes the request.
pub(crate) struct WaitingRequest<'a> {
    notifications: &'a Notifications,
    request: RequestId,
    notified: oneshot::Receiver<Notified>,
}

/// A grant, as a message carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notified {
    token: Token,
    acquired_at: WallTime,
}

/// The instants of a waiting request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    /// The start of the caller's call.
    pub(crate) called: Timestamp,
    /// The sending of the last request.
    pub(crate) sent: Timestamp,
}

impl Notifications {
    /// Registers a request for notifications from now on.
    pub(crate) fn open(&self, request: RequestId) -> WaitingRequest<'_> {
        let (tell, notified) = oneshot::channel();
        self.lock().insert(request, tell);
        WaitingRequest {
            notifications: self,
            request,
            notified,
        }
    }

    /// Wakes the granted request, if it waits here; ignores other messages.
    pub(crate) fn deliver(&self, message: &str) {
        let Some((request, notified)) = read(message) else {
            return;
        };
        if let Some(tell) = self.lock().remove(&request) {
            self.wake_ups.fetch_add(1, Ordering::Relaxed);
            let _ = tell.send(notified);
        }
    }

    /// Returns the number of requests that were woken.
    pub(crate) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, oneshot::Sender<Notified>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(message: &str) -> Option<(RequestId, Notified)> {
    let mut words = message.split(' ');
    let (request, token, millis) = (words.next()?, words.next()?, words.next()?);
    let notified = Notified {
        token: Token::new(token.parse().ok()?).ok()?,
        acquired_at: WallTime(millis.parse().ok()?),
    };
    Some((RequestId::from_hex(request).ok()?, notified))
}

impl WaitingRequest<'_> {
    /// Returns the grant when its notification arrives; `None` if `until` comes first.
    pub(crate) async fn wait_until(&mut self, until: Timestamp) -> Option<Notified> {
        tokio::select! {
            Ok(notified) = &mut self.notified => Some(notified),
            () = BootClock.sleep_until(until) => None,
        }
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.notifications.lock().remove(&self.request);
    }
}

impl Notified {
    /// Returns the grant as `LockService` reports it, counted from the sending of the last request; `None` if the
    /// message took longer than half the lease, so that asking again is better.
    pub(crate) fn granted(
        self,
        request: RequestId,
        ttl: Ttl,
        asked: RequestTimes,
    ) -> Option<Granted> {
        let half = Span::from_nanos(ttl.span().as_nanos() / 2);
        let waited = asked.sent.since(asked.called);
        (BootClock.now() < asked.sent.after(half)).then(|| Granted {
            token: self.token,
            shared: None,
            slots: palisade_core::Slots::NONE,
            lease: LeaseId(self.token),
            key: LeaseKey::from_bytes(*request.as_bytes()),
            ttl,
            valid_for: waited.plus(ttl.span()),
            waited,
            acquired_at: self.acquired_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "000102030405060708090a0b0c0d0e0f 34 1700000000000";

    fn request() -> RequestId {
        RequestId::from_hex(&MESSAGE[..32]).unwrap()
    }

    #[tokio::test]
    async fn a_notification_reaches_the_request_it_names_and_no_other() {
        let notifications = Notifications::default();
        let mut waiting = notifications.open(request());
        let _other = notifications.open(RequestId::from_bytes([9; 16]));
        for nothing in ["", "x", &MESSAGE[..32], "zz 1 2", "zz"] {
            notifications.deliver(nothing);
        }
        notifications.deliver(&MESSAGE.replace(" 34 ", " 0 "));
        assert_eq!(notifications.wake_ups(), 0);
        notifications.deliver(MESSAGE);
        notifications.deliver(MESSAGE);
        assert_eq!(notifications.wake_ups(), 1);
        let notified = waiting.wait_until(BootClock.now().after(Span::from_millis(60_000)));
        assert_eq!(notified.await.unwrap().token.get(), 34);
    }

    #[test]
    fn a_notified_grant_counts_from_the_last_question_and_not_from_the_message() {
        let (_, notified) = read(MESSAGE).unwrap();
        let ttl = Ttl::from_millis(60_000).unwrap();
        let sent = BootClock.now();
        let called = Timestamp::from_nanos(sent.as_nanos() - 5_000_000_000);
        let granted = notified.granted(request(), ttl, RequestTimes { called, sent });
        let granted = granted.unwrap();
        assert_eq!(granted.waited, Span::from_millis(5_000));
        assert_eq!(granted.valid_for, Span::from_millis(65_000));
        // A message that took half of the time to arrive.
        let sent = Timestamp::from_nanos(sent.as_nanos() - 30_000_000_000);
        let called = sent;
        assert!(
            notified
                .granted(request(), ttl, RequestTimes { called, sent })
                .is_none()
        );
    }
}

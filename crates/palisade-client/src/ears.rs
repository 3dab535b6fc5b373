//! Requests that wait to be told of their grants, for authorities that tell by message.
//!
//! ```text
//!   a release grants to the next in the queue ─► message: REQUEST TOKEN MILLIS ─► Ears ─► its Ear
//! ```
//!
//! The message *is* the grant: whoever hears it holds the lock and need not ask. What it does not say is
//! when the lease began. That was after the last question that was answered with "you wait" was sent, so
//! the holder counts from there, and believes for less than it has rather than for more. A message that
//! is lost loses nothing: whoever waits asks again at a third of its time, and is answered with its grant.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{Granted, LeaseId, LeaseKey, RequestId, Span, Timestamp, Token, Ttl, WallTime};
use tokio::sync::oneshot;

use crate::clock::{BootClock, Clock as _};

/// Who waits.
#[derive(Debug, Default)]
pub(crate) struct Ears {
    waiting: Mutex<HashMap<RequestId, oneshot::Sender<Told>>>,
    wake_ups: AtomicU64,
}

/// A request that wants to hear of its grant; it is forgotten when this is dropped.
pub(crate) struct Ear<'a> {
    ears: &'a Ears,
    request: RequestId,
    told: oneshot::Receiver<Told>,
}

/// A grant, as a message tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    token: Token,
    acquired_at: WallTime,
}

/// The instants of a request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When the caller called.
    pub(crate) called: Timestamp,
    /// When the last question was sent.
    pub(crate) sent: Timestamp,
}

impl Ears {
    /// Hears of this request's grant from now on.
    pub(crate) fn open(&self, request: RequestId) -> Ear<'_> {
        let (tell, told) = oneshot::channel();
        self.lock().insert(request, tell);
        Ear {
            ears: self,
            request,
            told,
        }
    }

    /// Wakes the request that was granted, if it waits here. What is no such message is nothing.
    pub(crate) fn tell(&self, message: &str) {
        let Some((request, told)) = read(message) else {
            return;
        };
        if let Some(tell) = self.lock().remove(&request) {
            self.wake_ups.fetch_add(1, Ordering::Relaxed);
            let _ = tell.send(told);
        }
    }

    /// How many requests were woken.
    pub(crate) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, oneshot::Sender<Told>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(message: &str) -> Option<(RequestId, Told)> {
    let mut words = message.split(' ');
    let (request, token, millis) = (words.next()?, words.next()?, words.next()?);
    let told = Told {
        token: Token::new(token.parse().ok()?).ok()?,
        acquired_at: WallTime(millis.parse().ok()?),
    };
    Some((RequestId::from_hex(request).ok()?, told))
}

impl Ear<'_> {
    /// The grant when it is told; `None` if `until` comes first.
    pub(crate) async fn hear(&mut self, until: Timestamp) -> Option<Told> {
        tokio::select! {
            Ok(told) = &mut self.told => Some(told),
            () = BootClock.sleep_until(until) => None,
        }
    }
}

impl Drop for Ear<'_> {
    fn drop(&mut self) {
        self.ears.lock().remove(&self.request);
    }
}

impl Told {
    /// The grant in the seam's words, counted from when the last question was sent; `None` if the message
    /// was so long on its way that asking again is worth it.
    pub(crate) fn granted(self, request: RequestId, ttl: Ttl, asked: Asked) -> Option<Granted> {
        let half = Span::from_nanos(ttl.span().as_nanos() / 2);
        let waited = asked.sent.since(asked.called);
        (BootClock.now() < asked.sent.after(half)).then(|| Granted {
            token: self.token,
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
    async fn the_request_named_is_told_its_grant_and_only_it() {
        let ears = Ears::default();
        let mut ear = ears.open(request());
        let _other = ears.open(RequestId::from_bytes([9; 16]));
        for nothing in ["", "x", &MESSAGE[..32], "zz 1 2", "zz"] {
            ears.tell(nothing);
        }
        ears.tell(&MESSAGE.replace(" 34 ", " 0 "));
        assert_eq!(ears.wake_ups(), 0);
        ears.tell(MESSAGE);
        ears.tell(MESSAGE);
        assert_eq!(ears.wake_ups(), 1);
        let told = ear.hear(BootClock.now().after(Span::from_millis(60_000)));
        assert_eq!(told.await.unwrap().token.get(), 34);
    }

    #[test]
    fn a_grant_that_was_told_counts_from_the_last_question_and_not_from_the_message() {
        let (_, told) = read(MESSAGE).unwrap();
        let ttl = Ttl::from_millis(60_000).unwrap();
        let sent = BootClock.now();
        let called = Timestamp::from_nanos(sent.as_nanos() - 5_000_000_000);
        let granted = told.granted(request(), ttl, Asked { called, sent });
        let granted = granted.unwrap();
        assert_eq!(granted.waited, Span::from_millis(5_000));
        assert_eq!(granted.valid_for, Span::from_millis(65_000));
        // A message that was on its way for half of the time.
        let sent = Timestamp::from_nanos(sent.as_nanos() - 30_000_000_000);
        let called = sent;
        assert!(
            told.granted(request(), ttl, Asked { called, sent })
                .is_none()
        );
    }
}

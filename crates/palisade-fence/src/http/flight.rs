//! One admitted write in progress, and its outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum_core::response::Response;
use http::StatusCode;
use palisade_core::Token;
use palisade_core::fence::Sequence;
use tokio::runtime::Handle;

use crate::http::counts::Counters;
use crate::http::lane::{LanePermit, LastWrite};

/// An inner service that forwards requests puts this into the extensions of a response that it created itself.
/// A response without it ends the request, unless it has one of the statuses of
/// [`Policy::answers_for_itself`](crate::http::Policy::answers_for_itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was never sent: it cannot take effect.
    NotSent,
    /// It was sent, and its end will not be seen.
    Unknown,
}

/// The outcome of a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered(StatusCode),
    NotSent,
}

impl End {
    /// Returns how a write with this answer ended; `None` if it may continue.
    pub(super) fn of(response: &Response, answers_for_itself: bool) -> Option<End> {
        let status = response.status();
        match response.extensions().get::<Outcome>() {
            Some(Outcome::NotSent) => Some(End::NotSent),
            Some(Outcome::Unknown) => None,
            None if answers_for_itself => Some(End::Answered(status)),
            // The statuses of proxies for a request on which the service may still work.
            None => match status.as_u16() {
                408 | 499 | 502..=504 | 520..=530 => None,
                _ => Some(End::Answered(status)),
            },
        }
    }
}

/// An admitted write in progress. It keeps the permit of its lane until its end is seen or, if that does not
/// happen, for the settling time after it was given up.
#[derive(Debug)]
pub(super) struct Flight {
    permit: Option<LanePermit>,
    number: Option<(Token, Sequence)>,
    settle: Duration,
    counters: Arc<Counters>,
}

impl Flight {
    pub(super) fn start(
        mut permit: LanePermit,
        number: Option<(Token, Sequence)>,
        settle: Duration,
        counters: Arc<Counters>,
    ) -> Flight {
        permit.record(number.map(|(token, sequence)| LastWrite {
            token,
            sequence,
            end: None,
        }));
        counters.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight {
            permit: Some(permit),
            number,
            settle,
            counters,
        }
    }

    /// Records the end that was seen, and leaves the lane.
    pub(super) fn ended(mut self, end: End) {
        if let Some(mut permit) = self.permit.take() {
            permit.record(self.number.map(|(token, sequence)| LastWrite {
                token,
                sequence,
                end: Some(end),
            }));
            self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Flight {
    /// The end was not seen: the write settles before it leaves the lane.
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let (settle, counters) = (self.settle, self.counters.clone());
        counters.unknown.fetch_add(1, Ordering::Relaxed);
        let Ok(runtime) = Handle::try_current() else {
            // The process ends and admits nothing more. The next one has an unclean start.
            std::mem::forget(permit);
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep(settle).await;
            counters.in_flight.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
    }
}

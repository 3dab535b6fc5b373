//! One admitted write under way, and what became of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum_core::response::Response;
use http::StatusCode;
use palisade_core::Token;
use palisade_core::fence::Sequence;
use tokio::runtime::Handle;

use crate::http::counts::Counters;
use crate::http::lane::{Place, Recorded};

/// What an inner service that passes requests on knows about one that it answered by itself: put into
/// the extensions of the response. An answer without it is taken for the end of the request, unless it
/// has one of the statuses that [`Policy::answers_for_itself`](crate::http::Policy::answers_for_itself) names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was never sent: it cannot take effect.
    NotSent,
    /// It was sent, and how it ends will not be seen.
    Unknown,
}

/// What became of a numbered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered(StatusCode),
    NotSent,
}

impl End {
    /// What an answer says about the write; `None`: it may go on.
    pub(super) fn of(response: &Response, answers_for_itself: bool) -> Option<End> {
        let status = response.status();
        match response.extensions().get::<Outcome>() {
            Some(Outcome::NotSent) => Some(End::NotSent),
            Some(Outcome::Unknown) => None,
            None if answers_for_itself => Some(End::Answered(status)),
            // What proxies say by themselves, about a request that the service may still be busy with.
            None => match status.as_u16() {
                408 | 499 | 502..=504 | 520..=530 => None,
                _ => Some(End::Answered(status)),
            },
        }
    }
}

/// An admitted write under way: it keeps its place in the lane until its end was seen, and where that
/// does not happen, for the settling time after it was given up.
#[derive(Debug)]
pub(super) struct Flight {
    place: Option<Place>,
    number: Option<(Token, Sequence)>,
    settle: Duration,
    counters: Arc<Counters>,
}

impl Flight {
    pub(super) fn start(
        mut place: Place,
        number: Option<(Token, Sequence)>,
        settle: Duration,
        counters: Arc<Counters>,
    ) -> Flight {
        place.record(number.map(|(token, sequence)| Recorded {
            token,
            sequence,
            end: None,
        }));
        counters.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight {
            place: Some(place),
            number,
            settle,
            counters,
        }
    }

    /// Its end was seen: nothing of it is left.
    pub(super) fn ended(mut self, end: End) {
        if let Some(mut place) = self.place.take() {
            place.record(self.number.map(|(token, sequence)| Recorded {
                token,
                sequence,
                end: Some(end),
            }));
            self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Flight {
    /// Its end was not seen.
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let (settle, counters) = (self.settle, self.counters.clone());
        counters.unknown.fetch_add(1, Ordering::Relaxed);
        let Ok(runtime) = Handle::try_current() else {
            // The process ends; nothing is admitted any more. The next one starts uncleanly.
            std::mem::forget(place);
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep(settle).await;
            counters.in_flight.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
}

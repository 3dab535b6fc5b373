//! The outcome of a write at the inner service.

use axum_core::response::Response;
use http::StatusCode;

/// An inner service that forwards requests puts this into the extensions of a response that it created itself.
/// A response without it ends the request, unless it has one of the statuses of
/// [`Policy::answers_for_itself`](crate::http::Policy::answers_for_itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// The request was never sent: it cannot take effect.
    NotSent,
    /// It was sent, and its end will not be seen.
    Unknown,
}

/// The outcome of a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteEnd {
    Answered(StatusCode),
    NotSent,
}

impl WriteEnd {
    /// Returns how a write with this answer ended; `None` if it may continue.
    pub(super) fn of(response: &Response, answers_for_itself: bool) -> Option<WriteEnd> {
        let status = response.status();
        match response.extensions().get::<UpstreamOutcome>() {
            Some(UpstreamOutcome::NotSent) => Some(WriteEnd::NotSent),
            Some(UpstreamOutcome::Unknown) => None,
            None if answers_for_itself => Some(WriteEnd::Answered(status)),
            // The statuses of proxies for a request on which the service may still work.
            None => match status.as_u16() {
                408 | 499 | 502..=504 | 520..=530 => None,
                _ => Some(WriteEnd::Answered(status)),
            },
        }
    }
}

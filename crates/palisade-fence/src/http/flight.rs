//! One admitted write in progress.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_core::Token;
use palisade_core::fence::Sequence;
use tokio::runtime::Handle;

use crate::http::counts::Counters;
use crate::http::lane::{LanePermit, LastWrite};
use crate::http::outcome::WriteEnd;

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
    pub(super) fn ended(mut self, end: WriteEnd) {
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

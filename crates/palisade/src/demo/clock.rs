//! The clock of an act: every process of the demo reads it, so their times are comparable.

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;

/// Milliseconds since the start of the act, on CLOCK_BOOTTIME, which all processes of a machine share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActClock {
    origin: Timestamp,
}

impl ActClock {
    /// An act that starts now.
    pub(super) fn start() -> ActClock {
        ActClock {
            origin: BootClock.now(),
        }
    }

    /// The clock of an act that another process started.
    pub(super) fn from_nanos(origin: u64) -> ActClock {
        ActClock {
            origin: Timestamp::from_nanos(origin),
        }
    }

    /// The argument for [`ActClock::from_nanos`].
    pub(super) fn as_nanos(self) -> u64 {
        self.origin.as_nanos()
    }

    /// The current time of the act.
    pub(super) fn now_ms(self) -> f64 {
        let nanos = BootClock.now().since(self.origin).as_nanos();
        // Microseconds are exact in an f64 for longer than any demo runs.
        (nanos / 1_000) as f64 / 1_000.0
    }
}

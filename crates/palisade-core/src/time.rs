//! Time as data. Nothing in this crate reads a clock; the ordering thread stamps the log.

use core::fmt;
use core::time::Duration;

use crate::invalid::Invalid;
use crate::limits;

/// An instant on a monotonic clock, in nanoseconds. In the machine it is the authority's own clock, which starts at
/// zero when the authority is created; a holder's instants are of its own clock (see [`holder`](crate::holder)).
///
/// It is independent of the wall clock, and comparable only with instants of the same clock. The authority's clock
/// never goes back, even across a restart: it resumes from the last logged instant, or from where it would be without
/// the restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The instant at which an authority is created.
    pub const ZERO: Timestamp = Timestamp(0);

    /// Creates an instant from nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// Creates an instant from milliseconds; saturates at the end of the range.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Timestamp {
        Timestamp(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// Returns the nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the instant `span` later; saturates at the end of the range, after 584 years.
    #[must_use]
    pub const fn after(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:?}", Duration::from_nanos(self.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// Creates a span from nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Span {
        Span(nanos)
    }

    /// Creates a span from milliseconds; saturates at the end of the range.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// Returns the nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds, rounded down, so that a remaining time is never overstated.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / NANOS_PER_MILLI
    }

    /// Returns the sum of both; saturates.
    #[must_use]
    pub const fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }

    /// The same length as a message for people says it, rounded down: `999 ms`, `4.2 s`, `15 s`, `4 min 59 s`, `2 h 1 min`.
    #[must_use]
    pub const fn in_words(self) -> InWords {
        InWords(self)
    }

    /// Returns the same length as a [`Duration`].
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Span {
    /// Saturates at 584 years.
    fn from(duration: Duration) -> Span {
        Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_duration().fmt(f)
    }
}

/// A length of time in a message for people: tenths below ten seconds, whole units above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InWords(Span);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let seconds = millis / 1_000;
        let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        match (hours, seconds) {
            (_, 0) => write!(f, "{millis} ms"),
            (_, 1..10) if !millis.is_multiple_of(1_000) => {
                write!(f, "{rest}.{} s", millis % 1_000 / 100)
            }
            (_, 1..60) => write!(f, "{rest} s"),
            (0, _) => write!(f, "{minutes} min {rest} s"),
            _ => write!(f, "{hours} h {minutes} min"),
        }
    }
}

/// The time to live of a lease, from its grant or renewal, in milliseconds.
///
/// The range is 100 ms to 24 h; an authority's settings may narrow it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u32);

impl Ttl {
    /// 100 ms.
    pub const MIN: Ttl = Ttl(100);
    /// 24 hours.
    pub const MAX: Ttl = Ttl(24 * 60 * 60 * 1000);

    /// Creates a time to live from milliseconds.
    ///
    /// # Errors
    /// [`Invalid::Ttl`] outside 100 ms – 24 h; nothing is clamped.
    pub const fn from_millis(millis: u64) -> Result<Ttl, Invalid> {
        if millis < Ttl::MIN.0 as u64 || millis > Ttl::MAX.0 as u64 {
            return Err(Invalid::Ttl {
                given_ms: millis,
                min: Ttl::MIN,
                max: Ttl::MAX,
            });
        }
        Ok(Ttl(millis as u32))
    }

    /// Returns the milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u32 {
        self.0
    }

    /// Returns the length as a span.
    #[must_use]
    pub const fn span(self) -> Span {
        Span::from_millis(self.0 as u64)
    }

    /// Returns the longest pause of the authority that does not extend a lease of this length: a quarter of it, at most
    /// [`limits::STALL`].
    #[must_use]
    pub const fn bears(self) -> Span {
        let part = Span::from_nanos(self.span().0 / limits::PAUSE_PARTS);
        if part.0 < limits::STALL.0 {
            part
        } else {
            limits::STALL
        }
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ttl({self})")
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// The wall clock's reading at a grant, in milliseconds since 1970 (UTC).
///
/// It is for display only (`acquired_at`, rule A11), and therefore has no ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct WallTime(pub u64);

impl WallTime {
    /// Returns the time since an earlier reading; zero if the clock was set back meanwhile.
    #[must_use]
    pub const fn since(self, earlier: WallTime) -> Span {
        Span::from_millis(self.0.saturating_sub(earlier.0))
    }
}

const NANOS_PER_MILLI: u64 = 1_000_000;

//! Every bound of the network side in one place.

use std::time::Duration;

/// What the network side allows. The defaults suit a server that strangers can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections open at the same time; one more is closed at once.
    pub connections: u32,
    /// Largest head (request line and headers) of an HTTP request in bytes; 8 KiB – 1 MiB.
    pub head_bytes: usize,
    /// How long a head may take to arrive.
    pub head_timeout: Duration,
    /// Largest body of an HTTP request in bytes.
    pub body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Largest gRPC message, and so the largest frame of a session, in bytes.
    pub frame_bytes: usize,
    /// How long a connection without a request in flight stays open.
    pub idle_timeout: Duration,
    /// Requests in flight on one HTTP/2 connection; a session is one.
    pub streams_per_connection: u32,
    /// Operations in flight in one session, waits in a queue among them; above it, frames are left
    /// unread until answers are out.
    pub session_operations: usize,
    /// How long a shutdown waits for requests in flight before it cuts their connections.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections: 10_000,
            head_bytes: 8 * 1024,
            head_timeout: Duration::from_secs(5),
            body_bytes: 64 * 1024,
            body_timeout: Duration::from_secs(10),
            frame_bytes: 4 * 1024 * 1024,
            idle_timeout: Duration::from_secs(300),
            streams_per_connection: 4_096,
            session_operations: 65_536,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// A setting outside its range; the message names it and the range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is outside {range}")]
pub struct OutOfRange {
    name: &'static str,
    range: &'static str,
}

impl Settings {
    /// Whether a server can run with these settings; nothing is clamped.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first setting that is not in its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let times = [
            self.head_timeout,
            self.body_timeout,
            self.idle_timeout,
            self.drain_timeout,
        ];
        let most = u32::MAX as usize;
        for (name, fits, range) in [
            (
                "connections",
                (1..=1_000_000).contains(&self.connections),
                "1 ..= 1000000",
            ),
            (
                "head_bytes",
                (8_192..=1 << 20).contains(&self.head_bytes),
                "8192 ..= 1048576",
            ),
            (
                "body_bytes",
                (1_024..=1 << 30).contains(&self.body_bytes),
                "1024 ..= 1073741824",
            ),
            (
                "frame_bytes",
                (1_024..=most).contains(&self.frame_bytes),
                "1024 ..= 4294967295",
            ),
            (
                "streams_per_connection",
                self.streams_per_connection > 0,
                "1 ..= 4294967295",
            ),
            (
                "session_operations",
                self.session_operations > 0,
                "1 and above",
            ),
            (
                "a time-out",
                times.iter().all(|time| (MILLI..=DAY).contains(time)),
                "1 ms ..= 24 h",
            ),
        ] {
            if !fits {
                return Err(OutOfRange { name, range });
            }
        }
        Ok(())
    }
}

const MILLI: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range_and_nonsense_is_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        let says = |settings: Settings| settings.check().unwrap_err().to_string();
        let small = Settings {
            head_bytes: 100,
            ..Settings::default()
        };
        assert_eq!(says(small), "head_bytes is outside 8192 ..= 1048576");
        let never = Settings {
            head_timeout: Duration::ZERO,
            ..Settings::default()
        };
        assert_eq!(says(never), "a time-out is outside 1 ms ..= 24 h");
        let nobody = Settings {
            connections: 0,
            ..Settings::default()
        };
        assert_eq!(says(nobody), "connections is outside 1 ..= 1000000");
    }
}

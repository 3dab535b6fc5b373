//! Every bound of a shell in one place.

use std::time::Duration;

use palisade_tls::ServerFiles;

use super::Hosts;

/// The bounds of connections and requests. The defaults suit a server that strangers can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many connections may be open; further ones are closed at once. Lowered, with a warning, to what the limit of
    /// open files allows.
    pub connections: u32,
    /// How many connections one address may have (for IPv6 one /64); half of all if not set.
    pub connections_per_address: Option<u32>,
    /// How many open files are never given to connections: log segments, snapshots, backups.
    pub reserved_files: u32,
    /// How many files one connection may need; 2 for a proxy, which opens one to its upstream.
    pub files_per_connection: u32,
    /// Whether to speak HTTP/2; otherwise only HTTP/1.1.
    pub http2: bool,
    /// How many requests may be in flight on one HTTP/2 connection; a stream is one.
    pub streams_per_connection: u32,
    /// The largest head (request line and headers) of a request in bytes; 8 KiB – 1 MiB.
    pub head_bytes: usize,
    /// How long a head may take to arrive.
    pub head_timeout: Duration,
    /// The largest body of a request in bytes.
    pub body_bytes: usize,
    /// How long a body may take to arrive, plus one second for each 64 KiB of it.
    pub body_timeout: Duration,
    /// How long a complete answer may wait for its reader. The check is between this time and twice this time, and a
    /// late answer costs the connection.
    pub answer_timeout: Duration,
    /// How many bytes of bodies and answers one connection may hold. One answer may be larger.
    pub held_bytes_per_connection: usize,
    /// How many bytes of bodies and answers all connections may hold together.
    pub held_bytes: usize,
    /// How long a connection without a request in flight stays open.
    pub idle_timeout: Duration,
    /// How many bytes of answers the operating system buffers on one connection for a peer that does not read, if it
    /// allows this much; it uses about twice as much memory. This also bounds how fast a long answer reaches a distant
    /// peer: this much in one round trip.
    pub unread_bytes: usize,
    /// After how long a peer that acknowledges nothing counts as gone (TCP keep-alive and user time-out); 1 s ..= 1 h.
    pub peer_timeout: Duration,
    /// How long a shutdown waits for requests in flight before it cuts their connections.
    pub drain_timeout: Duration,
    /// The host names that a request may use.
    pub hosts: Hosts,
    /// The certificates; without them the port has no TLS. They are reloaded while it serves.
    pub tls: Option<ServerFiles>,
    /// How long a TLS handshake may take, with its wait for a turn.
    pub handshake_timeout: Duration,
    /// How many TLS handshakes may be in progress; one address may have half of them.
    pub handshakes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections: 10_000,
            connections_per_address: None,
            reserved_files: 64,
            files_per_connection: 1,
            http2: true,
            streams_per_connection: 1_024,
            head_bytes: 8 * 1024,
            head_timeout: Duration::from_secs(5),
            body_bytes: 64 * 1024,
            body_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            held_bytes_per_connection: 4 << 20,
            held_bytes: 256 << 20,
            idle_timeout: Duration::from_secs(300),
            peer_timeout: Duration::from_secs(25),
            unread_bytes: 64 << 10,
            drain_timeout: Duration::from_secs(5),
            hosts: Hosts::Named(Vec::new()),
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            handshakes: 1_024,
        }
    }
}

/// A setting out of range; the message names both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is outside {range}")]
pub struct OutOfRange {
    /// The setting.
    pub name: &'static str,
    /// Its range.
    pub range: &'static str,
}

impl Settings {
    /// Checks that a server can run with these settings; nothing is clamped.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first setting out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let counts = 1..=1_000_000;
        let times = [
            self.head_timeout,
            self.body_timeout,
            self.answer_timeout,
            self.idle_timeout,
            self.drain_timeout,
            self.handshake_timeout,
        ];
        let held = self.body_bytes..=1 << 40;
        let per_address = self.connections_per_address.unwrap_or(1);
        for (name, fits, range) in [
            ("connections", counts.contains(&self.connections), COUNT),
            (
                "connections_per_address",
                counts.contains(&per_address),
                COUNT,
            ),
            (
                "reserved_files",
                counts.contains(&self.reserved_files),
                COUNT,
            ),
            ("handshakes", counts.contains(&self.handshakes), COUNT),
            (
                "files_per_connection",
                (1..=2).contains(&self.files_per_connection),
                "1 ..= 2",
            ),
            (
                "streams_per_connection",
                counts.contains(&self.streams_per_connection),
                COUNT,
            ),
            (
                "head_bytes",
                (8_192..=1 << 20).contains(&self.head_bytes),
                "8192 ..= 1048576",
            ),
            (
                "unread_bytes",
                (16 << 10..=16 << 20).contains(&self.unread_bytes),
                "16384 ..= 16777216",
            ),
            (
                "body_bytes",
                (1_024..=1 << 30).contains(&self.body_bytes),
                "1024 ..= 1073741824",
            ),
            (
                "held_bytes_per_connection",
                held.contains(&self.held_bytes_per_connection),
                "body_bytes ..= 2^40",
            ),
            (
                "held_bytes",
                held.contains(&self.held_bytes),
                "body_bytes ..= 2^40",
            ),
            (
                "peer_timeout",
                (SECOND..=HOUR).contains(&self.peer_timeout),
                "1 s ..= 1 h",
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

const COUNT: &str = "1 ..= 1000000";
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
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
        let none_each = Settings {
            connections_per_address: Some(0),
            ..Settings::default()
        };
        assert_eq!(
            says(none_each),
            "connections_per_address is outside 1 ..= 1000000"
        );
    }
}

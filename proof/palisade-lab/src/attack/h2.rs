//! HTTP/2 for attacks: raw frames and uncompressed headers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::failure::text;
use super::harness::{elapsed, now};

/// A connection that speaks the necessary minimum of HTTP/2.
pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    next: u32,
    /// How many bytes the peer accepts on the connection, and initially on each stream.
    window: i64,
    stream_window: i64,
    /// Received bytes that are not a whole frame yet.
    pending: Vec<u8>,
}

/// A received frame.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

pub(super) const DATA: u8 = 0;
const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

impl Connection {
    /// Opens a connection and announces how many unread bytes this side accepts on each stream.
    pub(super) fn to(address: SocketAddr, takes: u32) -> Result<Connection, String> {
        let mut stream = TcpStream::connect(address).map_err(text)?;
        stream
            .set_write_timeout(Some(Duration::from_secs(5)))
            .map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .map_err(text)?;
        let mut connection = Connection {
            stream,
            host: address.to_string(),
            next: 1,
            window: 65_535,
            stream_window: 65_535,
            pending: Vec::new(),
        };
        // 4 is SETTINGS_INITIAL_WINDOW_SIZE.
        let settings = [&[0, 4][..], &takes.to_be_bytes()].concat();
        connection.frame(SETTINGS, 0, 0, &settings)?;
        Ok(connection)
    }

    /// Starts a gRPC call and leaves its body open.
    pub(super) fn call(&mut self, path: &str) -> Result<u32, String> {
        let host = self.host.clone();
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", host.as_str()),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            // A literal without an index, with its name in full; nothing is compressed.
            block.push(0);
            for part in [name, value] {
                block.push(u8::try_from(part.len()).unwrap_or(0x7e) & 0x7f);
                block.extend(part.as_bytes());
            }
        }
        let stream = self.next;
        self.next += 2;
        self.frame(HEADERS, END_HEADERS, stream, &block)?;
        Ok(stream)
    }

    pub(super) fn data(&mut self, stream: u32, bytes: &[u8], end: bool) -> Result<(), String> {
        self.window -= bytes.len() as i64;
        self.frame(DATA, u8::from(end), stream, bytes)
    }

    /// Sends a whole gRPC message as the end of the body.
    pub(super) fn message(&mut self, stream: u32, message: &[u8]) -> Result<(), String> {
        let length = u32::try_from(message.len()).map_err(text)?;
        let body = [&[0][..], &length.to_be_bytes(), message].concat();
        self.data(stream, &body, true)
    }

    /// Accepts any number of unread bytes on the connection; each stream has its own bound.
    pub(super) fn take_any(&mut self) -> Result<(), String> {
        self.frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())
    }

    /// Sends a whole gRPC message as far as the peer's windows allow, and waits for them; the body goes on.
    pub(super) fn large_message(&mut self, stream: u32, message: &[u8]) -> Result<(), String> {
        let length = u32::try_from(message.len()).map_err(text)?;
        let body = [&[0][..], &length.to_be_bytes(), message].concat();
        let (mut window, begun) = (self.stream_window, now());
        for piece in body.chunks(16_000) {
            let needed = piece.len() as i64;
            while window.min(self.window) < needed {
                if elapsed(begun) > Duration::from_secs(60) {
                    return Err("the server takes no more of a message".to_owned());
                }
                let frames = self.frames(Duration::from_millis(100))?;
                let updates = frames.iter().filter(|frame| frame.kind == WINDOW_UPDATE);
                for update in updates.filter(|update| update.stream == stream) {
                    window += number(&update.payload).unwrap_or(0);
                }
            }
            window -= needed;
            self.data(stream, piece, false)?;
        }
        Ok(())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), String> {
        let length = u32::try_from(payload.len()).map_err(text)?.to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream
            .write_all(&[&head, payload].concat())
            .map_err(text)
    }

    /// The frames that have arrived or arrive within this time. An error if the connection is over.
    pub(super) fn frames(&mut self, within: Duration) -> Result<Vec<Frame>, String> {
        // A time-out of zero would wait for ever.
        let within = within.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(within)).map_err(text)?;
        let mut bytes = vec![0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the connection was closed".to_owned()),
            Ok(read) => self.pending.extend(&bytes[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(text(error)),
        }
        let mut frames = Vec::new();
        while let Some(frame) = self.next_frame() {
            self.note(&frame)?;
            frames.push(frame);
        }
        Ok(frames)
    }

    fn next_frame(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.pending.get(..9)?.try_into().ok()?;
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let end = 9 + number(&head[..3]) as usize;
        let payload = self.pending.get(9..end)?.to_vec();
        self.pending.drain(..end);
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: number(&head[5..]) & 0x7fff_ffff,
            payload,
        })
    }

    /// Reacts as the protocol requires.
    fn note(&mut self, frame: &Frame) -> Result<(), String> {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => {
                for at in (0..frame.payload.len()).step_by(6) {
                    if frame.payload.get(at..at + 2) == Some(&[0, 4]) {
                        self.stream_window = number(&frame.payload[at + 2..]).unwrap_or(0);
                    }
                }
                self.frame(SETTINGS, ACK, 0, &[])
            }
            PING if frame.flags & ACK == 0 => self.frame(PING, ACK, 0, &frame.payload),
            WINDOW_UPDATE if frame.stream == 0 => {
                self.window += number(&frame.payload).unwrap_or(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Bytes that may be sent: on the connection, and at first on each stream.
    pub(super) fn windows(&self) -> (i64, i64) {
        (self.window, self.stream_window)
    }
}

/// The number at the beginning of a payload.
fn number(payload: &[u8]) -> Option<i64> {
    let bytes = payload.first_chunk()?;
    Some(u32::from_be_bytes(*bytes).into())
}

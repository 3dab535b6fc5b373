//! One HTTP request on a connection of its own, with a bound on the wait for its answer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer with a body of JSON.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Reply {
    /// The code of an error, or nothing.
    pub(super) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// GET without a body, POST with one. `None`: no answer, so the outcome is unknown.
pub(super) fn ask(
    to: SocketAddr,
    path: &str,
    body: Option<&str>,
    patience: Duration,
) -> Option<Reply> {
    let mut stream = TcpStream::connect_timeout(&to, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.get(9..12)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n")?.1;
    let body = serde_json::from_str(body).ok()?;
    Some(Reply { status, body })
}

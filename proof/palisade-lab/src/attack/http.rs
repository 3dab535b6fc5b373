//! HTTP/1.1 for attacks: the caller determines every byte of a request, and nothing is made canonical.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::{Value, json};

use super::failure::text;

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Reply {
    /// The body as JSON; null if it is not JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// The time limit of an answer that should come at once.
const SOON: Duration = Duration::from_secs(20);

/// A connection for one request after the other.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    pub(super) fn to(address: SocketAddr) -> Result<Connection, String> {
        let stream = TcpStream::connect_timeout(&address, SOON).map_err(text)?;
        Connection::over(stream, address)
    }

    /// Connects from another address of this machine.
    pub(super) fn from(source: Ipv4Addr, address: SocketAddr) -> Result<Connection, String> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(text)?;
        bind(&socket, &SocketAddr::from((source, 0))).map_err(text)?;
        connect(&socket, &address).map_err(text)?;
        Connection::over(socket.into(), address)
    }

    fn over(stream: TcpStream, address: SocketAddr) -> Result<Connection, String> {
        stream.set_read_timeout(Some(SOON)).map_err(text)?;
        stream.set_write_timeout(Some(SOON)).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        Ok(Connection {
            stream: BufReader::new(stream),
            host: address.to_string(),
        })
    }

    /// Sends a request; adds the length of a body, and the right `Host` if none is given.
    pub(super) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(), String> {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        let given = |name: &str| {
            headers
                .iter()
                .any(|(given, _)| given.eq_ignore_ascii_case(name))
        };
        if !given("host") {
            head.push_str(&format!("host: {}\r\n", self.host));
        }
        if !given("content-length") && (!body.is_empty() || method == "POST" || method == "PUT") {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let request = format!("{head}\r\n{body}");
        let stream = self.stream.get_mut();
        stream.write_all(request.as_bytes()).map_err(text)
    }

    /// Sends raw bytes.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.get_mut().write_all(bytes).map_err(text)
    }

    /// Reads one answer. It cannot parse the answer to a HEAD request.
    pub(super) fn receive(&mut self) -> Result<Reply, String> {
        let headers = self.head()?;
        let status = headers.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| format!("no status in {headers:?}"))?;
        let body = match (
            header(&headers, "transfer-encoding"),
            header(&headers, "content-length"),
        ) {
            (Some(coding), _) if coding.contains("chunked") => self.chunks()?,
            (_, Some(length)) => {
                let mut body = vec![0; length.parse().map_err(text)?];
                self.stream.read_exact(&mut body).map_err(text)?;
                body
            }
            _ if status == 204 || status == 304 => Vec::new(),
            _ => {
                let mut body = Vec::new();
                self.stream.read_to_end(&mut body).map_err(text)?;
                body
            }
        };
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Reply { status, body })
    }

    /// The head of an answer, in lower case.
    pub(super) fn head(&mut self) -> Result<String, String> {
        let mut head = String::new();
        loop {
            let line = self.line(SOON)?;
            if line.is_empty() {
                return Ok(head.to_ascii_lowercase());
            }
            head.push_str(&line);
            head.push('\n');
        }
    }

    /// One line, without its end, that arrives within this time.
    pub(super) fn line(&mut self, within: Duration) -> Result<String, String> {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(within)).map_err(text)?;
        let mut line = String::new();
        match self.stream.read_line(&mut line).map_err(text)? {
            0 => Err("the connection was closed".to_owned()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let size = self.line(SOON)?;
            let size = usize::from_str_radix(&size, 16).map_err(text)?;
            let begin = body.len();
            body.resize(begin + size, 0);
            self.stream.read_exact(&mut body[begin..]).map_err(text)?;
            self.line(SOON)?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    pub(super) fn ask(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, String> {
        self.send(method, target, headers, body)?;
        self.receive()
    }

    /// Acquires a lock over HTTP/JSON.
    pub(super) fn acquire(
        &mut self,
        lock: &str,
        client: &str,
        ttl_ms: u64,
    ) -> Result<Reply, String> {
        let body = json!({"client_id": client, "lease_duration_ms": ttl_ms}).to_string();
        self.ask("POST", &format!("/v1/locks/{lock}/acquire"), &JSON, &body)
    }
}

/// The value of a header in a lower-case head.
pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found == name).then(|| value.trim())
    })
}

pub(super) const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// One request on its own connection.
pub(super) fn ask(
    to: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Reply, String> {
    Connection::to(to)?.ask(method, target, headers, body)
}

pub(super) fn get(to: SocketAddr, target: &str) -> Result<Reply, String> {
    ask(to, "GET", target, &[], "")
}

/// Acquires a free lock and returns the token.
pub(super) fn grant(to: SocketAddr, lock: &str, client: &str, ttl_ms: u64) -> Result<u64, String> {
    let reply = Connection::to(to)?.acquire(lock, client, ttl_ms)?;
    let token = reply.json()["fencing_token"].as_u64();
    token.ok_or_else(|| format!("{lock} was not granted: {} {}", reply.status, reply.body))
}

//! The subset of HTTP/1.1 that the demo needs: one request and one answer on each connection.
//!
//! Written by hand because the demo measures when bytes leave and arrive, which a client library hides.

use std::fmt::Write as _;

/// A complete request or answer.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// `POST /path HTTP/1.1`, or `HTTP/1.1 200 OK`.
    start: String,
    fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// Parses a message; `None` until it is complete.
    pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(bytes.get(..end)?).into_owned();
        let mut lines = head.split("\r\n");
        let start = lines.next()?.to_owned();
        let fields = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut message = Message {
            start,
            fields,
            body: Vec::new(),
        };
        let length = message
            .field("content-length")
            .and_then(|text| text.parse().ok());
        message.body = bytes.get(end + 4..)?.get(..length.unwrap_or(0))?.to_vec();
        Some(message)
    }

    /// A header field, by its name in lower case.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The status of an answer; 0 if this is not an answer.
    pub(super) fn status(&self) -> u16 {
        let word = self.start.split(' ').nth(1);
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// The path of a request.
    pub(super) fn path(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// The body as JSON; null if it is not JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The bytes of a request to the store; the connection ends with its answer.
pub(super) fn request(method: &str, path: &str, fields: &[(&str, String)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    // Writing to a String cannot fail.
    for (name, value) in fields {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if !body.is_empty() {
        let _ = write!(
            text,
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// The items of the list: one on each line of the file.
pub(super) fn items(body: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(body)
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_complete_with_its_last_byte() {
        let bytes = request(
            "POST",
            "/v1/x",
            &[("x-request-id", "A-1".to_owned())],
            "{\"a\": 1}",
        );
        assert!((0..bytes.len()).all(|end| Message::parse(&bytes[..end]).is_none()));
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(
            (message.path(), message.field("x-request-id")),
            ("/v1/x", Some("A-1"))
        );
        assert_eq!(message.json()["a"], 1);
    }

    #[test]
    fn an_answer_has_a_status() {
        let message =
            Message::parse(b"HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(message.map(|message| message.status()), Some(412));
    }
}

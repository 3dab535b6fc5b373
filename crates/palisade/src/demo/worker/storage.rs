//! The worker's client of the store: one blocking request at a time, so that nothing happens between check and send.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_client::{AuthorityId, Token};
use serde_json::json;

use super::assignment::{Assignment, FILE, RESOURCE};
use super::notes::{GaveUp, record, words};
use crate::demo::clock::ActClock;
use crate::demo::http::{self, items};
use crate::demo::timeline::{Message, OperationKind, ResourceMessage, TimelineEvent};

/// The store, as the holder of one grant uses it.
pub(super) struct StoreClient<'a> {
    pub(super) assignment: &'a Assignment,
    pub(super) clock: ActClock,
    pub(super) token: Token,
    pub(super) authority: &'a AuthorityId,
}

/// The store's answer to a write.
pub(super) enum StoreVerdict {
    /// The write is done.
    Acknowledged,
    /// The token is stale.
    Rejected,
}

impl StoreClient<'_> {
    /// Raises the fence to the token, before any read.
    pub(super) fn claim(&self) -> Result<(), GaveUp> {
        let body = json!({
            "resource_id": RESOURCE, "fencing_token": self.token.get(), "authority": self.authority.as_str(),
        });
        let bytes = self.post("/v1/storage/claim", "claim", &body);
        let answer = self.exchange(
            "claim",
            OperationKind::Claim,
            bytes,
            Some(self.token),
            |_| None,
        )?;
        if answer.status() == 200 {
            Ok(())
        } else {
            Err(refusal("claim", &answer))
        }
    }

    /// Reads the list. If holders claim, the read carries the token and is rejected when it is stale.
    pub(super) fn read(&self) -> Result<Vec<String>, GaveUp> {
        let resource = RESOURCE.replace(':', "%3A");
        let path = format!("/v1/storage/{resource}/files{FILE}");
        let token = self.assignment.claims.then_some(self.token);
        let mut fields = vec![("X-Request-Id", self.id("read"))];
        if let Some(token) = token {
            fields.push(("X-Fencing-Token", token.get().to_string()));
            fields.push(("X-Fencing-Authority", self.authority.as_str().to_owned()));
        }
        let bytes = http::request("GET", &path, &fields, "");
        let found = |answer: &http::Message| match answer.status() {
            200 => Some(items(&answer.body)),
            // Nothing was written yet.
            404 => Some(Vec::new()),
            _ => None,
        };
        let value = |answer: &http::Message| found(answer).map(|list| list.join(" "));
        let answer = self.exchange("read", OperationKind::Read, bytes, token, value)?;
        found(&answer).ok_or_else(|| refusal("read", &answer))
    }

    /// Replaces the list.
    pub(super) fn write(&self, list: &[String]) -> Result<StoreVerdict, GaveUp> {
        let text: String = list.iter().map(|item| format!("{item}\n")).collect();
        let body = json!({
            "resource_id": RESOURCE, "fencing_token": self.token.get(), "authority": self.authority.as_str(),
            "write_payload": {"file_path": FILE, "mutation_type": "PUT", "bytes": STANDARD.encode(text)},
        });
        let bytes = self.post("/v1/storage/write", "write", &body);
        let written = Some(list.join(" "));
        let answer = self.exchange(
            "write",
            OperationKind::Write,
            bytes,
            Some(self.token),
            |_| written.clone(),
        )?;
        match answer.status() {
            200 => Ok(StoreVerdict::Acknowledged),
            412 => Ok(StoreVerdict::Rejected),
            _ => Err(refusal("write", &answer)),
        }
    }

    fn post(&self, path: &str, what: &str, body: &serde_json::Value) -> Vec<u8> {
        http::request(
            "POST",
            path,
            &[("X-Request-Id", self.id(what))],
            &body.to_string(),
        )
    }

    /// Sends one request, waits for its answer without a time limit, and records both.
    fn exchange(
        &self,
        what: &str,
        operation: OperationKind,
        bytes: Vec<u8>,
        token: Option<Token>,
        value: impl Fn(&http::Message) -> Option<String>,
    ) -> Result<http::Message, GaveUp> {
        let mut connection = TcpStream::connect(&self.assignment.store).map_err(words)?;
        connection.set_nodelay(true).map_err(words)?;
        let sent_ms = Some(self.clock.now_ms());
        connection.write_all(&bytes).map_err(words)?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).map_err(words)?;
        let answered_ms = Some(self.clock.now_ms());
        let answer = http::Message::parse(&answer).ok_or("the store's answer is incomplete")?;
        let client = self.assignment.client.clone();
        let message = Message {
            id: self.id(what),
            client,
            sent_ms,
            answered_ms,
            ..Message::default()
        };
        let (token, value) = (token.map(Token::get), value(&answer));
        record(TimelineEvent::Operation(ResourceMessage {
            message,
            operation,
            token,
            value,
            verdict: None,
        }))?;
        Ok(answer)
    }

    fn id(&self, what: &str) -> String {
        format!("{}-{what}", self.assignment.client)
    }
}

fn refusal(what: &str, answer: &http::Message) -> GaveUp {
    format!(
        "its {what} was refused: {} {}",
        answer.status(),
        answer.json()["error"]["message"]
    )
}

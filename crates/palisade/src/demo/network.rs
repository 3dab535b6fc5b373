//! The network between the workers and the store: a proxy inside the demo that can delay a write.
//!
//! ```text
//!   worker ──► route (one each)   ──► [barrier] ──► one operation at a time ──► store
//!                                                     │ arrival, answer, and what the store
//!                                                     └ holds afterwards are recorded here
//! ```
//!
//! The store is not modified for the demo, so the proxy records the store's side: `arrived_ms` is when the store's
//! socket had accepted the request, `decided_ms` when its answer arrived here. Only one operation passes at a time, so
//! a read right after it shows its effect.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::clock::ActClock;
use super::http::{self, Message as Http, items};
use super::recorder::{Note, Recorder};
use super::timeline::{Content, Message, OperationKind, ResourceMessage, Ruling, TimelineEvent};
use super::worker::{FILE, RESOURCE};

/// All routes to one store. Dropping it closes them.
#[derive(Debug)]
pub(super) struct StoreRoutes {
    store: Arc<RoutedStore>,
    routes: JoinSet<()>,
}

/// Holds messages back until it is opened.
#[derive(Debug)]
pub(super) struct Barrier(watch::Sender<bool>);

/// The store, and its content when last seen.
#[derive(Debug)]
struct RoutedStore {
    address: String,
    clock: ActClock,
    recorder: Arc<Recorder>,
    seen: Mutex<Option<Content>>,
}

impl Barrier {
    pub(super) fn closed() -> Arc<Barrier> {
        Arc::new(Barrier(watch::Sender::new(false)))
    }

    /// Lets all messages pass from now on.
    pub(super) fn open(&self) {
        self.0.send_replace(true);
    }

    async fn pass(&self) {
        // The sender lives as long as this borrow.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

impl StoreRoutes {
    pub(super) fn new(address: String, clock: ActClock, recorder: Arc<Recorder>) -> StoreRoutes {
        let store = RoutedStore {
            address,
            clock,
            recorder,
            seen: Mutex::new(None),
        };
        StoreRoutes {
            store: Arc::new(store),
            routes: JoinSet::new(),
        }
    }

    /// Opens a route for one client, whose writes stop at the barrier; returns the address to connect to.
    pub(super) async fn route(
        &mut self,
        client: &str,
        barrier: Option<Arc<Barrier>>,
    ) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (store, client) = (Arc::clone(&self.store), client.to_owned());
        self.routes.spawn(async move {
            // A worker uses one connection at a time and reports a broken one itself.
            while let Ok((connection, _)) = listener.accept().await {
                let _ = store.carry(connection, &client, barrier.as_deref()).await;
            }
        });
        Ok(address)
    }

    /// Reads the store's content and records it if it changed.
    pub(super) async fn read_content(&self) -> io::Result<Vec<String>> {
        let mut seen = self.store.seen.lock().await;
        let at_ms = self.store.clock.now_ms();
        self.store.observe(&mut seen, at_ms).await?;
        let items = seen.as_ref().map(|content| content.items.clone());
        Ok(items.unwrap_or_default())
    }
}

impl RoutedStore {
    /// Forwards one request, and its answer.
    async fn carry(
        &self,
        mut connection: TcpStream,
        client: &str,
        barrier: Option<&Barrier>,
    ) -> io::Result<()> {
        let (bytes, request) = receive(&mut connection).await?;
        let kind = kind(&request);
        if let (OperationKind::Write, Some(barrier)) = (kind, barrier) {
            self.recorder.note(client, Note::Held);
            barrier.pass().await;
        }
        let mut seen = self.seen.lock().await;
        let (message, answer, answer_bytes) = self.ask(&bytes).await?;
        let decided_ms = message.decided_ms;
        let verdict = verdict(kind, &request, &answer);
        let id = request.field("x-request-id").unwrap_or_default().to_owned();
        let message = Message {
            id,
            client: client.to_owned(),
            ..message
        };
        let (token, value) = (token(&request), written(&request));
        self.recorder
            .record(TimelineEvent::Operation(ResourceMessage {
                message,
                operation: kind,
                token,
                value,
                verdict,
            }));
        if kind != OperationKind::Read {
            self.observe(&mut seen, decided_ms.unwrap_or_default())
                .await?;
        }
        drop(seen);
        connection.set_nodelay(true)?;
        connection.write_all(&answer_bytes).await?;
        connection.shutdown().await
    }

    /// One request to the store: its times, and the answer.
    async fn ask(&self, bytes: &[u8]) -> io::Result<(Message, Http, Vec<u8>)> {
        let mut store = TcpStream::connect(&self.address).await?;
        store.set_nodelay(true)?;
        store.write_all(bytes).await?;
        let arrived_ms = Some(self.clock.now_ms());
        let (bytes, answer) = receive(&mut store).await?;
        let decided_ms = Some(self.clock.now_ms());
        Ok((
            Message {
                arrived_ms,
                decided_ms,
                ..Message::default()
            },
            answer,
            bytes,
        ))
    }

    /// Reads list and fence as an observer does, without a token, and records them if they changed.
    async fn observe(&self, seen: &mut Option<Content>, at_ms: f64) -> io::Result<()> {
        let path = format!("/v1/storage/{}", RESOURCE.replace(':', "%3A"));
        let (_, fence, _) = self.ask(&http::request("GET", &path, &[], "")).await?;
        let (_, file, _) = self
            .ask(&http::request(
                "GET",
                &format!("{path}/files{FILE}"),
                &[],
                "",
            ))
            .await?;
        let items = match file.status() {
            200 => items(&file.body),
            404 => Vec::new(),
            status => {
                return Err(io::Error::other(format!(
                    "the store answers {status} to an observer"
                )));
            }
        };
        let highest = fence.json()["highest"].as_u64();
        let is_new = seen
            .as_ref()
            .is_none_or(|old| (&old.items, old.highest) != (&items, highest));
        if is_new {
            let content = Content {
                at_ms,
                items,
                highest,
            };
            self.recorder
                .record(TimelineEvent::Content(content.clone()));
            *seen = Some(content);
        }
        Ok(())
    }
}

/// One complete message, as bytes and parsed.
async fn receive(connection: &mut TcpStream) -> io::Result<(Vec<u8>, Http)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(message) = Http::parse(&bytes) {
            return Ok((bytes, message));
        }
        if connection.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn kind(request: &Http) -> OperationKind {
    match request.path() {
        "/v1/storage/claim" => OperationKind::Claim,
        "/v1/storage/write" => OperationKind::Write,
        _ => OperationKind::Read,
    }
}

/// The fencing token that a request carries.
fn token(request: &Http) -> Option<u64> {
    let header = request
        .field("x-fencing-token")
        .and_then(|text| text.parse().ok());
    header.or_else(|| request.json()["fencing_token"].as_u64())
}

/// The list that a request writes.
fn written(request: &Http) -> Option<String> {
    let bytes = STANDARD
        .decode(request.json()["write_payload"]["bytes"].as_str()?)
        .ok()?;
    Some(items(&bytes).join(" "))
}

/// The verdict, read from the answer. A store without a fence reports no highest token.
fn verdict(kind: OperationKind, request: &Http, answer: &Http) -> Option<Ruling> {
    let body = answer.json();
    let checked = match kind {
        OperationKind::Read => token(request).is_some(),
        OperationKind::Claim | OperationKind::Write => body["highest"].is_u64(),
    };
    match (answer.status(), kind) {
        (412, _) => body["error"]["highest"].as_u64().map(Ruling::Rejected),
        // A read of a list that was never written gets 404.
        (200, _) | (404, OperationKind::Read) if checked => Some(Ruling::Admitted),
        (200, _) | (404, OperationKind::Read) => Some(Ruling::Unchecked),
        _ => None,
    }
}

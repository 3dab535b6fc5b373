//! The connection that hears of grants while requests wait.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::RequestId;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Config, NoTls};

use super::fault;
use crate::fault::Fault;
use crate::random;

/// One for all requests of a service. It runs only while any of them waits for the first time, and
/// then stays.
pub(super) struct Listener {
    config: Config,
    channel: String,
    shared: Arc<Shared>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Who waits, by request id as the database spells it.
    waiting: Mutex<HashMap<String, Arc<Notify>>>,
    wake_ups: AtomicU64,
}

/// A request that wants to hear of its grant; it is forgotten when this is dropped.
pub(super) struct Ear<'a> {
    listener: &'a Listener,
    request: String,
    rings: Arc<Notify>,
}

impl Ear<'_> {
    pub(super) async fn heard(&self) {
        self.rings.notified().await;
    }
}

impl Drop for Ear<'_> {
    fn drop(&mut self) {
        self.listener.shared.waiting().remove(&self.request);
    }
}

impl Shared {
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, request: &str) {
        if let Some(rings) = self.waiting().get(request) {
            self.wake_ups.fetch_add(1, Ordering::Relaxed);
            rings.notify_one();
        }
    }
}

impl Listener {
    pub(super) fn new(config: Config) -> Result<Listener, Fault> {
        let random = RequestId::from_bytes(random::bytes()?).to_hex();
        Ok(Listener {
            config,
            channel: format!("palisade_{random}"),
            shared: Arc::default(),
            task: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn wake_ups(&self) -> u64 {
        self.shared.wake_ups.load(Ordering::Relaxed)
    }

    /// The channel that grants of this service's requests are told on.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Hears of this request's grant from now on. Without a listening connection waiters look by
    /// themselves, so a failure to open one is none.
    pub(super) async fn listen(&self, request: RequestId) -> Ear<'_> {
        let (request, rings) = (request.to_hex(), Arc::new(Notify::new()));
        self.shared
            .waiting()
            .insert(request.clone(), Arc::clone(&rings));
        let ear = Ear {
            listener: self,
            request,
            rings,
        };
        let mut task = self.task.lock().await;
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            match open(&self.config, &self.channel, Arc::clone(&self.shared)).await {
                Ok(running) => *task = Some(running),
                Err(fault) => tracing::debug!(%fault, "cannot listen for grants"),
            }
        }
        ear
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

/// Opens the connection; from then on the task hears.
async fn open(
    config: &Config,
    channel: &str,
    shared: Arc<Shared>,
) -> Result<JoinHandle<()>, Fault> {
    let connected = config.connect(NoTls).await;
    let (client, mut connection) = connected.map_err(|error| fault::connecting(&error))?;
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(told) = message {
                shared.hear(told.payload());
            }
        }
    });
    let listen = format!("LISTEN {channel}");
    let listening = tokio::time::timeout(PATIENCE, client.batch_execute(&listen)).await;
    match listening {
        Ok(Ok(())) => Ok(tokio::spawn(async move {
            // The connection lives as long as its client does.
            let _client = client;
            let _ = task.await;
        })),
        Ok(Err(error)) => Err(fault::connecting(&error)),
        Err(_) => Err(Fault::unavailable("LISTEN was not answered")),
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

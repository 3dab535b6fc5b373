//! The connection that receives notifications of grants while requests wait.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::RequestId;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Config, NoTls};

use super::fault;
use crate::notifications::{Notifications, WaitingRequest};
use palisade_client::Fault;
use palisade_client::service::fresh_request_id;

/// The listener shared by all requests of a service. It starts when a request waits for the first time, and
/// then keeps running.
pub(super) struct Listener {
    config: Config,
    channel: String,
    pub(super) notifications: Arc<Notifications>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(super) fn new(config: Config) -> Result<Listener, Fault> {
        let random = fresh_request_id()?.to_hex();
        Ok(Listener {
            config,
            channel: format!("palisade_{random}"),
            notifications: Arc::default(),
            task: tokio::sync::Mutex::default(),
        })
    }

    /// The channel on which grants of this service's requests are announced.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Subscribes to this request's grant. Without a listening connection waiters poll, so a failure to open
    /// one is not an error.
    pub(super) async fn listen(&self, request: RequestId) -> WaitingRequest<'_> {
        let waiting = self.notifications.open(request);
        let mut task = self.task.lock().await;
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            match open(&self.config, &self.channel, Arc::clone(&self.notifications)).await {
                Ok(running) => *task = Some(running),
                Err(fault) => tracing::debug!(%fault, "cannot listen for grants"),
            }
        }
        waiting
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

/// Opens the connection and starts the task that receives its notifications.
async fn open(
    config: &Config,
    channel: &str,
    notifications: Arc<Notifications>,
) -> Result<JoinHandle<()>, Fault> {
    let connected = config.connect(NoTls).await;
    let (client, mut connection) = connected.map_err(fault::connecting)?;
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notified) = message {
                notifications.deliver(notified.payload());
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
        Ok(Err(error)) => Err(fault::connecting(error)),
        Err(_) => Err(Fault::unavailable("LISTEN was not answered")),
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

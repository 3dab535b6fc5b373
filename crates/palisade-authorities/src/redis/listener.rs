//! The connection that receives notifications of grants while requests wait.

use std::sync::Arc;

use futures_util::StreamExt as _;
use palisade_core::RequestId;
use redis::{Client, RedisError};
use tokio::task::JoinHandle;

use crate::notifications::{Notifications, WaitingRequest};
use palisade_client::Fault;
use palisade_client::service::fresh_request_id;

/// The listener shared by all requests of a service. It starts when the first of them waits.
pub(super) struct Listener {
    client: Client,
    channel: String,
    pub(super) notifications: Arc<Notifications>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(super) fn new(client: Client) -> Result<Listener, Fault> {
        let random = fresh_request_id()?.to_hex();
        Ok(Listener {
            client,
            channel: format!("palisade:{random}"),
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
            match open(&self.client, &self.channel, Arc::clone(&self.notifications)).await {
                Ok(running) => *task = Some(running),
                Err(error) => tracing::debug!(%error, "cannot listen for grants"),
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
    client: &Client,
    channel: &str,
    notifications: Arc<Notifications>,
) -> Result<JoinHandle<()>, RedisError> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(channel).await?;
    let mut messages = connection.into_on_message();
    Ok(tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            if let Ok(notified) = message.get_payload::<String>() {
                notifications.deliver(&notified);
            }
        }
    }))
}

//! The connection that hears of grants while requests wait.

use std::sync::Arc;

use futures_util::StreamExt as _;
use palisade_core::RequestId;
use redis::{Client, RedisError};
use tokio::task::JoinHandle;

use crate::ears::{Ear, Ears};
use crate::fault::Fault;
use crate::random;

/// One for all requests of a service. It runs from when the first of them waits.
pub(super) struct Listener {
    client: Client,
    channel: String,
    pub(super) ears: Arc<Ears>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(super) fn new(client: Client) -> Result<Listener, Fault> {
        let random = RequestId::from_bytes(random::bytes()?).to_hex();
        Ok(Listener {
            client,
            channel: format!("palisade:{random}"),
            ears: Arc::default(),
            task: tokio::sync::Mutex::default(),
        })
    }

    /// The channel that grants of this service's requests are told on.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Hears of this request's grant from now on. Without a listening connection waiters look by
    /// themselves, so a failure to open one is none.
    pub(super) async fn listen(&self, request: RequestId) -> Ear<'_> {
        let ear = self.ears.open(request);
        let mut task = self.task.lock().await;
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            match open(&self.client, &self.channel, Arc::clone(&self.ears)).await {
                Ok(running) => *task = Some(running),
                Err(error) => tracing::debug!(%error, "cannot listen for grants"),
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
    client: &Client,
    channel: &str,
    ears: Arc<Ears>,
) -> Result<JoinHandle<()>, RedisError> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(channel).await?;
    let mut messages = connection.into_on_message();
    Ok(tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            if let Ok(told) = message.get_payload::<String>() {
                ears.tell(&told);
            }
        }
    }))
}

//! Messages of released locks: one subscribed connection that many lanes share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::Halves;
use super::pipeline::next;
use super::resp::{self, Value};
use crate::lane::Error;

/// For each channel, who is to be notified.
type Subscribers = Arc<Mutex<HashMap<Vec<u8>, Vec<Arc<Notify>>>>>;

pub(super) struct Notifications {
    subscribers: Subscribers,
    stream: tokio::sync::Mutex<Box<dyn AsyncWrite + Send + Unpin>>,
    confirmed: Arc<Notify>,
}

impl Notifications {
    pub(super) fn new(stream: Halves) -> Notifications {
        let Halves { reading, writing } = stream;
        let notifications = Notifications {
            subscribers: Subscribers::default(),
            stream: tokio::sync::Mutex::new(writing),
            confirmed: Arc::new(Notify::new()),
        };
        let (subscribers, confirmed) = (
            Arc::clone(&notifications.subscribers),
            Arc::clone(&notifications.confirmed),
        );
        tokio::spawn(listen(reading, subscribers, confirmed));
        notifications
    }

    /// Subscribes to a channel; the result is notified of each message from now on.
    pub(super) async fn subscribe(&self, channel: &[u8]) -> Result<Arc<Notify>, Error> {
        let notify = Arc::new(Notify::new());
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(channel.to_vec())
            .or_default()
            .push(Arc::clone(&notify));
        let mut command = Vec::new();
        resp::put(&mut command, &[b"SUBSCRIBE", channel]);
        // One at a time, so that the next confirmation belongs to this call.
        let mut stream = self.stream.lock().await;
        stream.write_all(&command).await?;
        self.confirmed.notified().await;
        Ok(notify)
    }
}

async fn listen(
    mut stream: impl AsyncRead + Unpin,
    subscribers: Subscribers,
    confirmed: Arc<Notify>,
) {
    let mut inbound = BytesMut::new();
    while let Ok(Value::List(list)) = next(&mut stream, &mut inbound).await {
        let [Value::Text(kind), Value::Text(channel), _] = &list[..] else {
            continue;
        };
        if kind == b"subscribe" {
            confirmed.notify_one();
            continue;
        }
        let subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        for notify in subscribers.get(channel).into_iter().flatten() {
            notify.notify_one();
        }
    }
}

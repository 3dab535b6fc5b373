//! PostgreSQL: a row for each lock, which keeps the lock's own counter of tokens; `NOTIFY` for waiters.
//!
//! With one counter for all locks, every grant would wait until the previous one is on disk, and a sequence may be
//! drawn from in another order than rows are locked. So each row keeps its own counter and is never deleted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::{Connection as Any, Terms};
use crate::lane::{Error, LaneFuture, Renewing, random};

pub(crate) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    notifications: Option<Notifications>,
    ttl: f64,
    take: Statement,
    renew: Statement,
    give: Statement,
}

struct Lane {
    shared: Arc<Shared>,
    lock: String,
    holder: i64,
    channel: String,
    notify: Option<Arc<Notify>>,
}

/// With free space in each page, so that an update stays in it and touches no index.
const TABLE: &str = "
    CREATE SCHEMA peers;
    CREATE TABLE peers.locks (lock text PRIMARY KEY, holder bigint NOT NULL, token bigint NOT NULL,
        expires timestamptz NOT NULL) WITH (fillfactor = 50);";

const TAKE: &str = "
    INSERT INTO peers.locks AS mine VALUES ($1, $2, 1, clock_timestamp() + $3 * interval '1 ms')
    ON CONFLICT (lock) DO UPDATE
        SET holder = EXCLUDED.holder, token = mine.token + 1, expires = EXCLUDED.expires
        WHERE mine.expires <= clock_timestamp()
    RETURNING token";

/// For an existing row. Unlike the statement above it writes nothing when it is refused.
const TAKE_AGAIN: &str = "
    UPDATE peers.locks
    SET holder = $2, token = token + 1, expires = clock_timestamp() + $3 * interval '1 ms'
    WHERE lock = $1 AND expires <= clock_timestamp()
    RETURNING token";

const FIRST: &str =
    "INSERT INTO peers.locks VALUES ($1, 0, 0, '-infinity') ON CONFLICT (lock) DO NOTHING";

const RENEW: &str = "
    UPDATE peers.locks SET expires = clock_timestamp() + $3 * interval '1 ms'
    WHERE lock = $1 AND holder = $2 AND expires > clock_timestamp()";

const GIVE: &str = "UPDATE peers.locks SET expires = '-infinity' WHERE lock = $1 AND holder = $2";

const GIVE_AND_TELL: &str = "
    WITH gone AS (UPDATE peers.locks SET expires = '-infinity'
        WHERE lock = $1 AND holder = $2 RETURNING 1)
    SELECT pg_notify($3, '') FROM gone";

pub(crate) async fn prepare(url: &str) -> Result<(), Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(TABLE).await?;
    drop(client);
    connection.await??;
    Ok(())
}

impl Connection {
    pub(crate) async fn open(url: &str, terms: Terms) -> Result<Connection, Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let notifications = if terms.contended {
            Some(Notifications::open(url).await?)
        } else {
            None
        };
        let (take, give) = if terms.contended {
            (TAKE_AGAIN, GIVE_AND_TELL)
        } else {
            (TAKE, GIVE)
        };
        let shared = Shared {
            notifications,
            ttl: terms.ttl_ms as f64,
            take: client.prepare(take).await?,
            renew: client.prepare(RENEW).await?,
            give: client.prepare(give).await?,
            client,
        };
        Ok(Connection {
            shared: Arc::new(shared),
        })
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let channel = format!("peers_{}", lock.replace(['/', '-'], "_"));
            let notify = match &self.shared.notifications {
                Some(notifications) => {
                    self.shared.client.execute(FIRST, &[&lock]).await?;
                    Some(notifications.subscribe(&channel).await?)
                }
                None => None,
            };
            let lane = Lane {
                shared: Arc::clone(&self.shared),
                lock: lock.to_owned(),
                holder: i64::from_le_bytes(random()?[..8].try_into()?),
                channel,
                notify,
            };
            Ok(Box::new(lane) as Box<dyn Renewing>)
        })
    }
}

impl crate::lane::Lane for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let Shared {
                client, take, ttl, ..
            } = &*self.shared;
            loop {
                let row = client
                    .query_opt(take, &[&self.lock, &self.holder, ttl])
                    .await?;
                match (row, &self.notify) {
                    (Some(row), _) => return Ok(row.try_get::<_, i64>(0)?.unsigned_abs()),
                    (None, Some(notify)) => notify.notified().await,
                    (None, None) => return Err("a lane's own lock is held".into()),
                }
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let Shared { client, give, .. } = &*self.shared;
            let (lock, holder) = (&self.lock, &self.holder);
            one(match self.notify {
                Some(_) => client.execute(give, &[lock, holder, &self.channel]).await?,
                None => client.execute(give, &[lock, holder]).await?,
            })
        })
    }
}

impl Renewing for Lane {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let Shared {
                client, renew, ttl, ..
            } = &*self.shared;
            one(client
                .execute(renew, &[&self.lock, &self.holder, ttl])
                .await?)
        })
    }
}

fn one(rows: u64) -> Result<(), Error> {
    (rows == 1).then_some(()).ok_or_else(|| "not held".into())
}

/// A connection that listens for many lanes.
struct Notifications {
    client: Client,
    subscribers: Subscribers,
}

/// For each channel, who is to be notified.
type Subscribers = Arc<Mutex<HashMap<String, Vec<Arc<Notify>>>>>;

impl Notifications {
    async fn open(url: &str) -> Result<Notifications, Error> {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
        let subscribers = Subscribers::default();
        let shared = Arc::clone(&subscribers);
        tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(received) = message {
                    let subscribers = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    for notify in subscribers.get(received.channel()).into_iter().flatten() {
                        notify.notify_one();
                    }
                }
            }
        });
        Ok(Notifications {
            client,
            subscribers,
        })
    }

    async fn subscribe(&self, channel: &str) -> Result<Arc<Notify>, Error> {
        let notify = Arc::new(Notify::new());
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(channel.to_owned())
            .or_default()
            .push(Arc::clone(&notify));
        self.client
            .batch_execute(&format!("LISTEN {channel}"))
            .await?;
        Ok(notify)
    }
}

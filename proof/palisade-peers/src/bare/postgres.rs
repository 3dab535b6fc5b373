//! PostgreSQL: a row for the lock, one counter row for all tokens, `NOTIFY` for the waiter.

use futures_util::StreamExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::lane::{Error, Lane as Any, LaneFuture, TTL_MS};

pub(crate) struct Lane {
    client: Client,
    notified: UnboundedReceiver<()>,
    listens: bool,
    lock: String,
    channel: String,
}

const TABLES: &str = "
    CREATE SCHEMA bare;
    CREATE TABLE bare.tokens (last bigint NOT NULL);
    INSERT INTO bare.tokens VALUES (0);
    CREATE TABLE bare.locks (lock text PRIMARY KEY, token bigint NOT NULL, expires timestamptz NOT NULL);";

/// Takes a lock that is free or expired. Only then does it touch the counter's row.
const TAKE: &str = "
    WITH free AS (
        SELECT 1 WHERE NOT EXISTS (
            SELECT 1 FROM bare.locks WHERE lock = $1 AND expires > clock_timestamp())
    ), drawn AS (
        UPDATE bare.tokens SET last = last + 1 WHERE EXISTS (SELECT 1 FROM free) RETURNING last
    )
    INSERT INTO bare.locks SELECT $1, last, clock_timestamp() + $2 * interval '1 ms' FROM drawn
    ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token, expires = EXCLUDED.expires
        WHERE bare.locks.expires <= clock_timestamp()
    RETURNING token";

const GIVE: &str = "
    WITH gone AS (DELETE FROM bare.locks WHERE lock = $1 RETURNING 1)
    SELECT pg_notify($2, '') FROM gone";

pub(crate) async fn prepare(url: &str) -> Result<(), Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(TABLES).await?;
    drop(client);
    connection.await??;
    Ok(())
}

impl Lane {
    pub(crate) async fn connect(url: &str, lock: &str) -> Result<Lane, Error> {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
        let (sender, notified) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if matches!(message, AsyncMessage::Notification(_)) && sender.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Lane {
            client,
            notified,
            listens: false,
            lock: lock.to_owned(),
            channel: format!("bare_{}", lock.replace('/', "_")),
        })
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            loop {
                let ttl = TTL_MS as f64;
                let taken = self.client.query_opt(TAKE, &[&self.lock, &ttl]).await?;
                if let Some(row) = taken {
                    return Ok(row.try_get::<_, i64>(0)?.unsigned_abs());
                }
                if self.listens {
                    self.notified.recv().await.ok_or("the connection ended")?;
                } else {
                    let listen = format!("LISTEN {}", self.channel);
                    self.client.batch_execute(&listen).await?;
                    self.listens = true;
                }
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            self.client
                .query(GIVE, &[&self.lock, &self.channel])
                .await?;
            Ok(())
        })
    }
}

//! Redis: one script takes the lock and draws the token, or queues; another releases the lock and notifies the first of
//! the queue. Waiters that died are not removed.

use futures_util::StreamExt as _;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Client, Script};

use crate::lane::{Error, Lane as Any, LaneFuture, TTL_MS, random};

pub(crate) struct Lane {
    client: Client,
    connection: MultiplexedConnection,
    messages: Option<PubSubStream>,
    lock: String,
    queue: String,
    /// The client's id, also the channel for its notifications.
    id: String,
    /// The lock's value while this lane holds it.
    held: String,
    take: Script,
    give: Script,
}

const TAKE: &str = "\
    local first = redis.call('LINDEX', KEYS[2], 0) \
    if (first and first ~= ARGV[1]) or redis.call('EXISTS', KEYS[1]) == 1 then \
        if ARGV[3] == 'join' then redis.call('RPUSH', KEYS[2], ARGV[1]) end \
        return 0 \
    end \
    local token = redis.call('INCR', 'bare:tokens') \
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token, 'PX', ARGV[2]) \
    if first then redis.call('LPOP', KEYS[2]) end \
    return token";

const GIVE: &str = "\
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('DEL', KEYS[1]) \
    local first = redis.call('LINDEX', KEYS[2], 0) \
    if first then redis.call('PUBLISH', first, '') end \
    return 1";

impl Lane {
    pub(crate) async fn connect(url: &str, lock: &str) -> Result<Lane, Error> {
        let client = Client::open(url)?;
        Ok(Lane {
            connection: client.get_multiplexed_async_connection().await?,
            client,
            messages: None,
            lock: format!("bare:{lock}"),
            queue: format!("bare:{lock}:queue"),
            id: format!("{:032x}", u128::from_le_bytes(random()?)),
            held: String::new(),
            take: Script::new(TAKE),
            give: Script::new(GIVE),
        })
    }

    async fn take(&mut self, join: bool) -> Result<Option<u64>, Error> {
        let mut call = self.take.key(&self.lock);
        call.key(&self.queue).arg(&self.id).arg(TTL_MS);
        call.arg(if join { "join" } else { "" });
        let token: u64 = call.invoke_async(&mut self.connection).await?;
        Ok((token > 0).then_some(token))
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let mut queued = false;
            loop {
                // Only a client that listens for its turn may queue.
                let join = self.messages.is_some() && !queued;
                if let Some(token) = self.take(join).await? {
                    self.held = format!("{} {token}", self.id);
                    return Ok(token);
                }
                match &mut self.messages {
                    Some(messages) => {
                        queued = true;
                        messages.next().await.ok_or("the subscription ended")?;
                    }
                    none => {
                        let mut hears = self.client.get_async_pubsub().await?;
                        hears.subscribe(&self.id).await?;
                        *none = Some(hears.into_on_message());
                    }
                }
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let mut call = self.give.key(&self.lock);
            call.key(&self.queue).arg(&self.held);
            let given: u64 = call.invoke_async(&mut self.connection).await?;
            (given == 1).then_some(()).ok_or_else(|| "not held".into())
        })
    }
}

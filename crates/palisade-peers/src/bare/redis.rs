//! Redis: one script takes the lock and draws the token, one gives it back and tells the waiter.

use futures_util::StreamExt as _;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Client, Script};

use crate::lane::{Error, Lane as Any, Step, TTL_MS, random};

pub(crate) struct Lane {
    client: Client,
    connection: MultiplexedConnection,
    messages: Option<PubSubStream>,
    lock: String,
    value: [u8; 16],
    take: Script,
    give: Script,
}

impl Lane {
    pub(crate) async fn connect(url: &str, lock: &str) -> Result<Lane, Error> {
        let client = Client::open(url)?;
        Ok(Lane {
            connection: client.get_multiplexed_async_connection().await?,
            client,
            messages: None,
            lock: format!("bare:{lock}"),
            value: random()?,
            take: Script::new(
                "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                 return redis.call('INCR', 'bare:tokens') end return 0",
            ),
            give: Script::new(
                "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                 redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[1], '') return 1",
            ),
        })
    }

    async fn take(&mut self) -> Result<Option<u64>, Error> {
        let mut call = self.take.key(&self.lock);
        call.arg(&self.value[..]).arg(TTL_MS);
        let token: u64 = call.invoke_async(&mut self.connection).await?;
        Ok((token > 0).then_some(token))
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> Step<'_, u64> {
        Box::pin(async move {
            loop {
                if let Some(token) = self.take().await? {
                    return Ok(token);
                }
                match &mut self.messages {
                    Some(messages) => {
                        messages.next().await.ok_or("the subscription ended")?;
                    }
                    // The first time: subscribe, and look again.
                    none => {
                        let mut hears = self.client.get_async_pubsub().await?;
                        hears.subscribe(&self.lock).await?;
                        *none = Some(hears.into_on_message());
                    }
                }
            }
        })
    }

    fn release(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            let mut call = self.give.key(&self.lock);
            call.arg(&self.value[..]);
            let given: u64 = call.invoke_async(&mut self.connection).await?;
            (given == 1).then_some(()).ok_or_else(|| "not held".into())
        })
    }
}

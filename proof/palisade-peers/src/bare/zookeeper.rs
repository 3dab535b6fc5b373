//! ZooKeeper: an ephemeral sequential node, a watch on the one before it.

use zookeeper_client::{Acls, Client, CreateMode, EventType};

use crate::lane::{Error, Lane as Any, LaneFuture, random};

pub(crate) struct Lane {
    client: Client,
    lock: String,
    held: Option<String>,
}

impl Lane {
    pub(crate) async fn connect(port: u16, lock: &str) -> Result<Lane, Error> {
        let client = Client::connect(&format!("127.0.0.1:{port}")).await?;
        Lane::new(client, lock).await
    }

    /// On a shared connection.
    pub(crate) async fn new(client: Client, lock: &str) -> Result<Lane, Error> {
        let lock = format!("/bare/{}", lock.replace('/', "-"));
        let directories = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir(&lock, &directories).await?;
        Ok(Lane {
            client,
            lock,
            held: None,
        })
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let id = u128::from_le_bytes(random()?);
            let prefix = format!("{}/{id:032x}-lock-", self.lock);
            let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let (stat, sequence) = self.client.create(&prefix, b"lane", &mode).await?;
            let number = sequence.to_string();
            self.held = Some(format!("{prefix}{number}"));
            loop {
                let mut children = self.client.list_children(&self.lock).await?;
                children.sort_by_cached_key(|name| name.rsplit('-').next().map(str::to_owned));
                let own = children
                    .iter()
                    .position(|name| name.ends_with(&number))
                    .ok_or("the node is gone")?;
                let Some(before) = own.checked_sub(1) else {
                    return Ok(stat.czxid.unsigned_abs());
                };
                let path = format!("{}/{}", self.lock, children[before]);
                let (there, watcher) = self.client.check_and_watch_stat(&path).await?;
                if there.is_some() && watcher.changed().await.event_type != EventType::NodeDeleted {
                    return Err("the session ended".into());
                }
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let path = self.held.take().ok_or("nothing is held")?;
            self.client.delete(&path, None).await?;
            Ok(())
        })
    }
}

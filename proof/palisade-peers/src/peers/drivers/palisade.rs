//! Palisade: its own client, one plain session per connection, no guard.
//!
//! A connection is one client, as in etcd and ZooKeeper; lanes that contend for a lock are one client each, because a
//! client does not contend with itself.

use std::sync::Arc;

use palisade_client::service::LockService;
use palisade_client::{Options, connect};
use palisade_core::ClientId;

use super::{Connection as Any, Terms};
use crate::lane::{Adapter, Error, LaneFuture, Renewing, new_client};

pub(crate) struct Connection {
    service: Arc<dyn LockService>,
    client: ClientId,
    terms: Terms,
}

impl Connection {
    pub(crate) async fn open(url: &str, terms: Terms) -> Result<Connection, Error> {
        let options = Options {
            connections: 1,
            ..Options::default()
        };
        let service = connect(url, &options).await?;
        Ok(Connection {
            service,
            client: new_client()?,
            terms,
        })
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let client = if self.terms.contended {
                new_client()?
            } else {
                self.client.clone()
            };
            let lane = Adapter::new(Arc::clone(&self.service), client, lock)?;
            Ok(Box::new(lane.lasting(self.terms.ttl_ms)?) as Box<dyn Renewing>)
        })
    }
}

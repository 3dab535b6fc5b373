//! Palisade: its own client, one plain session a connection, no guard.

use std::sync::Arc;

use palisade_client::service::LockService;
use palisade_client::{Options, connect};

use super::{Connection as Any, Terms};
use crate::lane::{Adapter, Error, Renewing, Step};

pub(crate) struct Connection {
    service: Arc<dyn LockService>,
    terms: Terms,
}

impl Connection {
    pub(crate) async fn open(url: &str, terms: Terms) -> Result<Connection, Error> {
        let options = Options {
            connections: 1,
            ..Options::default()
        };
        let service = connect(url, &options).await?;
        Ok(Connection { service, terms })
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> Step<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let lane = Adapter::new(Arc::clone(&self.service), lock)?;
            Ok(Box::new(lane.lasting(self.terms.ttl_ms)?) as Box<dyn Renewing>)
        })
    }
}

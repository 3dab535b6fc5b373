//! Fences in a Redis server.

use palisade_fence::redis::{Fault, Operator};
use palisade_fence::{Admin as _, FenceState, Listed, Rearm};
use palisade_proto::Code;
use redis::Client;
use redis::aio::MultiplexedConnection;

use super::super::failure::{FAILED, Failure};
use super::kind::{PAGE, failed, too_low};

pub(super) struct Server(MultiplexedConnection);

impl Server {
    pub(super) async fn open(url: &str) -> Result<Server, Failure> {
        let client = Client::open(url).map_err(|error| {
            Failure::usage(format!("--url: {error}")).hint("for example redis://127.0.0.1:6379/0")
        })?;
        let connected = client.get_multiplexed_async_connection().await;
        connected.map(Server).map_err(|error| {
            Failure::new(FAILED, Code::Unavailable, error.to_string())
                .hint("is Redis running there?")
        })
    }

    pub(super) async fn install(&mut self) -> Result<(), Failure> {
        let done = palisade_fence::redis::install(&mut self.0).await;
        done.map_err(|fault| {
            Failure::from(fault)
                .hint("the library needs Redis 7; older servers run the script with EVALSHA")
        })
    }

    pub(super) async fn uninstall(&mut self) -> Result<(), Failure> {
        Ok(palisade_fence::redis::uninstall(&mut self.0).await?)
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        Ok(Operator::new(&mut self.0).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        Ok(Operator::new(&mut self.0).list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        Ok(Operator::new(&mut self.0).rearm(resource, with).await?)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        match fault {
            Fault::FloorTooLow(floor) => too_low(floor),
            other => failed(other.kind(), other.to_string()),
        }
    }
}

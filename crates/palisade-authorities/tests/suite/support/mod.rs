//! Clients of real servers.

#![allow(dead_code, reason = "each test file uses its part")]

#[cfg(feature = "conformance")]
pub(crate) mod served;

use std::time::Duration;

use palisade_client::{Client, Error, Options};

/// The time limit for an event of a real authority.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A client with the settings that every client has.
pub(crate) async fn client_of(url: &str) -> Result<Client, Error> {
    palisade_authorities::client(url, Options::default()).await
}

/// Polls until the condition is true.
pub(crate) async fn poll(mut so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await; // real time: servers need time to expire leases and clean up
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// A connection to Redis for a test's own commands. The default limit for an answer, half a second, is shorter than
/// a busy disk takes to sync.
pub(crate) async fn redis_at(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    let settings = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let connected = client.get_multiplexed_async_connection_with_config(&settings);
    connected.await.unwrap()
}

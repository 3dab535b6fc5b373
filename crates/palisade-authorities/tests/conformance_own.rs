//! The conformance suite against the in-process authority and a real Palisade server.
//!
//! A program of its own: a process that another test is starting would still have the lock of a closed directory,
//! because it has every descriptor until it runs its program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../../palisade-client/tests/suite/support/relay.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod relay;
#[path = "../../palisade-client/tests/suite/support/server.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod server;

use std::sync::Arc;
use std::time::Duration;

use palisade_authorities::conformance::{self, Habit, Subject};
use palisade_client::in_process::InProcess;
use palisade_client::palisade::Palisade;
use palisade_client::{Fault, LockService};
use relay::Relay;
use server::Server;
use tokio::sync::Mutex;

struct Here(Arc<InProcess>);

impl Subject for Here {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        Ok(self.0.clone())
    }
}

/// Set `PALISADE_CONFORMANCE_GRANTS=2000` for the full battery.
#[tokio::test(flavor = "multi_thread")]
async fn in_process() {
    let subject = Arc::new(Here(Arc::new(InProcess::start().unwrap())));
    let habit = Habit::FULL.scaled().unwrap();
    conformance::run(&subject, habit).await.assert_passed();
}

/// A server in this process on a durable store, behind a relay that keeps running when the server stops.
struct RealServer {
    dir: tempfile::TempDir,
    server: Mutex<Option<Server>>,
    relay: Relay,
}

impl RealServer {
    async fn start() -> RealServer {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&dir.path().join("data")).await;
        let relay = Relay::to(server.address).await;
        RealServer {
            dir,
            server: Mutex::new(Some(server)),
            relay,
        }
    }
}

impl Subject for RealServer {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        Ok(Arc::new(Palisade::connect(&self.relay.url(), 1).await?))
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        Some(self.connect().await)
    }

    async fn cut(&self) {
        self.relay.cut();
    }

    /// The server stops in order, but its clients see their connections end and get no answers to their
    /// requests. A real SIGKILL is part of the binary's own crash battery.
    async fn crash(&self) -> bool {
        let mut server = self.server.lock().await;
        self.relay.move_to(None);
        server.take().unwrap().stop().await;
        let again = Server::start(&self.dir.path().join("data")).await;
        self.relay.move_to(Some(again.address));
        *server = Some(again);
        true
    }
}

/// Set `PALISADE_CONFORMANCE_GRANTS=2000` for the full battery.
#[tokio::test(flavor = "multi_thread")]
async fn palisade_server() {
    let subject = Arc::new(RealServer::start().await);
    let habit = Habit::FULL.scaled().unwrap();
    conformance::run(&subject, habit).await.assert_passed();
}

/// A broken authority: each connection has its own locks, as on the sides of a partition. It shows that the
/// suite can fail.
struct Partitioned;

impl Subject for Partitioned {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        Ok(Arc::new(InProcess::start()?))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_authority_fails_the_suite() {
    let habit = Habit {
        patience: Duration::from_millis(700),
        ..Habit::FULL
    };
    let failed = conformance::run(&Arc::new(Partitioned), habit)
        .await
        .failed();
    for check in [
        "one_holder_at_a_time_and_tokens_rise_in_grant_order",
        "waiters_are_granted_in_order",
        "a_try_is_answered_with_the_holder",
        "an_expired_lease_goes_to_the_next_and_never_before_its_holder_stops_believing",
        "a_repeated_request_is_answered_with_its_first_grant",
        "an_abandoned_grant_is_given_back",
        "a_client_stopped_past_its_lease_knows_it_when_it_continues",
    ] {
        assert!(
            failed.contains(&check),
            "{check} passed; failed: {failed:?}"
        );
    }
}

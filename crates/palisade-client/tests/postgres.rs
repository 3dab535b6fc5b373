//! PostgreSQL as the authority: the suite for authorities against Debian's postgresql, and what is
//! special about the lock table.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::conformance::{self, Habit, Subject};
use palisade_client::postgres::Postgres;
use palisade_client::{Fault, LockService};
use support::relay::Relay;
use support::servers::postgres::Postgres as Server;

/// A database, and what is connected to it.
struct Database {
    server: Mutex<Server>,
    relay: Relay,
    connected: Mutex<Vec<Arc<Postgres>>>,
}

impl Database {
    async fn start() -> Database {
        let server = Server::start();
        let relay = Relay::to(server.address()).await;
        Database {
            server: Mutex::new(server),
            relay,
            connected: Mutex::default(),
        }
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<dyn LockService>, Fault> {
        let postgres = Arc::new(Postgres::connect(&url(address), 2).await?);
        self.connected.lock().unwrap().push(postgres.clone());
        Ok(postgres)
    }
}

fn url(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}

impl Subject for Database {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        let address = self.server.lock().unwrap().address();
        self.connect_to(address).await
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        Some(self.connect_to(self.relay.address).await)
    }

    async fn cut(&self) {
        self.relay.cut();
    }

    async fn crash(&self) -> bool {
        self.server.lock().unwrap().crash();
        true
    }

    fn wake_ups(&self) -> Option<u64> {
        let connected = self.connected.lock().unwrap();
        Some(connected.iter().map(|one| one.wake_ups()).sum())
    }
}

const HABIT: Habit = Habit {
    brief: Duration::from_millis(600),
    long: Duration::from_secs(9),
    ..Habit::FULL
};

/// `PALISADE_CONFORMANCE_GRANTS=2000` for the full battery.
#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    let subject = Arc::new(Database::start().await);
    let report = conformance::run(&subject, HABIT.scaled().unwrap()).await;
    println!("{report}");
    report.assert_passed();
}

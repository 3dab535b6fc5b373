//! One Redis primary as the authority: the suite for authorities against Debian's redis-server, and
//! what is special about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::conformance::{self, Habit, Subject};
use palisade_client::redis::Redis;
use palisade_client::{Client, Fault, LockService, Options, Token, secs};
use palisade_testbed::{Proxy, Redis as Server};

/// A server that syncs before it answers, and what is connected to it.
struct Primary {
    server: Server,
    proxy: Proxy,
    connected: Mutex<Vec<Arc<Redis>>>,
}

impl Primary {
    fn start() -> Primary {
        let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let proxy = Proxy::to(server.address());
        Primary {
            server,
            proxy,
            connected: Mutex::default(),
        }
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<dyn LockService>, Fault> {
        let redis = Arc::new(Redis::connect(&format!("redis://{address}")).await?);
        self.connected.lock().unwrap().push(redis.clone());
        Ok(redis)
    }
}

impl Subject for Primary {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        self.connect_to(self.server.address()).await
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        Some(self.connect_to(self.proxy.addr()).await)
    }

    async fn cut(&self) {
        self.proxy.break_connections();
    }

    async fn crash(&self) -> bool {
        self.server.start_again();
        true
    }

    fn wake_ups(&self) -> Option<u64> {
        let connected = self.connected.lock().unwrap();
        Some(connected.iter().map(|one| one.wake_ups()).sum())
    }
}

/// `PALISADE_CONFORMANCE_GRANTS=2000` for the full battery.
#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    let subject = Arc::new(Primary::start());
    let report = conformance::run(&subject, Habit::FULL.scaled().unwrap()).await;
    println!("{report}");
    report.assert_passed();
}

//! Virtual time, a scripted authority, and real ones.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

pub(crate) mod relay;
pub(crate) mod scripted;
pub(crate) mod server;
pub(crate) mod virtual_clock;

use std::sync::Arc;
use std::time::Duration;

use palisade_client::{Client, LockView, Options};

pub(crate) use scripted::{Call, ScriptedLockService};
pub(crate) use virtual_clock::VirtualClock;

/// An event of a real authority that does not come by then never will.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until it is so.
pub(crate) async fn poll(mut so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await; // real time: servers expire and tidy up
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// Waits until a lock looks as wanted. There is no event for a queue, so it asks again and again.
pub(crate) async fn until_shown(client: &Client, lock: &str, wanted: impl Fn(&LockView) -> bool) {
    let wait = async {
        while !wanted(&client.show(lock).await.unwrap()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the lock never looked as wanted");
}

/// A client of a scripted authority, on a clock that moves only when told.
pub(crate) fn scripted_client() -> (Client, Arc<ScriptedLockService>, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(Duration::from_secs(1_000)));
    let service = Arc::new(ScriptedLockService::new(clock.clone()));
    let options = Options::default();
    let client = Client::with(service.clone(), clock.clone(), &options).unwrap();
    (client, service, clock)
}

/// Lets every task run until none has anything to do: tests on virtual time have one thread, no I/O
/// and no timers, so a bounded number of turns is enough, and the same in every run.
pub(crate) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

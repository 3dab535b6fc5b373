//! A virtual clock, a scripted authority, and real servers.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

pub(crate) mod relay;
pub(crate) mod scripted;
pub(crate) mod server;
pub(crate) mod virtual_clock;

use std::sync::Arc;
use std::time::Duration;

use palisade_client::{Client, Leader, LockView, Notice, Observer, Options, Watch, WatchEvent};

pub(crate) use scripted::{Call, ScriptedLockService};
pub(crate) use virtual_clock::VirtualClock;

/// The time limit for an event of a real authority.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until the condition is true.
pub(crate) async fn poll(mut so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await; // real time: servers need time to expire leases and clean up
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// The next change that a watch reports.
pub(crate) async fn changed(watch: &mut Watch) -> WatchEvent {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    match next.unwrap().unwrap() {
        Notice::Change(event) => event,
        missed => panic!("{missed:?}"),
    }
}

/// Returns the next leader that an observer reports.
pub(crate) async fn observed(observer: &mut Observer) -> Option<Leader> {
    let next = tokio::time::timeout(PATIENCE, observer.next()).await;
    next.unwrap().unwrap()
}

/// Polls until a lock is in the expected state. There is no event for a queue.
pub(crate) async fn until_shown(client: &Client, lock: &str, wanted: impl Fn(&LockView) -> bool) {
    let wait = async {
        while !wanted(&client.show(lock).await.unwrap()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the lock never reached the expected state");
}

/// A client of a scripted authority, on a clock that moves only when the test moves it.
pub(crate) fn scripted_client() -> (Client, Arc<ScriptedLockService>, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(Duration::from_secs(1_000)));
    let service = Arc::new(ScriptedLockService::new(clock.clone()));
    let options = Options::default();
    let client = Client::with(service.clone(), clock.clone(), &options).unwrap();
    (client, service, clock)
}

/// Lets every task run until none has anything to do. Tests on virtual time have one thread, no I/O and no
/// timers, so a bounded number of turns is enough, and it is the same in every run.
pub(crate) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

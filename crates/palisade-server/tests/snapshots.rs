//! Snapshots that an authority makes of itself while it works.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::{ClientId, LockName, Outcome, Ttl, limits};
use palisade_server::durable::{self, Authority, Settings};
use palisade_server::pipeline::{Acquire, Answer, Handle, Request};
use tokio::task::JoinSet;

static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);

fn open(dir: &Path) -> Authority {
    let settings = Settings {
        give_memory_back: Some(|| {
            GIVEN_BACK.fetch_add(1, Ordering::SeqCst);
        }),
        ..Settings::default()
    };
    durable::open(dir, &settings).unwrap()
}

fn stop(authority: Authority) {
    authority.pipeline.handle.stop();
    authority.join();
}

async fn grant(handle: Handle, number: usize) {
    let wish = Acquire {
        lock: LockName::new(&format!("held/{number}")).unwrap(),
        client: ClientId::new("c").unwrap(),
        lease: None,
        ttl: Some(Ttl::from_millis(3_600_000).unwrap()),
        wait: None,
        request: None,
        metadata: Some("m".repeat(limits::METADATA_BYTES).into()),
    };
    let answer = handle.call(Request::Acquire(wish)).await;
    assert!(
        matches!(answer, Answer::Outcome(Outcome::Granted(_))),
        "{answer:?}"
    );
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "snap"))
        .collect()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await; // real time: a thread polls for work
    }
    panic!("not within half a minute: {what}");
}

#[tokio::test]
async fn a_snapshot_is_made_beside_the_work_and_its_memory_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let authority = open(&data);
    until("memory of the start given back", || {
        GIVEN_BACK.load(Ordering::SeqCst) == 1
    })
    .await;
    assert_eq!(snapshots(&data), Vec::<PathBuf>::new());

    // So much of the log that one is due: more than a hundred MiB.
    let mut held = 0;
    while held < 400_000 && snapshots(&data).is_empty() {
        let mut running = JoinSet::new();
        for number in held..held + 1_000 {
            running.spawn(grant(authority.pipeline.handle.clone(), number));
        }
        running.join_all().await;
        held += 1_000;
    }
    until("a snapshot", || !snapshots(&data).is_empty()).await;
    until("its memory given back", || {
        GIVEN_BACK.load(Ordering::SeqCst) >= 2
    })
    .await;
    stop(authority);

    let authority = open(&data);
    let Answer::Status(status) = authority.pipeline.handle.call(Request::Status).await else {
        panic!("no status");
    };
    assert_eq!(status.locks, held);
    stop(authority);
}

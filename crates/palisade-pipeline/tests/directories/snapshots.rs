//! Snapshots that an authority makes of itself, at work and at rest.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::{ClientId, LockName, Others, Outcome, Ttl, Under, Wish, limits};
use palisade_pipeline::durable::{self, Authority, Settings};
use palisade_pipeline::{Answer, Handle, Request};
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
    let wish = Wish {
        lock: LockName::new(&format!("held/{number}")).unwrap(),
        also: Others::NONE,
        client: ClientId::new("c").unwrap(),
        mode: palisade_core::LockMode::Exclusive,
        under: Under::new(Ttl::from_millis(3_600_000).unwrap()),
        wait: None,
        request: None,
        metadata: Some("m".repeat(limits::METADATA_BYTES).into()),
        options: palisade_core::GrantOptions::NONE,
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

    // Fill the log until a snapshot is due: more than a hundred MiB.
    let mut held = 0;
    while held < 400_000 && snapshots(&data).is_empty() {
        hold(&authority, held..held + 1_000).await;
        held += 1_000;
    }
    until("a snapshot", || !snapshots(&data).is_empty()).await;
    until("its memory given back", || {
        GIVEN_BACK.load(Ordering::SeqCst) >= 2
    })
    .await;
    stop(authority);
    has_all(&data, held).await;
}

/// The next start has little to read then. Sealed are 17 MiB here, which at work are worth no snapshot.
#[tokio::test]
async fn an_authority_at_rest_makes_a_snapshot_of_less() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let authority = durable::open(&data, &Settings::default()).unwrap();
    let mut held = 0;
    while segments(&data) < 3 {
        assert!(held < 100_000, "no segment is sealed");
        hold(&authority, held..held + 500).await;
        held += 500;
    }
    until("a snapshot", || !snapshots(&data).is_empty()).await;
    until("the log before it gone", || segments(&data) == 1).await;
    stop(authority);
    has_all(&data, held).await;
}

async fn hold(authority: &Authority, numbers: Range<usize>) {
    let mut running = JoinSet::new();
    for number in numbers {
        running.spawn(grant(authority.pipeline.handle.clone(), number));
    }
    running.join_all().await;
}

fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("log-")).count()
}

async fn has_all(data: &Path, held: usize) {
    let authority = durable::open(data, &Settings::default()).unwrap();
    let Answer::Status(status) = authority.pipeline.handle.call(Request::Status).await else {
        panic!("no status");
    };
    assert_eq!(status.locks, held);
    stop(authority);
}

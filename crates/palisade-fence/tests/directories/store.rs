//! The suite on the durable store, in each mode, on a real disk.

use palisade_fence::conformance::{self, Habit, Subject, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::store::{OpenError, Resource, Settings, Store};
use palisade_fence::{Mode, Result, Rule};

struct OnDisk {
    store: Store,
    dir: tempfile::TempDir,
}

impl OnDisk {
    fn new(mode: Mode) -> OnDisk {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &settings(mode)).unwrap();
        OnDisk { store, dir }
    }
}

fn settings(mode: Mode) -> Settings {
    Settings::default().with_rule(Rule {
        mode,
        ..Rule::CLAIM
    })
}

impl Subject for OnDisk {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        self.store.resource(name)
    }
}

#[tokio::test]
async fn the_claim_fence_conforms() {
    conformance::run(&OnDisk::new(Mode::Claim), Habit::CLAIM)
        .await
        .assert_passed();
}

#[tokio::test]
async fn the_strict_fence_conforms() {
    conformance::run(&OnDisk::new(Mode::Strict), Habit::STRICT)
        .await
        .assert_passed();
}

#[tokio::test]
async fn the_textbook_fence_fails_where_it_must() {
    let report = conformance::run(&OnDisk::new(Mode::Textbook), Habit::CLAIM).await;
    assert_eq!(report.failed(), TEXTBOOK_FAILS, "{report}");
}

#[tokio::test]
async fn no_fence_fails_where_it_must() {
    let report = conformance::run(&OnDisk::new(Mode::DangerUnfenced), Habit::CLAIM).await;
    assert_eq!(report.failed(), UNFENCED_FAILS, "{report}");
}

#[tokio::test]
async fn the_late_write_is_lost_every_time_by_the_textbook_and_never_by_the_claim() {
    let lost = async |mode| {
        conformance::late_writes(&OnDisk::new(mode), 1_000)
            .await
            .unwrap()
            .lost
    };
    assert_eq!(lost(Mode::Claim).await, 0);
    assert_eq!(lost(Mode::Textbook).await, 1_000);
}

#[tokio::test]
async fn a_directory_keeps_its_mode() {
    let OnDisk { store, dir } = OnDisk::new(Mode::DangerUnfenced);
    drop(store);
    let refused = Store::open(dir.path(), &settings(Mode::Claim)).unwrap_err();
    let expect = (Mode::DangerUnfenced, Mode::Claim);
    assert!(
        matches!(refused, OpenError::Mode { recorded, asked } if (recorded, asked) == expect),
        "{refused}"
    );
    assert!(refused.to_string().contains("proves nothing"), "{refused}");
    drop(Store::open(dir.path(), &settings(Mode::DangerUnfenced)).unwrap());
}

#[tokio::test]
async fn a_directory_is_opened_once() {
    let OnDisk { store, dir } = OnDisk::new(Mode::Claim);
    assert!(matches!(
        Store::open(dir.path(), &settings(Mode::Claim)),
        Err(OpenError::Log(_))
    ));
    drop(store);
    drop(Store::open(dir.path(), &settings(Mode::Claim)).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_tasks_lose_no_acknowledged_append() {
    use palisade_fence::{Edit, Fence, Pass, Write};

    let OnDisk { store, dir: _dir } = OnDisk::new(Mode::Claim);
    let racers: Vec<_> = (1..=64_u64)
        .map(|token| {
            let resource = store.resource("log").unwrap();
            tokio::spawn(async move {
                let pass = Pass::new(palisade_core::Token::new(token).unwrap());
                let line = format!("{token}\n");
                let mut acknowledged = Vec::new();
                for _ in 0..20 {
                    let write = Write::new("/log", Edit::Append(line.as_bytes()));
                    match resource.write(pass, write).await {
                        Ok(_) => acknowledged.push(token),
                        Err(error) if error.rejected().is_some() => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for racer in racers {
        acknowledged.extend(racer.await.unwrap());
    }
    acknowledged.sort_unstable();
    let log = store
        .resource("log")
        .unwrap()
        .observe("/log")
        .await
        .unwrap()
        .unwrap();
    let written: Vec<u64> = String::from_utf8(log)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(
        written.is_sorted(),
        "an older holder wrote after a newer one: {written:?}"
    );
    assert_eq!(written, acknowledged);
    let counts = store.counts();
    assert_eq!(counts.admitted as usize, acknowledged.len());
    assert!(counts.commits <= counts.admitted, "{counts:?}");
}

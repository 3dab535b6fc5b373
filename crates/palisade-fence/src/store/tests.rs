//! Restarts, crashes at every storage call, full disks and damage, on the log's simulated storage.

use palisade_core::fence::{Mode, Pass, Rule, Sequence};
use palisade_core::{Code, Token};
use palisade_wal::Options;
use palisade_wal::testing::{CrashLoss, Fault, SimStorage};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::admitted::Admitted;
use crate::error::ErrorKind;
use crate::fence::{Edit, Fence, Write};
use crate::objects::StoreLimits;

fn settings() -> Settings {
    Settings {
        log: Options::small(4 << 10),
        ..Settings::default()
    }
}

fn open(storage: &SimStorage) -> Result<Store, OpenError> {
    Store::open_on(Arc::new(storage.clone()), &settings())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}

/// Writes the line of one step of the workload, which contains the number of the step.
async fn write(store: &Store, step: u64) -> Result<Admitted<()>> {
    let line = format!("{step:04}{}", "x".repeat(96));
    let write = Write::new("/log", Edit::Append(line.as_bytes()));
    let resource = store.resource("r").unwrap();
    resource
        .write(
            pass(1 + step / 4),
            write.numbered(Sequence::new(step).unwrap()),
        )
        .await
}

async fn read(store: &Store, key: &str) -> Option<String> {
    let bytes = store.resource("r").unwrap().observe(key).await.unwrap();
    bytes.map(|bytes| String::from_utf8(bytes).unwrap())
}

async fn highest(store: &Store) -> Option<u64> {
    let view = store.resource("r").unwrap().view().await.unwrap()?;
    view.fence.highest().map(Token::get)
}

#[test]
fn a_restart_keeps_objects_fences_and_the_last_number() {
    let storage = SimStorage::new(1);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        let resource = store.resource("r").unwrap();
        let append = Write::new("/f", Edit::Append(b"once")).numbered(Sequence::new(7).unwrap());
        resource.write(pass(5), append).await.unwrap();
        drop((store, resource));

        let store = open(&storage.restart()).unwrap();
        let resource = store.resource("r").unwrap();
        assert_eq!(read(&store, "/f").await.as_deref(), Some("once"));
        assert!(resource.write(pass(5), append).await.unwrap().repeat);
        assert!(
            resource
                .claim(pass(4))
                .await
                .unwrap_err()
                .rejected()
                .is_some()
        );
        assert_eq!(read(&store, "/f").await.as_deref(), Some("once"));
    });
}

/// The machine dies at each storage call of a workload, and unsynced data is lost, kept or torn. Afterwards every
/// acknowledged write is there, once and in order, and the fence is at the acknowledged token.
#[test]
fn a_crash_at_any_storage_call_loses_nothing_acknowledged() {
    const STEPS: u64 = 160;
    let calls = {
        let storage = SimStorage::new(0);
        assert_eq!(runtime().block_on(workload(&storage, STEPS)), STEPS);
        storage.calls()
    };
    assert!(calls > 100, "{calls}");
    let mut crashes = 0;
    for call in 1..=calls {
        for loss in [
            CrashLoss::DropAll,
            CrashLoss::KeepAll,
            CrashLoss::Torn(call),
        ] {
            let storage = SimStorage::new(call);
            storage.fault_at(call, Fault::Crash);
            let acknowledged = runtime().block_on(workload(&storage, STEPS));
            crashes += u64::from(storage.crashed());
            runtime().block_on(survives(&storage.crash(loss), acknowledged, call));
        }
    }
    assert!(crashes > 2 * calls, "{crashes} crashes in {calls} calls");
}

/// A failed sync is not retried: the store stops, and everything acknowledged is there after a restart.
#[test]
fn an_error_at_any_storage_call_loses_nothing_acknowledged() {
    const STEPS: u64 = 40;
    for call in 1..=120 {
        let storage = SimStorage::new(call);
        storage.fault_at(call, Fault::Error);
        let acknowledged = runtime().block_on(workload(&storage, STEPS));
        runtime().block_on(survives(
            &storage.crash(CrashLoss::DropAll),
            acknowledged,
            call,
        ));
    }
}

/// The control arm: if syncs do nothing, acknowledged writes are lost.
#[test]
fn acknowledged_writes_are_lost_if_syncs_lie() {
    let storage = SimStorage::new(3);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        storage.set_lying(true);
        for step in 0..10 {
            write(&store, step).await.unwrap();
        }
        let after = open(&storage.crash(CrashLoss::DropAll)).unwrap();
        assert_eq!(read(&after, "/log").await, None);
    });
}

/// Appends until a fault; returns the number of acknowledged appends.
async fn workload(storage: &SimStorage, steps: u64) -> u64 {
    let Ok(store) = open(storage) else { return 0 };
    for step in 0..steps {
        match write(&store, step).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Invalid => panic!("{error}"),
            Err(_) => return step,
        }
    }
    steps
}

async fn survives(storage: &SimStorage, acknowledged: u64, call: u64) {
    let store = open(storage).unwrap_or_else(|error| panic!("call {call}: {error}"));
    let log = read(&store, "/log").await.unwrap_or_default();
    let steps: Vec<u64> = log
        .as_bytes()
        .chunks(100)
        .map(|line| text(&line[..4]).parse().unwrap())
        .collect();
    // The write whose answer was lost may be there or not.
    let expect: Vec<u64> = (0..acknowledged.max(steps.len() as u64)).collect();
    assert_eq!(steps, expect, "call {call}");
    assert!(steps.len() as u64 <= acknowledged + 1, "call {call}");
    let raised = acknowledged.checked_sub(1).map(|step| 1 + step / 4);
    assert!(highest(&store).await >= raised, "call {call}");
    // Repeating the write whose answer was lost is safe either way.
    assert!(write(&store, acknowledged).await.is_ok(), "call {call}");
    let log = read(&store, "/log").await.unwrap();
    assert_eq!(log.len() as u64, 100 * (acknowledged + 1), "call {call}");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_failed_sync_stops_the_store_with_the_reason() {
    let storage = SimStorage::new(9);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        write(&store, 0).await.unwrap();
        storage.fault_at(storage.calls() + 1, Fault::Error);
        let unknown = write(&store, 1).await.unwrap_err();
        assert!(matches!(unknown, Error::UnknownOutcome(_)), "{unknown}");
        assert!(store.stopped().await.contains("restart the process"));
        let stopped = write(&store, 2).await.unwrap_err();
        assert!(matches!(stopped, Error::Stopped(_)), "{stopped}");
    });
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let storage = SimStorage::new(5);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        write(&store, 0).await.unwrap();
        storage.set_capacity(Some(storage.used()));
        let mut step = 1;
        let full = loop {
            match write(&store, step).await {
                Ok(_) => step += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::DiskFull(_)), "{full}");
        let holder = pass(1 + (step - 1) / 4);
        let resource = store.resource("r").unwrap();
        assert!(
            resource.read(holder, "/log").await.is_ok(),
            "reads still work"
        );
        assert_eq!(
            read(&store, "/log").await.map(|log| log.len() as u64),
            Some(100 * step)
        );
        storage.set_capacity(None);
        assert!(write(&store, step).await.is_ok(), "there is room again");
    });
}

#[test]
fn snapshots_bound_the_log_and_keep_everything() {
    let storage = SimStorage::new(6);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        let resource = store.resource("r").unwrap();
        let mut step = 0;
        // Overwrites keep the state small, while the log grows.
        while !has_snapshot(&storage) {
            step += 1;
            let body = step.to_string().repeat(100);
            let put = Write::new("/f", Edit::Put(body.as_bytes()));
            resource.write(pass(step), put).await.unwrap();
            assert!(step < 100_000, "no snapshot");
        }
        drop((store, resource));
        let after = open(&storage.crash(CrashLoss::DropAll)).unwrap();
        assert!(after.recovered().snapshot.is_some());
        assert_eq!(highest(&after).await, Some(step));
        assert_eq!(read(&after, "/f").await, Some(step.to_string().repeat(100)));
    });
}

fn has_snapshot(storage: &SimStorage) -> bool {
    use palisade_wal::Storage as _;
    storage
        .list()
        .unwrap()
        .iter()
        .any(|name| name.ends_with(".snap"))
}

#[test]
fn a_damaged_log_is_refused() {
    let storage = SimStorage::new(7);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        for step in 0..8 {
            write(&store, step).await.unwrap();
        }
        drop(store);
        let after = storage.restart();
        after.flip("log-00000000000000000001.seg", 8 * 300);
        let names = {
            use palisade_wal::Storage as _;
            after.list().unwrap()
        };
        let refused = open(&after).expect_err(&format!("{names:?}"));
        assert!(matches!(refused, OpenError::Log(_)), "{refused}");
    });
}

#[test]
fn a_log_that_is_not_a_stores_is_refused() {
    let storage = SimStorage::new(8);
    let opened = Wal::create_on(
        Arc::new(storage.clone()),
        &CreateOptions::default(),
        &Options::small(8 << 10),
    );
    opened
        .unwrap()
        .into_wal()
        .commit(b"locks and leases")
        .unwrap();
    let refused = open(&storage.restart()).unwrap_err().report();
    assert!(
        refused.contains("not the directory of a store"),
        "{refused}"
    );
}

#[test]
fn settings_out_of_range_name_the_range() {
    let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
    let limits = StoreLimits {
        object_bytes: 1 << 40,
        total_bytes: 1 << 41,
    };
    let refused = Store::open_on(
        storage,
        &Settings {
            limits,
            ..settings()
        },
    )
    .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "object_bytes = 1099511627776 is outside 1 ..= 33554432"
    );
}

#[test]
fn rejections_are_counted_by_reason() {
    let storage = SimStorage::new(2);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        let resource = store.resource("r").unwrap();
        resource.claim(pass(5)).await.unwrap();
        for _ in 0..3 {
            assert!(
                resource
                    .claim(pass(4))
                    .await
                    .unwrap_err()
                    .rejected()
                    .is_some()
            );
        }
        let counts = store.counts();
        assert_eq!((counts.admitted, counts.resources), (1, 1));
        assert!(counts.rejected.of(Code::Stale) == Some(3), "{counts:?}");
        assert!(counts.rejected.of(Code::Jump) == Some(0), "{counts:?}");
    });
}

#[test]
fn a_repeated_claim_or_read_costs_no_storage_call() {
    let storage = SimStorage::new(4);
    runtime().block_on(async {
        let store = open(&storage).unwrap();
        let resource = store.resource("r").unwrap();
        resource.claim(pass(5)).await.unwrap();
        let before = storage.calls();
        for _ in 0..10 {
            resource.read(pass(5), "/f").await.unwrap();
            resource.claim(pass(5)).await.unwrap();
        }
        assert_eq!(storage.calls(), before);
    });
}

#[test]
fn a_directory_cannot_be_opened_with_another_mode() {
    let storage = SimStorage::new(1);
    drop(open(&storage).unwrap());
    let textbook = settings().with_rule(Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    });
    let refused = Store::open_on(Arc::new(storage.restart()), &textbook).unwrap_err();
    assert!(
        matches!(
            refused,
            OpenError::Mode {
                recorded: Mode::Claim,
                ..
            }
        ),
        "{refused}"
    );
}

//! The authority on a storage that dies at each of its calls: every grant that was acknowledged is
//! there afterwards, with its full time, and no token ever comes twice.
//!
//! The storage is a simulation in memory because the real thing cannot be had in a test: after a power
//! loss it forgets unsynced data wholly, partly or not at all. Crashes of real processes on a real
//! disk are tested with the binary.

use std::sync::Arc;

use palisade_core::{
    ClientId, GrantRef, LeaseKey, LockName, Outcome, Span, Token, Ttl, Under, Wish,
};
use palisade_pipeline::durable::{self, Authority, Settings};
use palisade_pipeline::{Answer, Handle, Request, Stopped};
use palisade_wal::testing::{CrashLoss, Fault, SimStorage};
use palisade_wal::{CreateOptions, Options, Wal};

const TTL_MS: u64 = 10_000;

fn settings() -> Settings {
    // Small segments, so that 200 calls see rotations.
    Settings {
        manual_clock: true,
        log: Options::small(4 << 10),
        ..Settings::default()
    }
}

fn open(disk: &SimStorage) -> Result<Authority, durable::Error> {
    let storage = Arc::new(disk.clone());
    let opened = Wal::open_or_create_on(storage, &CreateOptions::default(), &settings().log)?;
    durable::run(opened, &settings())
}

/// A grant that was acknowledged.
#[derive(Clone, Debug)]
struct Acknowledged {
    lock: String,
    token: Token,
    key: LeaseKey,
    /// Whether a release was asked for; if its answer is unknown, so is the grant's fate.
    released: bool,
}

#[derive(Default)]
struct Seen {
    grants: Vec<Acknowledged>,
}

impl Seen {
    fn highest(&self) -> u64 {
        self.grants
            .iter()
            .map(|grant| grant.token.get())
            .max()
            .unwrap_or(0)
    }
}

fn acquire(lock: &str) -> Request {
    Request::Acquire(Wish::new(
        LockName::new(lock).unwrap(),
        ClientId::new("holder").unwrap(),
        Under::new(Ttl::from_millis(TTL_MS).unwrap()),
        None,
    ))
}

fn grant(of: &Acknowledged) -> GrantRef {
    GrantRef {
        lock: LockName::new(&of.lock).unwrap(),
        key: of.key,
        token: Some(of.token),
    }
}

/// Grants and releases until `steps` are done or the authority dies.
async fn work(handle: &Handle, seen: &mut Seen, round: u64, steps: u64) {
    for step in 0..steps {
        let lock = format!("round-{round}/lock-{step}");
        let Answer::Outcome(Outcome::Granted(granted)) = handle.call(acquire(&lock)).await else {
            return;
        };
        assert!(
            granted.token.get() > seen.highest(),
            "token {} came again",
            granted.token
        );
        let released = step % 3 == 0;
        seen.grants.push(Acknowledged {
            lock,
            token: granted.token,
            key: granted.key,
            released,
        });
        if released {
            let Some(last) = seen.grants.last() else {
                return;
            };
            if !matches!(
                handle.call(Request::Release(grant(last))).await,
                Answer::Outcome(_)
            ) {
                return;
            }
        }
    }
}

/// Everything acknowledged and not given up is held, and good for its full time.
async fn verify(handle: &Handle, seen: &Seen) -> Result<(), String> {
    for of in seen.grants.iter().filter(|grant| !grant.released) {
        let lock = LockName::new(&of.lock).unwrap();
        let Answer::Lock(view) = handle.call(Request::Show(lock)).await else {
            return Err("no view".into());
        };
        let holder = view
            .holder
            .ok_or(format!("{} with token {} is gone", of.lock, of.token))?;
        if holder.token != of.token {
            return Err(format!(
                "{}: token {} became {}",
                of.lock, of.token, holder.token
            ));
        }
        if holder.remaining < Span::from_millis(TTL_MS) {
            return Err(format!("{} lost a part of its time", of.lock));
        }
    }
    match handle.call(Request::Status).await {
        Answer::Status(status) => match status.next_token {
            Some(next) if next.get() > seen.highest() => Ok(()),
            next => Err(format!(
                "next token {next:?} is not above {}",
                seen.highest()
            )),
        },
        other => Err(format!("{other:?}")),
    }
}

/// One life that ends at the `call`-th storage call, and the next one.
async fn crash_at(call: u64, loss: CrashLoss, lying: bool) -> Result<(), String> {
    let disk = SimStorage::new(call);
    disk.set_lying(lying);
    disk.fault_at(call, Fault::Crash);
    let mut seen = Seen::default();
    if let Ok(authority) = open(&disk) {
        work(&authority.pipeline.handle, &mut seen, 0, 200).await;
        authority.pipeline.handle.stop();
        authority.join();
    }
    assert!(disk.crashed(), "call {call} was never made");

    let disk = disk.crash(loss);
    let authority = open(&disk).map_err(|error| format!("does not open again: {error}"))?;
    let handle = authority.pipeline.handle.clone();
    verify(&handle, &seen).await?;
    let before = seen.grants.len();
    work(&handle, &mut seen, 1, 5).await;
    if seen.grants.len() != before + 5 {
        return Err("it does not grant any more".into());
    }
    handle.stop();
    authority.join();
    Ok(())
}

#[tokio::test]
async fn a_crash_at_each_of_the_first_200_storage_calls_loses_nothing_acknowledged() {
    for call in 1..=200 {
        for loss in [
            CrashLoss::DropAll,
            CrashLoss::KeepAll,
            CrashLoss::Torn(call),
            CrashLoss::Torn(call + 1_000),
        ] {
            crash_at(call, loss, false)
                .await
                .unwrap_or_else(|what| panic!("call {call}, {loss:?}: {what}"));
        }
    }
}

#[tokio::test]
async fn a_storage_that_lies_about_syncs_is_found_out() {
    // The control arm: the same test must fail when syncs do nothing. Creation comes first, so look at
    // crashes after something was acknowledged.
    let mut found = 0;
    for call in 60..100 {
        found += usize::from(crash_at(call, CrashLoss::DropAll, true).await.is_err());
    }
    assert!(found > 30, "only {found} of 40 lies were noticed");
}

#[tokio::test]
async fn a_failed_sync_stops_the_authority_and_nothing_acknowledged_is_lost() {
    for call in 20..120 {
        let disk = SimStorage::new(call);
        let authority = open(&disk).unwrap();
        let handle = authority.pipeline.handle.clone();
        let mut seen = Seen::default();
        disk.fault_at(disk.calls() + call, Fault::Error);
        work(&handle, &mut seen, 0, 200).await;
        // A failed preparation of the next segment is no failure of the log; anything else is.
        let stopped = handle.stopped().borrow().clone();
        if let Some(Stopped::LogFailed(why)) = &stopped {
            assert!(!why.is_empty());
            assert!(matches!(
                handle.call(acquire("later")).await,
                Answer::Failed(_)
            ));
        }
        handle.stop();
        authority.join();

        let authority = open(&disk.crash(CrashLoss::Torn(call))).unwrap();
        verify(&authority.pipeline.handle, &seen)
            .await
            .unwrap_or_else(|what| panic!("call {call}: {what}"));
        authority.pipeline.handle.stop();
        authority.join();
    }
}

#[tokio::test]
async fn a_full_disk_loses_no_grant_and_heals() {
    let disk = SimStorage::new(5);
    let authority = open(&disk).unwrap();
    let handle = authority.pipeline.handle.clone();
    let mut seen = Seen::default();
    disk.set_capacity(Some(disk.used()));
    work(&handle, &mut seen, 0, 10_000).await;
    assert!(seen.grants.len() < 10_000, "the disk was never full");
    let refused = handle.call(acquire("more")).await;
    assert!(matches!(refused, Answer::Failed(_)), "{refused:?}");
    verify(&handle, &seen).await.unwrap();

    disk.set_capacity(None);
    let before = seen.grants.len();
    // The log looks for room again at every request; inline preparation finds it at once.
    work(&handle, &mut seen, 1, 5).await;
    assert_eq!(seen.grants.len(), before + 5);
    handle.stop();
    authority.join();
}

//! An authority that breaks its promise, and the fence that still keeps the data in order.

use std::process::Command;
use std::time::Duration;

use palisade_client::{Client, Lease, Options};
use palisade_core::fence::{Pass, Reject};
use palisade_fence::{Edit, Fence as _, Rule, StoreLimits, Write, memory};
use palisade_testbed::Postgres;

const KEY: &str = "/ledger";
const LONG: Duration = Duration::from_secs(3_600);

async fn client(server: &Postgres) -> Client {
    let url = format!("postgres://postgres@{}/postgres", server.address());
    palisade_authorities::client(&url, Options::default())
        .await
        .unwrap()
}

async fn hold(client: &Client, lock: &str) -> Lease {
    client.lock(lock).ttl(LONG).acquire().await.unwrap()
}

fn pass(lease: &Lease) -> Pass<'_> {
    Pass::new(lease.token())
        .by(lease.authority())
        .of(lease.lock())
}

fn ledger() -> memory::Resource {
    let store = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT);
    store.resource("ledger").unwrap()
}

/// Both holders of one lock: one on the primary that was cut off, one on the copy that took over and has granted
/// more since. Each believes that it is the holder.
struct TwoSides {
    old: Lease,
    new: Lease,
    _servers: [Postgres; 2],
}

/// A second server on a copy of the primary's current files, like a standby that took over.
fn copied(primary: &Postgres) -> Postgres {
    let copy = Postgres::start(&[]);
    copy.kill();
    primary.kill();
    let (from, to) = (primary.dir().join("data"), copy.dir().join("data"));
    std::fs::remove_dir_all(&to).unwrap();
    let copying = Command::new("cp").arg("-a").args([&from, &to]).status();
    assert!(copying.unwrap().success());
    // It names a process that no longer runs.
    let _ = std::fs::remove_file(to.join("postmaster.pid"));
    copy.start_again();
    primary.start_again();
    copy
}

impl TwoSides {
    async fn partition() -> TwoSides {
        let primary = Postgres::start(&[]);
        // Written before the copy, so both sides are the same authority.
        let id = client(&primary).await.authority().clone();
        let copy = copied(&primary);
        let (one, other) = (client(&primary).await, client(&copy).await);
        assert_eq!((one.authority(), other.authority()), (&id, &id));
        let old = hold(&one, "ledger").await;
        let _ = hold(&other, "something else").await.detach();
        let new = hold(&other, "ledger").await;
        old.check().unwrap();
        new.check().unwrap();
        assert!(old.token() < new.token(), "the copy has granted more");
        TwoSides {
            old,
            new,
            _servers: [primary, copy],
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sides_grant_the_same_lock_and_the_fence_admits_one_order_of_writes() {
    let TwoSides { old, new, _servers } = &TwoSides::partition().await;
    // Control arm: without a fence, one of two acknowledged additions is gone.
    let unfenced = ledger();
    for side in [old, new] {
        side.check().unwrap();
        // Both have read nothing, and each writes one entry.
        let added = unfenced.write_tokenless(KEY, Edit::Put(b"1"));
        added.await.unwrap();
    }
    assert_eq!(unfenced.observe(KEY).await.unwrap().unwrap(), b"1");

    let ledger = ledger();
    let put = |text: &'static str| Write::new(KEY, Edit::Put(text.as_bytes()));
    ledger.claim(pass(old)).await.unwrap();
    ledger.write(pass(old), put("old 1")).await.unwrap();
    ledger.claim(pass(new)).await.unwrap();
    let highest = new.token();
    for _ in 0..3 {
        // The old side goes on and still believes in its lock.
        old.check().unwrap();
        let late = ledger.write(pass(old), put("old 2")).await.unwrap_err();
        let read = ledger.read(pass(old), KEY).await.unwrap_err();
        for refused in [late, read] {
            assert_eq!(
                refused.rejected(),
                Some(&Reject::Stale {
                    presented: old.token(),
                    highest
                })
            );
        }
        ledger.write(pass(new), put("new")).await.unwrap();
    }
    assert_eq!(ledger.observe(KEY).await.unwrap().unwrap(), b"new");
}

/// Two counters both begin at 1, so the numbers alone cannot tell the holders apart.
#[tokio::test(flavor = "multi_thread")]
async fn equal_tokens_of_two_authorities_are_refused_by_the_authoritys_id() {
    let (here, there) = (Client::in_process().unwrap(), Client::in_process().unwrap());
    let (ours, theirs) = (hold(&here, "ledger").await, hold(&there, "ledger").await);
    assert_eq!(ours.token(), theirs.token(), "the numbers are equal");
    let ledger = ledger();
    ledger.claim(pass(&ours)).await.unwrap();
    let bound = ours.authority().clone();
    let foreign = Reject::WrongAuthority { bound };
    let claim = ledger.claim(pass(&theirs)).await.unwrap_err();
    let write = Write::new(KEY, Edit::Put(b"theirs"));
    let write = ledger.write(pass(&theirs), write).await.unwrap_err();
    for refused in [claim, write] {
        assert_eq!(refused.rejected(), Some(&foreign));
    }
    // Control arm: a fence that gets only the number takes both for the same holder.
    let told_less = self::ledger();
    for lease in [&ours, &theirs] {
        let bare = told_less.claim(Pass::new(lease.token()));
        bare.await.unwrap();
    }
}

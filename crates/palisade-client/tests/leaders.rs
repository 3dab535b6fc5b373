//! Three members and a leader that is killed: one holder at a time, and tokens that go on rising.
//!
//! ```text
//!   racers ─► acquire ─► Resource (one inside, rising tokens) ─► release ─┐
//!      ▲                                                                  │   20 grants ─► SIGKILL to
//!      └──────────────────────── until 20 more grants ◄───────────────────┘              the leader
//! ```
//!
//! The count of grants is all that decides when something happens; no time does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_client::{Client, secs};
use palisade_testbed::{Etcd, ZooKeeper};
use tokio::task::JoinSet;

const RACERS: u64 = 4;
const BEFORE: u64 = 20;
const AFTER: u64 = 20;
const TTL: Duration = secs(6);

/// However long an election takes on a busy machine.
const PATIENCE: Duration = secs(120);

/// It stands for what the lock protects.
#[derive(Default)]
struct Resource {
    inside: AtomicBool,
    highest: AtomicU64,
    grants: AtomicU64,
}

impl Resource {
    fn enter(&self, token: u64) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two at once");
        let before = self.highest.swap(token, Ordering::SeqCst);
        assert!(before < token, "token {token} after {before}");
    }

    fn leave(&self) {
        self.inside.store(false, Ordering::SeqCst);
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    async fn reaches(&self, grants: u64) {
        while self.grants.load(Ordering::SeqCst) < grants {
            tokio::time::sleep(Duration::from_millis(5)).await; // real time: other clients have to move
        }
    }
}

/// What fails while there is no leader is tried again, as a new request.
async fn race(client: Client, resource: Arc<Resource>) {
    while resource.grants.load(Ordering::SeqCst) < BEFORE + AFTER {
        let Ok(lease) = client.lock("raced").ttl(TTL).wait(secs(30)).acquire().await else {
            continue;
        };
        resource.enter(lease.token().get());
        tokio::task::yield_now().await;
        let held = lease.check().is_ok();
        resource.leave();
        assert!(held, "it was lost while it was used for an instant");
        // Without an answer it is given back in the background, or expires.
        let _ = lease.release().await;
    }
}

async fn a_leader_is_killed(url: &str, kill: impl FnOnce()) {
    let holder = Client::connect(url).await.unwrap();
    let kept = holder.lock("kept").ttl(secs(20)).acquire().await.unwrap();
    let resource = Arc::new(Resource::default());
    let mut racers = JoinSet::new();
    for _ in 0..RACERS {
        let client = Client::connect(url).await.unwrap();
        racers.spawn(race(client, Arc::clone(&resource)));
    }
    let story = async {
        resource.reaches(BEFORE).await;
        let highest = resource.highest.load(Ordering::SeqCst);
        tokio::task::block_in_place(kill);
        while let Some(racer) = racers.join_next().await {
            racer.unwrap();
        }
        assert!(resource.highest.load(Ordering::SeqCst) > highest);
    };
    tokio::time::timeout(PATIENCE, story)
        .await
        .expect("nobody is granted after the leader was killed");
    // What was held before is held by the same grant, or known to be lost; never by two.
    let denied = Client::connect(url).await.unwrap();
    let denied = denied.lock("kept").ttl(TTL).try_acquire().await.unwrap();
    assert_eq!(denied.is_none(), kept.check().is_ok(), "one of them has it");
}

fn hosts(addresses: impl Iterator<Item = std::net::SocketAddr>) -> String {
    addresses
        .map(|one| one.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_three_members_keeps_exclusion_and_order_when_its_leader_is_killed() {
    let members = tokio::task::block_in_place(|| Etcd::cluster(3));
    let url = format!("etcd://{}", hosts(members.iter().map(|one| one.address())));
    let kill = || {
        members
            .iter()
            .find(|one| one.leads())
            .expect("a leader")
            .kill()
    };
    a_leader_is_killed(&url, kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_with_three_members_keeps_exclusion_and_order_when_its_leader_is_killed() {
    let members = tokio::task::block_in_place(|| ZooKeeper::ensemble(3));
    let url = format!(
        "zookeeper://{}",
        hosts(members.iter().map(|one| one.address()))
    );
    let kill = || {
        members
            .iter()
            .find(|one| one.leads())
            .expect("a leader")
            .kill()
    };
    a_leader_is_killed(&url, kill).await;
}

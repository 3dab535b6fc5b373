//! Clusters of three members whose leader is killed: there is one holder at a time, and tokens continue to
//! rise. The control arm does the same to a Redis primary whose replica lags, which issues tokens again.
//!
//! ```text
//!   racers ─► acquire ─► Resource (one inside, rising tokens) ─► release ─┐
//!      ▲                                                                  │   20 grants ─► SIGKILL to
//!      └──────────────────────── until 20 more grants ◄───────────────────┘              the leader
//! ```
//!
//! Only the count of grants decides when something happens; no time does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::{Client, secs};
use palisade_testbed::{Etcd, Proxy, Redis, ZooKeeper};
use tokio::task::JoinSet;

use crate::support::{client_of, redis_at};

const RACERS: u64 = 4;
const BEFORE: u64 = 20;
const AFTER: u64 = 20;
const TTL: Duration = secs(6);

/// Longer than any election on a busy machine.
const PATIENCE: Duration = secs(120);

/// A stand-in for the resource that the lock protects. It records every violation.
#[derive(Default)]
struct Resource {
    inside: AtomicBool,
    highest: AtomicU64,
    grants: AtomicU64,
    ended: AtomicBool,
    violations: Mutex<Vec<String>>,
}

impl Resource {
    fn enter(&self, token: u64) {
        self.must(!self.inside.swap(true, Ordering::SeqCst), || {
            "two at once".into()
        });
        let before = self.highest.fetch_max(token, Ordering::SeqCst);
        self.must(before < token, || format!("token {token} after {before}"));
    }

    fn leave(&self) {
        self.inside.store(false, Ordering::SeqCst);
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    fn must(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.lock().unwrap().push(what());
        }
    }
}

/// Repeats a request that failed while there was no leader, as a new request.
async fn race(client: Client, resource: Arc<Resource>) {
    while !resource.ended.load(Ordering::SeqCst) {
        let Ok(lease) = client.lock("raced").ttl(TTL).wait(secs(30)).acquire().await else {
            continue;
        };
        resource.enter(lease.token().get());
        tokio::task::yield_now().await;
        let held = lease.check().is_ok();
        resource.leave();
        resource.must(held, || {
            "the lease was lost during an instant of use".into()
        });
        // A release without an answer is repeated in the background, or the lease expires.
        let _ = lease.release().await;
    }
}

struct Race {
    resource: Arc<Resource>,
    racers: JoinSet<()>,
}

impl Race {
    async fn at(url: &str) -> Race {
        let resource = Arc::new(Resource::default());
        let mut racers = JoinSet::new();
        for _ in 0..RACERS {
            let client = client_of(url).await.unwrap();
            racers.spawn(race(client, Arc::clone(&resource)));
        }
        Race { resource, racers }
    }

    async fn goes_on_for(&self, grants: u64) {
        let until = self.resource.grants.load(Ordering::SeqCst) + grants;
        let wait = async {
            while self.resource.grants.load(Ordering::SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(5)).await; // real time: other clients have to make progress
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.expect("the lock is granted again");
    }

    /// Ends the race and returns the violations.
    async fn ends(mut self) -> Vec<String> {
        self.resource.ended.store(true, Ordering::SeqCst);
        while let Some(racer) = self.racers.join_next().await {
            racer.unwrap();
        }
        std::mem::take(&mut *self.resource.violations.lock().unwrap())
    }
}

async fn a_leader_is_killed(url: &str, kill: impl FnOnce()) {
    let holder = client_of(url).await.unwrap();
    let kept = holder.lock("kept").ttl(secs(20)).acquire().await.unwrap();
    let race = Race::at(url).await;
    race.goes_on_for(BEFORE).await;
    tokio::task::block_in_place(kill);
    race.goes_on_for(AFTER).await;
    assert_eq!(race.ends().await, Vec::<String>::new());
    // The earlier lock is held by the same grant, or known to be lost; never by two.
    let denied = client_of(url).await.unwrap();
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

/// The control arm: a failover that loses acknowledged grants is detected.
#[tokio::test(flavor = "multi_thread")]
async fn redis_with_a_replica_that_lags_issues_tokens_again_when_its_primary_is_killed() {
    let (primary, replica) = tokio::task::block_in_place(|| {
        let primary = Redis::start(&[]);
        let (host, port) = ("127.0.0.1", primary.port().to_string());
        let replica = Redis::start(&["--replicaof", host, &port]);
        (primary, replica)
    });
    let mut operator = redis_at(&replica.url()).await;
    let relay = Proxy::to(primary.address());
    let race = Race::at(&format!("redis://{}", relay.addr())).await;
    // A primary streams to a replica only some time after the link is up, and a replica without data is
    // another authority: it would then grant nothing.
    let follows = async {
        let mut ask = redis::cmd("EXISTS");
        ask.arg("{palisade}:authority");
        while !ask.query_async::<bool>(&mut operator).await.unwrap() {}
    };
    let waited = tokio::time::timeout(PATIENCE, follows).await;
    waited.expect("the replica has the primary's data");
    race.goes_on_for(BEFORE).await;
    let mut stop = redis::cmd("REPLICAOF");
    stop.arg("NO").arg("ONE");
    stop.exec_async(&mut operator).await.unwrap();
    race.goes_on_for(BEFORE).await;
    tokio::task::block_in_place(|| primary.kill());
    relay.move_to(replica.address());
    relay.break_connections();
    race.goes_on_for(AFTER).await;
    let violations = race.ends().await;
    let repeats = |what: &String| what.starts_with("token");
    assert!(violations.iter().any(repeats), "{violations:?}");
}

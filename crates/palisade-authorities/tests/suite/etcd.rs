//! etcd as the authority: the conformance suite against Debian's etcd-server, and the known flaw of etcd's
//! own lock.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::served::{Adapter, Served, passes};
use crate::support::{client_of, poll};
use palisade_authorities::conformance::Habit;
use palisade_authorities::etcd::Etcd;
use palisade_client::service::{AcquireRequest, Acquired, Under};
use palisade_client::{ClientId, Code, Fault, LockName, LockService, Ttl, secs};
use palisade_core::{RequestId, Span};
use palisade_testbed::Etcd as Server;

impl Adapter for Etcd {
    async fn connect_to(server: SocketAddr) -> Result<Etcd, Fault> {
        Etcd::connect(&format!("etcd://{server}")).await
    }

    fn woken(&self) -> u64 {
        self.wake_ups()
    }
}

const HABIT: Habit = Habit {
    // etcd's shortest lease with the default election time-out.
    brief: Duration::from_secs(2),
    long: Duration::from_secs(10),
    takes_back: false,
    remembers: false,
    shares: false,
    ..Habit::FULL
};

#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    // A cluster that never compacts searches all requests that the lock ever had.
    let compact = "--auto-compaction-mode=periodic --auto-compaction-retention=5s";
    let server = Server::start(&compact.split(' ').collect::<Vec<_>>());
    passes(Served::<_, Etcd>::by(server), HABIT).await;
}

/// Makes one call to the JSON gateway, which does not use our client: the way in which other programs use
/// this server.
fn post(address: std::net::SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the number of watches at the server.
fn watches(server: &Server) -> u64 {
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let count = answer.split("\netcd_debugging_mvcc_watcher_total ").nth(1);
    count.unwrap().lines().next().unwrap().parse().unwrap()
}

/// A watch that is left behind costs the server memory, and work at every write.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_leaves_no_watch_behind() {
    let server = Server::start(&[]);
    let url = format!("etcd://{}", server.address());
    let client = client_of(&url).await.unwrap();
    let wish = || client.lock("orders").wait(secs(60)).acquire();
    let held = wish().await.unwrap();
    let waits = tokio::spawn(wish());
    poll(async || watches(&server) == 1).await;
    held.release().await.unwrap();
    let held = waits.await.unwrap().unwrap();
    poll(async || watches(&server) == 0).await;
    let given_up = tokio::spawn(wish());
    poll(async || watches(&server) == 1).await;
    given_up.abort();
    poll(async || watches(&server) == 0).await;
    held.check().unwrap();
}

/// A waiter that sends no keep-alive loses its place; a second lease of the same length, granted later,
/// serves as the clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_keeps_its_place_for_longer_than_its_lease_would_last() {
    let server = Server::start(&[]);
    let url = format!("etcd://{}", server.address());
    let etcd = Arc::new(Etcd::connect(&url).await.unwrap());
    let client = client_of(&url).await.unwrap();
    let held = client.lock("orders").ttl(secs(60)).acquire().await.unwrap();
    let wish = |lock: &str, wait, id| AcquireRequest {
        wait,
        ..AcquireRequest::new(
            LockName::new(lock).unwrap(),
            ClientId::new("waiter").unwrap(),
            Under::new(Ttl::from_millis(2_000).unwrap()),
            RequestId::from_bytes([id; 16]),
        )
    };
    let waits = tokio::spawn({
        let (etcd, wish) = (
            Arc::clone(&etcd),
            wish("orders", Some(Span::from_millis(60_000)), 1),
        );
        async move { etcd.acquire(wish).await }
    });
    poll(async || watches(&server) == 1).await;
    for round in 2..4 {
        let left_alone = etcd.acquire(wish("clock", None, round)).await.unwrap();
        assert!(matches!(left_alone, Acquired::Granted(_)));
        poll(async || client.show("clock").await.unwrap().holder.is_none()).await;
    }
    held.release().await.unwrap();
    let granted = waits.await.unwrap();
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
}

/// The lock of etcd 3.4 itself, called as any client may call it.
struct Naive(std::net::SocketAddr);

impl Naive {
    async fn call(&self, path: &'static str, body: String) -> String {
        let address = self.0;
        tokio::task::spawn_blocking(move || post(address, path, &body).unwrap())
            .await
            .unwrap()
    }

    async fn lease(&self, id: u64, seconds: u64) {
        let answer = self
            .call(
                "/v3/lease/grant",
                format!(r#"{{"ID":"{id}","TTL":"{seconds}"}}"#),
            )
            .await;
        assert!(answer.contains(" 200 "), "{answer}");
    }

    /// `bmFpdmU=` is `naive`. Returns when the lock is granted.
    async fn lock(&self, lease: u64) -> String {
        let body = format!(r#"{{"name":"bmFpdmU=","lease":"{lease}"}}"#);
        self.call("/v3/lock/lock", body).await
    }

    async fn lease_is_dead(&self, id: u64) -> bool {
        let answer = self
            .call("/v3/lease/timetolive", format!(r#"{{"ID":"{id}"}}"#))
            .await;
        answer.contains(r#""TTL":"-1""#)
    }

    async fn waiting(&self) -> usize {
        // Every key with the prefix "naive".
        let body = r#"{"key":"bmFpdmU=","range_end":"bmFpdmY=","count_only":true}"#.to_owned();
        let answer = self.call("/v3/kv/range", body).await;
        let count = answer.split(r#""count":""#).nth(1);
        count.map_or(0, |rest| rest.split('"').next().unwrap().parse().unwrap())
    }
}

/// etcd-io/etcd#11456: a waiter whose lease died in the queue is told that it was granted when its turn would
/// have come, and the next waiter is granted as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_died_is_not_granted_though_etcds_own_lock_would() {
    let server = Server::start(&[]);
    let naive = Arc::new(Naive(server.address()));
    naive.lease(1, 600).await;
    naive.lease(2, 2).await;
    naive.lease(3, 600).await;
    let held = naive.lock(1).await;
    assert!(held.contains(" 200 "), "{held}");
    let waiter = tokio::spawn({
        let naive = naive.clone();
        async move { naive.lock(2).await }
    });
    poll(async || naive.waiting().await == 2).await;
    poll(async || naive.lease_is_dead(2).await && naive.waiting().await == 1).await;
    naive
        .call("/v3/lease/revoke", r#"{"ID":"1"}"#.to_owned())
        .await;
    let dead = waiter.await.unwrap();
    assert!(
        dead.contains(" 200 ") && dead.contains(r#""key""#),
        "the control arm must show the trap: {dead}"
    );
    assert_eq!(
        naive.waiting().await,
        0,
        "what it was granted does not exist"
    );
    // The lock now has a second holder.
    assert!(naive.lock(3).await.contains(" 200 "));
    the_same_schedule_through_the_adapter(&server).await;
}

/// A waiter stops for longer than its lease lasts, and continues when the lock is free.
async fn the_same_schedule_through_the_adapter(server: &Server) {
    let url = format!("etcd://{}", server.address());
    let client = client_of(&url).await.unwrap();
    let wish = || client.lock("orders").ttl(secs(60)).wait(secs(60));
    let holder = wish().acquire().await.unwrap();
    let (go_on, stopped) = std::sync::mpsc::channel::<()>();
    let waiter = std::thread::spawn(move || stopped_waiter(&url, &stopped));
    poll(async || client.show("orders").await.unwrap().waiters == 1).await;
    // Its thread is stopped by now or soon, and its lease dies in the queue.
    poll(async || client.show("orders").await.unwrap().waiters == 0).await;
    holder.release().await.unwrap();
    let next = wish().acquire().await.unwrap();
    go_on.send(()).unwrap();
    let told = tokio::task::spawn_blocking(|| waiter.join().unwrap())
        .await
        .unwrap();
    assert!(
        matches!(&told, Err(fault) if fault.is_transient()),
        "its answer was {told:?}"
    );
    next.check().unwrap();
    let shown = client.show("orders").await.unwrap();
    assert_eq!(shown.holder.unwrap().token, next.token());
}

/// Joins the queue, and stops as soon as it waits.
fn stopped_waiter(url: &str, stopped: &std::sync::mpsc::Receiver<()>) -> Result<Acquired, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (etcd, looking) = (Etcd::connect(url).await?, Etcd::connect(url).await?);
        let lock = LockName::new("orders").unwrap();
        let asked = etcd.acquire(AcquireRequest {
            wait: Some(Span::from_millis(60_000)),
            ..AcquireRequest::new(
                lock.clone(),
                ClientId::new("stopped").unwrap(),
                Under::new(Ttl::from_millis(2_000).unwrap()),
                RequestId::from_bytes(*b"stopped waiter 1"),
            )
        });
        let stop = async {
            while looking.show(lock.clone()).await.unwrap().waiters == 0 {
                tokio::task::yield_now().await;
            }
            let _ = stopped.recv();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            told = asked => told,
            () = stop => unreachable!(),
        }
    })
}

#[tokio::test]
async fn a_time_to_live_the_cluster_would_lengthen_is_refused_with_the_range() {
    let server = Server::start(&[]);
    let client = client_of(&format!("etcd://{}", server.address()))
        .await
        .unwrap();
    for (ttl, range) in [(1_000, "2000 ms ..="), (2_500, "1 s ..= 86400 s")] {
        let wish = client.lock("orders").ttl(Duration::from_millis(ttl));
        let refused = wish.try_acquire().await.unwrap_err();
        assert_eq!(refused.code(), Code::Invalid);
        assert!(refused.to_string().contains(range), "{refused}");
    }
    assert_eq!(client.show("orders").await.unwrap().waiters, 0);
    let lease = client.lock("orders").ttl(secs(2)).try_acquire().await;
    assert_eq!(lease.unwrap().unwrap().ttl().as_millis(), 2_000);
}

#[tokio::test]
async fn two_roots_are_two_authorities_and_two_sets_of_locks() {
    let server = Server::start(&[]);
    let url = format!("etcd://{}", server.address());
    let one = client_of(&url).await.unwrap();
    let other = client_of(&format!("{url}/team-b")).await.unwrap();
    let held = one.lock("orders").acquire().await.unwrap();
    let too = other.lock("orders").try_acquire().await.unwrap().unwrap();
    assert_ne!(one.authority(), other.authority());
    assert_ne!(held.token(), too.token(), "one count of writes");
    assert_eq!(one.list("").all().await.unwrap().len(), 1);
}

//! Redlock as it is: exclusive while nothing goes wrong, and not exclusive when a clock jumps or a primary
//! loses its data.

use std::time::Duration;

use palisade_authorities::redlock::Redlock;
use palisade_client::secs;
use palisade_testbed::Redis;

use crate::support::redis_at;

fn primaries(count: usize) -> (Vec<Redis>, String) {
    let servers: Vec<Redis> = (0..count).map(|_| Redis::start(&[])).collect();
    let hosts: Vec<String> = servers
        .iter()
        .map(|server| server.address().to_string())
        .collect();
    (servers, format!("redlock://{}", hosts.join(",")))
}

/// The same primaries for a client that reaches only the first `reached`.
fn partitioned(servers: &[Redis], reached: usize) -> String {
    // Nothing listens on the lowest ports.
    let host = |(at, server): (usize, &Redis)| {
        if at < reached {
            server.address().to_string()
        } else {
            format!("127.0.0.1:{}", 1 + at)
        }
    };
    let hosts: Vec<String> = servers.iter().enumerate().map(host).collect();
    format!("redlock://{}", hosts.join(","))
}

const KEY: &str = "palisade:redlock:orders";

/// Simulates a clock that jumps ahead: the lease ends on this primary and on no other.
async fn jump_ahead(server: &Redis) {
    let mut connection = redis_at(&server.url()).await;
    let set: u32 = redis::cmd("PEXPIREAT")
        .arg(KEY)
        .arg(1)
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(set, 1, "there was a lease to end");
}

#[tokio::test]
async fn one_holds_and_the_other_does_not_until_it_is_released() {
    let (_servers, url) = primaries(3);
    let (a, b) = (
        Redlock::connect(&url).await.unwrap(),
        Redlock::connect(&url).await.unwrap(),
    );
    let held = a
        .acquire("orders", secs(10), Duration::ZERO)
        .await
        .unwrap()
        .unwrap();
    assert!(held.is_held() && held.remaining() <= secs(10));
    assert!(
        b.acquire("orders", secs(10), Duration::ZERO)
            .await
            .unwrap()
            .is_none()
    );
    assert!(held.release().await);
    let next = b
        .acquire("orders", secs(10), secs(5))
        .await
        .unwrap()
        .unwrap();
    drop(next);
    assert!(
        a.acquire("orders", secs(10), secs(5))
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn it_outlives_its_time_by_renewal_and_is_lost_when_most_of_the_primaries_are_gone() {
    let (servers, url) = primaries(3);
    let redlock = Redlock::connect(&url).await.unwrap();
    let guard = redlock
        .acquire("orders", secs(1), Duration::ZERO)
        .await
        .unwrap()
        .unwrap();
    servers[0].kill();
    let outlived = async {
        // The remaining time grows only by a renewal that most primaries acknowledged.
        let mut before = guard.remaining();
        for _ in 0..3 {
            while guard.remaining() <= before {
                before = guard.remaining();
                tokio::time::sleep(Duration::from_millis(1)).await; // real time: renewal is at ttl / 3
            }
            before = guard.remaining();
        }
    };
    tokio::time::timeout(secs(30), outlived).await.unwrap();
    assert!(guard.is_held());
    servers[1].kill();
    tokio::time::timeout(secs(30), guard.lost()).await.unwrap();
    assert!(!guard.is_held());
}

#[tokio::test]
async fn a_clock_that_jumps_on_some_primaries_lets_two_hold_it_at_once() {
    let (servers, url) = primaries(5);
    // A reaches three of the five primaries, B all of them.
    let a = Redlock::connect(&partitioned(&servers, 3)).await.unwrap();
    let b = Redlock::connect(&url).await.unwrap();
    let first = a
        .acquire("orders", secs(30), secs(20))
        .await
        .unwrap()
        .unwrap();
    let none = b.acquire("orders", secs(30), Duration::ZERO).await.unwrap();
    assert!(none.is_none(), "with all clocks right, it is exclusive");
    jump_ahead(&servers[0]).await;
    let second = b.acquire("orders", secs(30), secs(20)).await.unwrap();
    assert!(
        first.is_held() && second.is_some_and(|second| second.is_held()),
        "one clock on five primaries is enough, and neither guard has a token to tell them apart"
    );
}

#[tokio::test]
async fn a_primary_that_forgets_lets_two_hold_it_at_once() {
    let (servers, url) = primaries(3);
    // A reaches two of the three primaries, B all of them.
    let a = Redlock::connect(&partitioned(&servers, 2)).await.unwrap();
    let b = Redlock::connect(&url).await.unwrap();
    let first = a
        .acquire("orders", secs(30), secs(20))
        .await
        .unwrap()
        .unwrap();
    let none = b.acquire("orders", secs(30), Duration::ZERO).await.unwrap();
    assert!(none.is_none(), "while all remember, it is exclusive");
    // Without persistence it comes back empty.
    servers[0].start_again();
    let second = b.acquire("orders", secs(30), secs(20)).await.unwrap();
    assert!(first.is_held() && second.is_some());
}

#[tokio::test]
async fn an_invalid_address_is_refused_with_the_reason() {
    for (url, reason) in [
        ("redlock://a,b", "odd number"),
        ("redlock://a", "odd number"),
        ("redlock://", "host"),
        ("redis://a,b,c", "redlock://"),
        ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "0 of 3"),
    ] {
        let message = Redlock::connect(url).await.err().unwrap().to_string();
        assert!(message.contains(reason), "{url}: {message}");
    }
    let (_servers, url) = primaries(3);
    let redlock = Redlock::connect(&url).await.unwrap();
    assert!(redlock.acquire("", secs(1), Duration::ZERO).await.is_err());
    assert!(
        redlock
            .acquire("a", Duration::ZERO, Duration::ZERO)
            .await
            .is_err()
    );
}

//! One Redis primary as the authority: the conformance suite against Debian's redis-server, and the special
//! properties of Redis.

use std::net::SocketAddr;

use palisade_authorities::conformance::Habit;
use palisade_authorities::redis::Redis;
use palisade_client::service::{AcquireRequest, Acquired, Released, Under};
use palisade_client::{Client, ClientId, Error, Fault, LockService, Loss, Ttl, secs};
use palisade_core::{GrantRef, LockName, RequestId, Token};
use palisade_testbed::Redis as Server;

use crate::support::served::{Adapter, Served, passes};
use crate::support::{client_of, redis_at};

impl Adapter for Redis {
    async fn connect_to(server: SocketAddr) -> Result<Redis, Fault> {
        Redis::connect(&format!("redis://{server}")).await
    }

    fn woken(&self) -> u64 {
        self.wake_ups()
    }
}

const HABIT: Habit = Habit {
    shares: false,
    ..Habit::FULL
};

#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    let syncs = ["--appendonly", "yes", "--appendfsync", "always"];
    passes(Served::<_, Redis>::by(Server::start(&syncs)), HABIT).await;
}

async fn command<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    let mut connection = redis_at(&server.url()).await;
    command.query_async(&mut connection).await.unwrap()
}

/// The key of an authority's counter.
fn tokens(authority: &palisade_core::AuthorityId) -> String {
    format!("{{palisade}}:tokens:{authority}")
}

/// The usual recipe: `INCR` for the token, then `SET NX` for the lock.
mod naive {
    use super::{Server, command};

    pub(super) async fn draw(server: &Server) -> u64 {
        command(server, &["INCR", "naive:tokens"]).await
    }

    pub(super) async fn take(server: &Server, token: u64) -> bool {
        let token = token.to_string();
        let set: Option<String> =
            command(server, &["SET", "naive:lock", &token, "NX", "PX", "60000"]).await;
        set.is_some()
    }

    pub(super) async fn release(server: &Server) {
        let _: u64 = command(server, &["DEL", "naive:lock"]).await;
    }
}

#[tokio::test]
async fn a_token_drawn_before_the_lock_grants_two_and_then_one_and_one_drawn_with_it_does_not() {
    let server = Server::start(&[]);
    // A draws, B draws, and B acquires and releases before A gets its turn.
    let (a, b) = (naive::draw(&server).await, naive::draw(&server).await);
    assert!(naive::take(&server, b).await);
    naive::release(&server).await;
    assert!(naive::take(&server, a).await);
    assert!(
        a < b,
        "the later grant has the lower token: a fence refuses the live holder"
    );

    // The same race with our adapter: B waits while A's request is in flight; the later grant has the higher
    // token.
    let client = client_of(&server.url()).await.unwrap();
    let other = client_of(&server.url()).await.unwrap();
    let take = async |client: &Client| {
        let lease = client
            .lock("orders")
            .wait(secs(30))
            .acquire()
            .await
            .unwrap();
        let token = lease.token().get();
        lease.release().await.unwrap();
        token
    };
    let mut last = 0;
    for _ in 0..100 {
        let (one, two) = tokio::join!(take(&client), take(&other));
        assert!(one.min(two) > last && one != two);
        last = one.max(two);
    }
}

#[tokio::test]
async fn an_emptied_server_is_another_authority_and_issues_nothing_to_its_old_clients() {
    let server = Server::start(&[]);
    let redis = Redis::connect(&server.url()).await.unwrap();
    let client = client_of(&server.url()).await.unwrap();
    let lease = client.lock("orders").acquire().await.unwrap();
    let _: String = command(&server, &["FLUSHALL"]).await;
    assert!(matches!(
        redis.show(lease.lock().clone()).await,
        Err(Fault::Unavailable(_))
    ));
    // A free lock is granted without a check of the authority, except with the first token of a counter.
    let tried = client.lock("other").try_acquire().await;
    assert!(
        matches!(tried, Err(Error::Fault(Fault::Unavailable(_)))),
        "{tried:?}"
    );
    let after = Redis::connect(&server.url()).await.unwrap();
    assert_ne!(after.authority(), redis.authority());
    let left: bool = command(&server, &["EXISTS", &tokens(redis.authority())]).await;
    assert!(!left, "the counter of a deleted data set exists");
}

/// The id is part of the scripts' text.
#[tokio::test]
async fn an_authority_id_of_any_characters_stays_text() {
    for name in ["it's", "say \"so\"", "a\\", "]] error() --[[", "1\\000 %d"] {
        let server = Server::start(&[]);
        let _: String = command(&server, &["SET", "{palisade}:authority", name]).await;
        let redis = Redis::connect(&server.url()).await.unwrap();
        assert_eq!(redis.authority().as_str(), name);
        let client = client_of(&server.url()).await.unwrap();
        let lease = client.lock("orders").acquire().await.unwrap();
        assert_eq!(lease.token().get(), 1);
        let drawn: u64 = command(&server, &["GET", &tokens(redis.authority())]).await;
        assert_eq!(drawn, 1, "its own counter");
        lease.release().await.unwrap();
        let view = redis.show(LockName::new("orders").unwrap()).await.unwrap();
        assert!(view.holder.is_none());
    }
}

#[tokio::test]
async fn a_crash_without_sync_loses_tokens_and_with_sync_does_not() {
    for (settings, keeps) in [
        (
            &["--appendonly", "yes", "--appendfsync", "always"][..],
            true,
        ),
        (&["--appendonly", "no"][..], false),
    ] {
        let server = Server::start(settings);
        let before = Redis::connect(&server.url()).await.unwrap();
        let client = client_of(&server.url()).await.unwrap();
        let lease = client.lock("orders").ttl(secs(60)).acquire().await.unwrap();
        assert_eq!(lease.token().get(), 1);
        let _detached = lease.detach();
        server.start_again();
        let after = Redis::connect(&server.url()).await.unwrap();
        assert_eq!(
            after.authority() == before.authority(),
            keeps,
            "{settings:?}"
        );
        let client = client_of(&server.url()).await.unwrap();
        let next = client.lock("stock").acquire().await.unwrap();
        assert_eq!(next.token().get() > 1, keeps, "{settings:?}");
    }
}

#[tokio::test]
async fn a_grant_that_no_replica_has_is_not_acknowledged_and_leaves_nothing() {
    let server = Server::start(&[]);
    let url = format!("{}?replicas=1", server.url());
    let client = client_of(&url).await.unwrap();
    let refused = client.lock("orders").wait(secs(1)).acquire().await;
    assert!(matches!(refused, Err(Error::Fault(_))), "{refused:?}");
    let observer = client_of(&server.url()).await.unwrap();
    let free = async {
        while observer.show("orders").await.unwrap().holder.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(secs(30), free).await.unwrap();

    let replica = Server::start(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let synced = async {
        loop {
            let info: String = command(&replica, &["INFO", "replication"]).await;
            if info.contains("master_link_status:up") {
                return;
            }
        }
    };
    tokio::time::timeout(secs(30), synced).await.unwrap();
    let lease = client.lock("orders").wait(secs(5)).acquire().await.unwrap();
    let counted: u64 = command(&replica, &["GET", &tokens(client.authority())]).await;
    assert_eq!(lease.token().get(), counted, "the replica knows the token");
}

#[tokio::test]
async fn a_server_stopped_past_the_deadline_costs_the_lease() {
    let server = Server::start(&[]);
    let client = client_of(&server.url()).await.unwrap();
    let lease = client.lock("orders").ttl(secs(1)).acquire().await.unwrap();
    server.pause();
    let lost = tokio::time::timeout(secs(30), lease.lost()).await.unwrap();
    assert_eq!(lost.why, Loss::Deadline);
    server.resume();
}

#[tokio::test]
async fn the_last_token_is_granted_and_none_after_it() {
    let server = Server::start(&[]);
    let client = client_of(&server.url()).await.unwrap();
    let last = (1_u64 << 53) - 1;
    let _: String = command(
        &server,
        &["SET", &tokens(client.authority()), &(last - 1).to_string()],
    )
    .await;
    let lease = client.lock("orders").acquire().await.unwrap();
    assert_eq!(lease.token().get(), last);
    let refused = client.lock("stock").acquire().await;
    assert!(refused.is_err());
    let kept: u64 = command(&server, &["GET", &tokens(client.authority())]).await;
    assert_eq!(kept, last);
}

/// Lua formats a large number with an exponent, and one token may be a prefix of another one.
#[tokio::test]
async fn tokens_of_every_length_are_exact_and_distinct() {
    let server = Server::start(&[]);
    let redis = Redis::connect(&server.url()).await.unwrap();
    let lock = LockName::new("orders").unwrap();
    let counters = [
        9,
        98,
        99_999_999_999_998,
        99_999_999_999_999,
        1_234_567_890_123_456,
    ];
    for (number, counter) in (0..).zip(counters) {
        let counter: u64 = counter;
        let key = tokens(redis.authority());
        let _: String = command(&server, &["SET", &key, &counter.to_string()]).await;
        let wish = AcquireRequest::new(
            lock.clone(),
            ClientId::new("c").unwrap(),
            Under::new(Ttl::from_millis(60_000).unwrap()),
            RequestId::from_bytes([number; 16]),
        );
        let Acquired::Granted(granted) = redis.acquire(wish).await.unwrap() else {
            panic!("not granted");
        };
        assert_eq!(granted.token.get(), counter + 1);
        let named = |token| GrantRef {
            lock: lock.clone(),
            key: granted.key,
            token: Some(token),
        };
        let begins_like_it = Token::new(granted.token.get() / 10).unwrap();
        let highest = granted.token;
        let released = redis.release(named(begins_like_it)).await.unwrap();
        assert_eq!(released, Released::Stale { highest });
        let released = redis.release(named(highest)).await.unwrap();
        assert_eq!(released, Released::Released);
    }
}

//! PostgreSQL behind PgBouncer in transaction mode: all clients share two sessions, and each statement may go
//! to the other one.
//!
//! Notifications do not arrive there, so waiters poll: the first of them once a second.

use std::sync::Arc;

use palisade_authorities::postgres::Postgres;
use palisade_client::{Client, Released, secs};
use palisade_testbed::{PgBouncer, Postgres as Server};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_transaction_pooler_and_waiters_poll() {
    let server = Server::start(&[]);
    let pooler = PgBouncer::before(&server);
    // More connections than sessions, so that they are shared.
    let service = Arc::new(Postgres::connect(&pooler.url(), 4).await.unwrap());
    let client = Client::new(service.clone()).unwrap();

    let mut racers = JoinSet::new();
    for racer in 0..8 {
        let client = client.clone();
        racers.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..20 {
                let lease = client
                    .lock(&format!("own/{racer}"))
                    .acquire()
                    .await
                    .unwrap();
                tokens.push(lease.token().get());
                assert_eq!(lease.release().await.unwrap(), Released::Released);
            }
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            tokens
        });
    }
    let mut tokens = racers.join_all().await.concat();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=160).collect::<Vec<_>>());

    let wish = || client.lock("orders").ttl(secs(3)).wait(secs(60));
    let holder = wish().acquire().await.unwrap();
    let waiters: Vec<_> = (0..2).map(|_| tokio::spawn(wish().acquire())).collect();
    // Holds for longer than the time to live: renewals go through as well.
    while client.show("orders").await.unwrap().waiters < 2 || holder.remaining() > secs(2) {
        tokio::task::yield_now().await;
    }
    while holder.remaining() < secs(2) {
        tokio::task::yield_now().await;
    }
    let listed = client.list("or").all().await.unwrap();
    assert_eq!(listed[0].holder.as_ref().unwrap().token, holder.token());
    let before = holder.token();
    holder.release().await.unwrap();
    // In either order of polling, both are granted, and both release.
    let mut granted = Vec::new();
    for waiter in waiters {
        granted.push(async move {
            let lease = waiter.await.unwrap().unwrap();
            let token = lease.token();
            lease.release().await.unwrap();
            token
        });
    }
    let granted = tokio::time::timeout(secs(60), futures_util::future::join_all(granted));
    let granted = granted.await.unwrap();
    assert!(granted.iter().all(|token| *token > before) && granted[0] != granted[1]);
    assert_eq!(service.wake_ups(), 0, "no notification arrived");
    assert_eq!(client.show("orders").await.unwrap().holder, None);
}

//! PostgreSQL as the authority: the conformance suite against Debian's postgresql, and the special properties
//! of the lock table.

use crate::support::client_of;
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::served::{Adapter, Served, passes};
use palisade_authorities::conformance::Habit;
use palisade_authorities::postgres::Postgres;
use palisade_authorities::postgres::advisory::AdvisoryLocks;
use palisade_client::{Error, Fault, secs};
use palisade_testbed::Postgres as Server;
use tokio_postgres::NoTls;

fn url(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}

impl Adapter for Postgres {
    async fn connect_to(server: SocketAddr) -> Result<Postgres, Fault> {
        Postgres::connect(&url(server), 2).await
    }

    fn woken(&self) -> u64 {
        self.wake_ups()
    }
}

const HABIT: Habit = Habit {
    brief: Duration::from_millis(1_500),
    long: Duration::from_secs(9),
    shares: false,
    ..Habit::FULL
};

#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    passes(Served::<_, Postgres>::by(Server::start(&[])), HABIT).await;
}

/// A separate session, for statements that are not Palisade's.
async fn session(server: &Server) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(&url(server.address()), NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    client
}

/// The recipe with a sequence: a client draws the token and then waits for the lock. The client that drew
/// first may be granted last.
#[tokio::test]
async fn grants_come_in_the_order_of_their_tokens_though_a_sequence_does_not_give_that() {
    let server = Server::start(&[]);
    let (one, other) = (session(&server).await, session(&server).await);
    one.batch_execute("CREATE SEQUENCE naive; CREATE TABLE naive_lock (held bigint)")
        .await
        .unwrap();
    let draw = "SELECT nextval('naive')";
    let slower: i64 = one.query_one(draw, &[]).await.unwrap().get(0);
    let quicker: i64 = other.query_one(draw, &[]).await.unwrap().get(0);
    let mut granted = Vec::new();
    for (session, token) in [(&other, quicker), (&one, slower)] {
        let taken = "INSERT INTO naive_lock SELECT $1 WHERE NOT EXISTS (TABLE naive_lock)";
        assert_eq!(session.execute(taken, &[&token]).await.unwrap(), 1);
        granted.push(token);
        session
            .execute("DELETE FROM naive_lock", &[])
            .await
            .unwrap();
    }
    assert!(
        granted[0] > granted[1],
        "the control arm must show the trap"
    );

    // Sixteen clients run at once, over many locks. The insertion order in `seen` is the order in which the
    // grants became durable.
    let client = client_of(&url(server.address())).await.unwrap();
    one.batch_execute(
        "CREATE TABLE seen (place bigserial, token bigint); \
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO seen (token) VALUES (NEW.token); RETURN NEW; END $$; \
         CREATE TRIGGER see AFTER INSERT ON palisade.holds FOR EACH ROW EXECUTE FUNCTION see()",
    )
    .await
    .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let lease = client
                    .lock(&format!("lock/{number}"))
                    .acquire()
                    .await
                    .unwrap();
                lease.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let rows = one
        .query("SELECT token FROM seen ORDER BY place", &[])
        .await
        .unwrap();
    let tokens: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(tokens, (1..=160).collect::<Vec<_>>());
}

/// A pooler gives every statement another session, and drops notifications.
#[tokio::test(flavor = "multi_thread")]
async fn no_state_is_kept_in_a_session_and_a_waiter_without_notifications_polls() {
    let server = Server::start(&[]);
    let operator = session(&server).await;
    let end_all = async || {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE application_name = 'palisade'";
        operator.query(end, &[]).await.unwrap();
    };
    let client = client_of(&url(server.address())).await.unwrap();
    let wish = || client.lock("orders").ttl(secs(30)).wait(secs(60));
    let holder = wish().acquire().await.unwrap();
    let waiter = tokio::spawn(wish().acquire());
    for _ in 0..3 {
        end_all().await;
        let shown = client.show("orders").await.unwrap();
        assert_eq!(shown.holder.unwrap().token, holder.token());
    }
    let token = holder.token();
    holder.release().await.unwrap();
    let next = tokio::time::timeout(crate::support::PATIENCE, waiter).await;
    assert!(next.unwrap().unwrap().unwrap().token() > token);
}

#[tokio::test]
async fn after_the_last_token_nothing_is_granted_and_what_is_held_stays_held() {
    let server = Server::start(&[]);
    let client = client_of(&url(server.address())).await.unwrap();
    session(&server)
        .await
        .batch_execute("UPDATE palisade.authority SET last_token = 9007199254740990")
        .await
        .unwrap();
    let last = client.lock("orders").acquire().await.unwrap();
    assert_eq!(last.token(), palisade_client::Token::MAX);
    let refused = client.lock("stock").acquire().await.unwrap_err();
    assert_eq!(refused, Error::TokensExhausted);
    last.check().unwrap();
    last.release().await.unwrap();
}

#[tokio::test]
async fn another_isolation_level_is_refused_and_set_up_is_done_once_by_many() {
    let server = Server::start(&[]);
    let url = url(server.address());
    let mut connecting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        connecting.spawn(async move { client_of(&url).await.unwrap() });
    }
    let mut authorities = Vec::new();
    while let Some(client) = connecting.join_next().await {
        authorities.push(client.unwrap().authority().clone());
    }
    authorities.dedup();
    assert_eq!(authorities.len(), 1, "{authorities:?}");
    let strict = "-c default_transaction_isolation=serializable".replace(' ', "%20");
    let strict = client_of(&format!("{url}?options={strict}")).await.unwrap();
    let refused = strict.lock("orders").acquire().await.unwrap_err();
    assert!(refused.to_string().contains("read committed"), "{refused}");
}

/// Direct calls of the functions: each request has its own client, and all ask for one lock. Time passes by
/// changes to the tables.
struct ByHand(tokio_postgres::Client);

impl ByHand {
    async fn start(server: &Server) -> ByHand {
        client_of(&url(server.address())).await.unwrap();
        ByHand(session(server).await)
    }

    /// Runs a statement and returns the outcome and the token.
    async fn ask(&self, statement: String) -> (String, Option<i64>) {
        let statement = format!("SELECT outcome, o_token FROM palisade.{statement}");
        let row = self.0.query_one(&statement, &[]).await.unwrap();
        (row.get(0), row.get(1))
    }

    async fn acquire(&self, request: char) -> (String, Option<i64>) {
        let id = id(request);
        let acquire = format!(
            "acquire('{id}', 'orders', 'client-{request}', 60000, NULL, true, 'somewhere')"
        );
        self.ask(acquire).await
    }

    /// Calls a function on a request's grant: `renew` or `release`.
    async fn on(&self, function: &str, request: char, token: i64) -> String {
        let ttl = if function == "renew" { ", NULL" } else { "" };
        let id = id(request);
        let call = format!("{function}('orders', '{id}', {token}{ttl})");
        self.ask(call).await.0
    }

    async fn pass(&self, times: &str) {
        self.0.batch_execute(times).await.unwrap();
    }

    /// Returns the request whose grant is in the table, alive or not.
    async fn holds(&self) -> Option<String> {
        let request = "SELECT request::text FROM palisade.holds";
        let row = self.0.query_opt(request, &[]).await.unwrap();
        row.map(|row| row.get(0))
    }
}

fn id(request: char) -> String {
    let part = |digits| String::from(request).repeat(digits);
    [8, 4, 4, 4, 12].map(part).join("-")
}

const GRANT_EXPIRES: &str = "UPDATE palisade.holds SET expires = clock_timestamp()";

#[tokio::test]
async fn an_ended_or_different_grant_is_neither_renewed_nor_released() {
    let server = Server::start(&[]);
    let by_hand = ByHand::start(&server).await;
    for function in ["renew", "release"] {
        let (outcome, token) = by_hand.acquire('a').await;
        assert_eq!(outcome, "granted");
        let token = token.unwrap();
        assert_eq!(by_hand.on(function, 'a', token + 1).await, "stale");
        assert_eq!(by_hand.on(function, 'b', token).await, "not_held");
        assert_eq!(by_hand.holds().await, Some(id('a')));
        // No other request was granted, and none polled in between.
        by_hand.pass(GRANT_EXPIRES).await;
        assert_eq!(by_hand.on(function, 'a', token).await, "expired");
        assert_eq!(by_hand.holds().await, None);
        by_hand.pass("DELETE FROM palisade.ended").await;
    }
}

/// A waiter without notifications would poll within a second: here no waiter polls.
#[tokio::test]
async fn when_a_grant_ends_the_next_live_waiter_is_granted_at_once() {
    let server = Server::start(&[]);
    let by_hand = ByHand::start(&server).await;
    for how in ["released", "revoked", "abandoned", "expired"] {
        let (_, token) = by_hand.acquire('a').await;
        let token = token.unwrap();
        for waiter in ['b', 'c'] {
            assert_eq!(by_hand.acquire(waiter).await.0, "queued");
        }
        let dies = format!(
            "UPDATE palisade.waits SET alive_until = clock_timestamp() WHERE request = '{}'",
            id('b')
        );
        by_hand.pass(&dies).await;
        match how {
            "released" => assert_eq!(by_hand.on("release", 'a', token).await, "done"),
            "revoked" => {
                let revoke = format!("revoke('orders', {token})");
                assert_eq!(by_hand.ask(revoke).await.0, "done");
            }
            "abandoned" => {
                let abandon = format!("SELECT palisade.abandon('{}')", id('a'));
                by_hand.pass(&abandon).await;
            }
            _ => {
                by_hand.pass(GRANT_EXPIRES).await;
                // The next request ends what is over, and queues.
                assert_eq!(by_hand.acquire('d').await.0, "queued");
            }
        }
        assert_eq!(by_hand.holds().await, Some(id('c')), "{how}");
        assert_eq!(by_hand.acquire('a').await.0, how);
        let (outcome, next) = by_hand.acquire('c').await;
        assert_eq!((outcome.as_str(), next), ("granted", Some(token + 1)));
        by_hand
            .pass("TRUNCATE palisade.holds, palisade.waits, palisade.ended")
            .await;
    }
}

#[tokio::test]
async fn the_same_client_takes_its_lock_back_and_its_former_request_learns_of_it() {
    let server = Server::start(&[]);
    let by_hand = ByHand::start(&server).await;
    let (_, token) = by_hand.acquire('a').await;
    by_hand
        .pass("UPDATE palisade.holds SET client = 'client-b'")
        .await;
    let (outcome, next) = by_hand.acquire('b').await;
    assert_eq!(outcome, "granted");
    assert_eq!(next, token.map(|token| token + 1));
    assert_eq!(by_hand.acquire('a').await, ("superseded".to_owned(), token));
}

#[tokio::test]
async fn a_grant_and_its_observers_agree_on_when_it_was_acquired() {
    let server = Server::start(&[]);
    let client = client_of(&url(server.address())).await.unwrap();
    let lease = client.lock("orders").acquire().await.unwrap();
    let shown = client.show("orders").await.unwrap();
    assert_eq!(shown.acquired_at, lease.acquired_at());
}

#[tokio::test]
async fn dead_waiters_do_not_fill_a_queue() {
    let server = Server::start(&[]);
    let by_hand = ByHand::start(&server).await;
    by_hand.acquire('a').await;
    let crowd = "INSERT INTO palisade.waits (lock, request, client, ttl_ms, channel, alive_until) \
         SELECT 'orders', gen_random_uuid(), 'crowd', 60000, 'somewhere', \
             clock_timestamp() + interval '1 hour' FROM generate_series(1, 1024)";
    by_hand.pass(crowd).await;
    assert_eq!(by_hand.acquire('b').await.0, "queue_full");
    by_hand
        .pass("UPDATE palisade.waits SET alive_until = clock_timestamp()")
        .await;
    assert_eq!(by_hand.acquire('b').await.0, "queued");
}

/// Exclusion without a token: the guard has none, which a `compile_fail` example in the module's
/// documentation proves.
#[tokio::test(flavor = "multi_thread")]
async fn an_advisory_lock_excludes_until_its_session_ends() {
    let server = Server::start(&[]);
    let locks = AdvisoryLocks::at(&url(server.address())).unwrap();
    let held = locks
        .acquire("orders", Duration::ZERO)
        .await
        .unwrap()
        .unwrap();
    assert!(
        locks
            .acquire("orders", Duration::ZERO)
            .await
            .unwrap()
            .is_none()
    );
    let short = Duration::from_millis(50);
    assert!(locks.acquire("orders", short).await.unwrap().is_none());
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("orders", secs(60)).await.unwrap().unwrap() }
    });
    assert!(held.release().await.unwrap());
    let mut next = waiter.await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    session(&server).await.query(end, &[]).await.unwrap();
    next.lost().await;
    assert!(next.is_lost());
    drop(locks.acquire("orders", secs(60)).await.unwrap().unwrap());
}

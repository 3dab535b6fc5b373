//! ZooKeeper as the authority: the conformance suite against Debian's zookeeper, and the known flaw of its
//! sequence numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::served::{Adapter, Served, passes};
use crate::support::{client_of, poll};
use palisade_authorities::conformance::{Habit, Subject};
use palisade_authorities::zookeeper::ZooKeeper;
use palisade_client::service::{AcquireRequest, Acquired, Under};
use palisade_client::{Client, ClientId, Code, Fault, GrantRef, LockName, LockService, Ttl, secs};
use palisade_core::{RequestId, Span};
use palisade_testbed::ZooKeeper as Server;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, CreateMode};

/// Removes empty containers within a tenth of a second; the default is a minute.
const CONTAINERS_GO_AT_ONCE: &str = "-Dznode.container.checkIntervalMs=100";

/// An ensemble of one member.
type Ensemble = Served<Server, ZooKeeper>;

fn ensemble() -> Ensemble {
    Served::by(Server::start(&[CONTAINERS_GO_AT_ONCE]))
}

impl Adapter for ZooKeeper {
    async fn connect_to(server: SocketAddr) -> Result<ZooKeeper, Fault> {
        ZooKeeper::connect(&format!("zookeeper://{server}")).await
    }

    fn woken(&self) -> u64 {
        self.wake_ups()
    }
}

const HABIT: Habit = Habit {
    brief: secs(1),
    long: secs(12),
    takes_back: false,
    remembers: false,
    shares: false,
    ..Habit::FULL
};

#[tokio::test(flavor = "multi_thread")]
async fn it_passes_the_suite_for_authorities() {
    passes(ensemble(), HABIT).await;
}

/// The recipe from many books: the token is the sequence number. Its second grant repeats the first one's
/// token after the lock's empty container was removed.
#[tokio::test]
async fn tokens_go_on_rising_when_the_container_is_removed_though_sequences_begin_again() {
    let server = Server::start(&[CONTAINERS_GO_AT_ONCE]);
    let address = server.address();
    let naive = zookeeper_client::Client::connect(&address.to_string())
        .await
        .unwrap();
    let client = client_of(&format!("zookeeper://{address}")).await.unwrap();
    let gone =
        async |path: &str| poll(async || naive.check_stat(path).await.unwrap().is_none()).await;

    let mut sequences = Vec::new();
    let mut tokens = Vec::new();
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for _ in 0..2 {
        naive.create("/naive", b"", &container).await.unwrap();
        let (_, sequence) = naive.create("/naive/lock-", b"", &ephemeral).await.unwrap();
        sequences.push(sequence.into_i64());
        naive
            .delete(&format!("/naive/lock-{sequence}"), None)
            .await
            .unwrap();
        gone("/naive").await;

        let lease = client.lock("orders").ttl(secs(5)).acquire().await.unwrap();
        tokens.push(lease.token());
        lease.release().await.unwrap();
        gone("/palisade/orders").await;
    }
    assert_eq!(sequences, [0, 0], "the control arm must show the trap");
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// If names and transactions ever disagree, no request is granted by its name.
#[tokio::test]
async fn a_sequence_that_contradicts_the_transactions_grants_nothing() {
    let server = Server::start(&[CONTAINERS_GO_AT_ONCE]);
    let address = server.address();
    let raw = zookeeper_client::Client::connect(&address.to_string())
        .await
        .unwrap();
    let client = client_of(&format!("zookeeper://{address}")).await.unwrap();
    let wish = || client.lock("orders").ttl(secs(5)).wait(secs(30));
    let holder = wish().acquire().await.unwrap();
    let next = tokio::spawn(wish().acquire());
    poll(async || client.show("orders").await.unwrap().waiters == 1).await;
    let waiter = tokio::spawn(wish().acquire());
    poll(async || client.show("orders").await.unwrap().waiters == 2).await;
    // A node that was created later but has an earlier name.
    let forged = format!("/palisade/orders/{}-lock--000000001", "0".repeat(32));
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create(&forged, b"forged\n5000\n", &persistent)
        .await
        .unwrap();
    holder.release().await.unwrap();
    // The next waiter saw the queue before: it holds by name and by transaction.
    next.await.unwrap().unwrap().release().await.unwrap();
    let refused = waiter.await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("sequence"), "{refused}");
}

fn wish(lock: &str, request: u8) -> AcquireRequest {
    AcquireRequest {
        wait: Some(Span::from_millis(60_000)),
        ..AcquireRequest::new(
            LockName::new(lock).unwrap(),
            ClientId::new("client").unwrap(),
            Under::new(Ttl::from_millis(20_000).unwrap()),
            RequestId::from_bytes([request; 16]),
        )
    }
}

/// A holder and a waiter for each of these locks, and an operator.
struct Queues {
    /// The connection of the waiters, through the relay.
    near: Arc<dyn LockService>,
    /// A grant that the waiters' session holds.
    kept: GrantRef,
    /// The connection of the holders.
    _far: Arc<dyn LockService>,
    operator: zookeeper_client::Client,
    waiting: Vec<(String, JoinHandle<Result<Acquired, Fault>>)>,
}

impl Queues {
    async fn form(ensemble: &Ensemble, locks: u8) -> Queues {
        let near = ensemble.connect_through().await.unwrap().unwrap();
        let far = ensemble.connect().await.unwrap();
        let address = ensemble.server.address().to_string();
        let operator = zookeeper_client::Client::connect(&address).await.unwrap();
        let Acquired::Granted(granted) = near.acquire(wish("kept", u8::MAX)).await.unwrap() else {
            panic!("a free lock");
        };
        let kept = GrantRef {
            lock: LockName::new("kept").unwrap(),
            key: granted.key,
            token: Some(granted.token),
        };
        let mut waiting = Vec::new();
        for number in 0..locks {
            let lock = format!("lock-{number}");
            let held = far.acquire(wish(&lock, 2 * number)).await.unwrap();
            assert!(matches!(held, Acquired::Granted(_)), "{held:?}");
            let (service, wish) = (near.clone(), wish(&lock, 2 * number + 1));
            let name = wish.lock.clone();
            let waiter = tokio::spawn(async move { service.acquire(wish).await });
            poll(async || far.show(name.clone()).await.unwrap().waiters == 1).await;
            waiting.push((format!("/palisade/{name}"), waiter));
        }
        Queues {
            near,
            kept,
            _far: far,
            operator,
            waiting,
        }
    }

    /// Returns the holder's node and the waiter's node.
    async fn queue(&self, directory: &str) -> Vec<String> {
        let mut queue = self.operator.list_children(directory).await.unwrap();
        queue.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
        queue
    }

    /// Deletes both nodes in one transaction for each lock, the waiter's node before the holder's.
    async fn delete_all(&self) {
        for (directory, _) in &self.waiting {
            let queue = self.queue(directory).await;
            let mut transaction = self.operator.new_multi_writer();
            for name in queue.iter().rev() {
                let path = format!("{directory}/{name}");
                transaction.add_delete(&path, None).unwrap();
            }
            transaction.commit().await.unwrap();
        }
    }

    async fn nobody_is_granted(self) {
        for (lock, waiter) in self.waiting {
            let answer = tokio::time::timeout(crate::support::PATIENCE, waiter).await;
            let answer = answer.unwrap().unwrap();
            assert!(answer.is_err(), "{lock}: {answer:?}");
        }
    }
}

/// A waiter believes that it is first when its predecessor is gone, without another query: its own node must
/// have existed at that moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_went_first_is_not_granted() {
    let ensemble = ensemble();
    let queues = Queues::form(&ensemble, 1).await;
    queues.delete_all().await;
    queues.nobody_is_granted().await;
}

/// The waiter learns of it earlier than with its next confirmation of the session, 6.7 s later: an unattended
/// session that lasts 2 s serves as the clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_went_learns_of_it_at_once() {
    let ensemble = ensemble();
    let mut queues = Queues::form(&ensemble, 1).await;
    let (directory, waiter) = queues.waiting.remove(0);
    let left_alone = zookeeper_client::Client::connector()
        .with_session_timeout(secs(2))
        .with_detached()
        .connect(&ensemble.server.address().to_string())
        .await
        .unwrap();
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    left_alone.create("/clock", b"", &ephemeral).await.unwrap();
    drop(left_alone);
    let queue = queues.queue(&directory).await;
    queues
        .operator
        .delete(&format!("{directory}/{}", queue[1]), None)
        .await
        .unwrap();
    let clock = poll(async || {
        let there = queues.operator.check_stat("/clock").await.unwrap();
        there.is_none()
    });
    tokio::select! {
        answer = waiter => assert!(answer.unwrap().is_err()),
        () = clock => panic!("the waiter still waits"),
    }
}

/// Events from the time without a connection are reported afterwards in any order.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_went_while_it_had_no_connection_is_not_granted() {
    let ensemble = ensemble();
    let queues = Queues::form(&ensemble, 60).await;
    ensemble.relay.cut();
    // Requests sent while the connection breaks may be answered on another connection.
    let connected = async || {
        let renewed = queues.near.renew(queues.kept.clone(), None);
        tokio::time::timeout(secs(1), renewed).await
    };
    poll(async || !matches!(connected().await, Ok(Ok(_)))).await;
    queues.delete_all().await;
    ensemble.relay.heal();
    queues.nobody_is_granted().await;
}

#[tokio::test]
async fn a_time_to_live_the_ensemble_would_change_is_refused_with_the_range() {
    let server = Server::start(&[CONTAINERS_GO_AT_ONCE]);
    let client = client_of(&format!("zookeeper://{}", server.address()))
        .await
        .unwrap();
    for (ttl, range) in [(500, "1000 ms ..="), (61_000, "..= 60000 ms")] {
        let wish = client.lock("orders").ttl(Duration::from_millis(ttl));
        let refused = wish.try_acquire().await.unwrap_err();
        assert_eq!(refused.code(), Code::Invalid);
        assert!(refused.to_string().contains(range), "{refused}");
    }
}

/// A session without a connection is suspended: it counts as not held. Nothing is extended, and the holder
/// has stopped believing before the next one is granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_session_is_not_held() {
    let ensemble = ensemble();
    let (near, far) = (
        ensemble.connect_through().await.unwrap().unwrap(),
        Client::new(ensemble.connect().await.unwrap()).unwrap(),
    );
    let client = Client::new(near.clone()).unwrap();
    let lease = client.lock("orders").ttl(secs(6)).acquire().await.unwrap();
    let grant = GrantRef {
        lock: lease.lock().clone(),
        key: *lease.lease_key(),
        token: Some(lease.token()),
    };
    let next = tokio::spawn(far.lock("orders").ttl(secs(6)).wait(secs(60)).acquire());
    poll(async || far.show("orders").await.unwrap().waiters == 1).await;
    ensemble.relay.cut();
    poll(async || near.renew(grant.clone(), None).await.is_err()).await;
    let longest = lease.remaining();
    assert!(longest <= secs(4), "two thirds of the session: {longest:?}");
    let lost = lease.lost().await;
    assert_eq!(lost.why, palisade_client::Loss::Deadline);
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > lease.token() && lease.check().is_err());
    // After a reconnect its session has ended, and nothing of it is revived.
    ensemble.relay.heal();
    assert!(lease.check().is_err());
}

//! The levers of the double for unit tests. Without levers it is the authority of `authorities` and `handing_over`, which
//! run against it and against a real server.

use std::time::Duration;

use crate::support::{PATIENCE, changed, until_shown};
use palisade_client::testing::MemoryServer;
use palisade_client::{Change, Client, Code, Ending, Error, Lease, Loss, Options, Released, secs};
use tokio::time::timeout;

/// Its holder renews after a tenth of a second.
const SHORT: Duration = Duration::from_millis(300);

fn server() -> (MemoryServer, Client) {
    let server = MemoryServer::new().unwrap();
    let client = server.client().unwrap();
    (server, client)
}

async fn loss(lease: &Lease) -> Loss {
    timeout(PATIENCE, lease.lost()).await.unwrap().why
}

fn numbers(server: &MemoryServer, lock: &str) -> Vec<u64> {
    server
        .tokens(lock)
        .iter()
        .map(|token| token.get())
        .collect()
}

#[tokio::test]
async fn a_lock_of_another_client_is_held_until_it_is_given_back() {
    let (server, client) = server();
    let other = server.hold("orders", "other").await.unwrap();
    let held = client.lock("orders").wait(Duration::ZERO).acquire().await;
    assert_eq!(held.unwrap_err().holder().unwrap().client.as_str(), "other");
    let again = server.hold("orders", "other").await;
    assert!(matches!(again, Err(Error::Held { .. })), "{again:?}");
    let waiting = tokio::spawn(client.lock("orders").acquire());
    until_shown(&client, "orders", |view| view.waiters == 1).await;
    let first = other.token();
    drop(other);
    let lease = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(
        numbers(&server, "orders"),
        [first.get(), lease.token().get()]
    );
    let holder = server.holder("orders").await.unwrap();
    assert_eq!(holder.map(|holder| holder.token), Some(lease.token()));
    lease.release().await.unwrap();
    assert_eq!(server.holder("orders").await, Ok(None));
    assert!(server.tokens("stock").is_empty());
}

#[tokio::test]
async fn a_holder_learns_that_its_lease_expired_or_was_revoked() {
    let (server, client) = server();
    let mut watch = client.watch("orders").await.unwrap();
    for (expires, how) in [(true, Ending::Expired), (false, Ending::Revoked)] {
        let lease = client.lock("orders").ttl(SHORT).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("orders").ttl(secs(60)).acquire());
        until_shown(&client, "orders", |view| view.waiters == 1).await;
        if expires {
            server.expire("orders").await.unwrap()
        } else {
            server.revoke("orders", "the test").await.unwrap()
        }
        // A machine that is busy for a long time may reach the deadline first.
        let why = loss(&lease).await;
        assert!(matches!(why, Loss::Ended(ended) if ended == how) || why == Loss::Deadline);
        assert_eq!(lease.release().await, Ok(Released::Ended(how)));
        // Of those that wait the next one has it, and is not ended with it.
        let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        next.check().unwrap();
        assert_eq!(next.release().await, Ok(Released::Released));
        assert!(matches!(
            changed(&mut watch).await.change,
            Change::Granted { .. }
        ));
        match changed(&mut watch).await.change {
            Change::Ended {
                how: told, reason, ..
            } => {
                assert_eq!((told, reason.is_some()), (how, !expires));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            changed(&mut watch).await.change,
            Change::Granted { .. }
        ));
        assert!(matches!(
            changed(&mut watch).await.change,
            Change::Ended { .. }
        ));
    }
}

#[tokio::test]
async fn all_readers_and_holders_of_permits_are_ended() {
    let (server, client) = server();
    for _ in 0..2 {
        let ends = async |leases: Vec<Lease>, lock| {
            server.expire(lock).await.unwrap();
            assert_eq!(server.holder(lock).await, Ok(None));
            for lease in leases {
                let released = lease.release().await;
                assert_eq!(released, Ok(Released::Ended(Ending::Expired)));
            }
        };
        let reader = client.lock_shared("report").acquire().await.unwrap();
        let update = client.lock_shared("report").for_update().acquire().await;
        ends(vec![reader, update.unwrap()], "report").await;
        let one = client.semaphore("gpu", 3).acquire().await.unwrap();
        let two = client
            .semaphore("gpu", 3)
            .permits(2)
            .acquire()
            .await
            .unwrap();
        ends(vec![one, two], "gpu").await;
    }
}

#[tokio::test]
async fn a_server_that_is_down_does_nothing_and_a_stalled_one_answers_nothing() {
    let (server, client) = server();
    let options = Options {
        patience: Duration::from_secs(1),
        ..Options::default()
    };
    let hasty = server.client_with(&options).unwrap();
    let lease = client.lock("orders").ttl(SHORT).acquire().await.unwrap();
    let mut watch = client.watch("stock").await.unwrap();
    server.down();
    let refused = hasty.lock("stock").wait(Duration::ZERO).acquire().await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    assert_eq!(loss(&lease).await, Loss::Deadline);
    assert!(server.tokens("stock").is_empty());
    server.up();
    // The control: with the same settings it is granted, and the watch goes on.
    let stock = hasty.lock("stock").acquire().await.unwrap();
    assert!(matches!(
        changed(&mut watch).await.change,
        Change::Granted { .. }
    ));
    drop(stock);

    server.stall();
    let unanswered = hasty.lock("gpu").wait(Duration::ZERO).acquire().await;
    assert_eq!(unanswered.unwrap_err().code(), Code::UnknownOutcome);
    let waiting = tokio::spawn(client.lock("orders").acquire());
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    server.up();
    let answered = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    answered.unwrap().check().unwrap();
    until_shown(&client, "gpu", |view| view.holder.is_none()).await;
}

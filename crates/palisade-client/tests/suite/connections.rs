//! Leases and requests while connections break and servers stop.

use std::time::Duration;

use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::support::{PATIENCE, changed, observed, until_shown};
use palisade_client::{Client, Code, Lease, Notice, Options, secs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

struct Setup {
    /// Removed when dropped.
    _dir: tempfile::TempDir,
    server: Server,
    relay: Relay,
}

/// A server in its own folder, behind a relay.
async fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let relay = Relay::to(server.address).await;
    Setup {
        _dir: dir,
        server,
        relay,
    }
}

#[tokio::test]
async fn a_wait_goes_on_over_a_new_connection_and_is_granted_once() {
    let setup = setup().await;
    let client = Client::connect(&setup.relay.url()).await.unwrap();
    let observer = Client::connect(&setup.server.url()).await.unwrap();
    let holder = observer.lock("orders").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("orders").wait(secs(60)).acquire());
    until_shown(&observer, "orders", |lock| lock.waiters == 1).await;
    setup.relay.move_to(None);
    until_shown(&observer, "orders", |lock| lock.waiters == 0).await;
    setup.relay.move_to(Some(setup.server.address));
    until_shown(&observer, "orders", |lock| lock.waiters == 1).await;
    let token = holder.token();
    holder.release().await.unwrap();
    let lease = tokio::time::timeout(PATIENCE, waiter)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(lease.token().get(), token.get() + 1);
    lease.check().unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_come_back_costs_the_lease_at_its_deadline_and_not_before() {
    let setup = setup().await;
    let client = Client::connect(&setup.relay.url()).await.unwrap();
    let lease = client
        .lock("orders")
        .ttl(Duration::from_millis(600))
        .acquire()
        .await
        .unwrap();
    setup.relay.move_to(None);
    lease.check().unwrap();
    let longest = lease.remaining();
    // real time: the deadline passes while no server can be reached.
    let lost = tokio::time::timeout(longest + PATIENCE, lease.lost())
        .await
        .unwrap();
    assert_eq!(lost.why, palisade_client::Loss::Deadline);
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn a_guard_dropped_while_the_server_is_away_is_released_when_it_is_back() {
    let setup = setup().await;
    let client = Client::connect(&setup.relay.url()).await.unwrap();
    let observer = Client::connect(&setup.server.url()).await.unwrap();
    let lease = client
        .lock("orders")
        .ttl(secs(3_600))
        .acquire()
        .await
        .unwrap();
    setup.relay.move_to(None);
    drop(lease);
    setup.relay.move_to(Some(setup.server.address));
    until_shown(&observer, "orders", |lock| lock.holder.is_none()).await;
}

#[tokio::test]
async fn another_authority_at_the_same_address_is_not_believed() {
    let (setup, other) = (setup().await, setup().await);
    let options = Options {
        patience: Duration::from_secs(1),
        ..Options::default()
    };
    let client = Client::connect_with(&setup.relay.url(), options)
        .await
        .unwrap();
    let lease = client.lock("orders").acquire().await.unwrap();
    setup.relay.move_to(Some(other.server.address));
    // Until the client notices the break, an operation may have been sent: its outcome is unknown.
    let refused = loop {
        match client.lock("stock").try_acquire().await {
            Err(error) if error.code() == Code::Unavailable => break error,
            Err(error) => assert_eq!(error.code(), Code::UnknownOutcome),
            Ok(_) => panic!("granted by another authority"),
        }
    };
    assert!(
        refused.to_string().contains("tokens of two authorities"),
        "{refused}"
    );
    setup.relay.move_to(Some(setup.server.address));
    released(&setup, lease).await;
}

/// A restarted server does not know earlier changes. It reports at once, and only once, that some were missed; the
/// watch continues after them.
#[tokio::test]
async fn a_watch_says_how_many_changes_it_missed_and_goes_on() {
    let Setup {
        _dir: dir,
        server,
        relay,
    } = setup().await;
    let client = Client::connect(&relay.url()).await.unwrap();
    let (mut watch, mut observer) = (
        client.watch("").await.unwrap(),
        client.observe("primary").await.unwrap(),
    );
    assert_eq!(observed(&mut observer).await, None);
    let direct = Client::connect(&server.url()).await.unwrap();
    let first = direct.lock("primary").metadata("one").acquire().await;
    let first = first.unwrap();
    assert_eq!(changed(&mut watch).await.token, first.token());
    let leader = observed(&mut observer).await.unwrap();
    assert_eq!(leader.value.as_deref(), Some("one"));

    relay.move_to(None);
    first.release().await.unwrap();
    let second = direct.lock("primary").metadata("two").acquire().await;
    let second = second.unwrap().detach();
    server.stop().await;
    let server = Server::start(&dir.path().join("data")).await;
    relay.move_to(Some(server.address));
    let missed = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(
        matches!(missed, Ok(Notice::Missed { missed: 2, .. })),
        "{missed:?}"
    );
    let leader = observed(&mut observer).await.unwrap();
    assert_eq!(
        (leader.value.as_deref(), Some(leader.token)),
        (Some("two"), second.token)
    );
    let direct = Client::connect(&server.url()).await.unwrap();
    let third = direct.lock("other").acquire().await.unwrap();
    assert_eq!(changed(&mut watch).await.token, third.token());
}

async fn released(setup: &Setup, lease: Lease) {
    let observer = Client::connect(&setup.server.url()).await.unwrap();
    let shown = observer.show("orders").await.unwrap();
    assert_eq!(shown.holder.unwrap().token, lease.token());
    drop(lease);
    until_shown(&observer, "orders", |lock| lock.holder.is_none()).await;
}

#[tokio::test]
async fn an_address_without_a_listener_is_an_error() {
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let error = Client::connect(&format!("http://{free}"))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let (own, whole) = (error.to_string(), format!("{error:#}"));
    assert!(
        own.ends_with(&free.port().to_string()) && whole.contains("refused"),
        "{whole}"
    );
    // The socket's error is preserved as the system's own error.
    let cause = std::error::Error::source(&error).unwrap();
    let cause: &std::io::Error = cause.downcast_ref().unwrap();
    assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn another_kind_of_server_is_reported_without_a_wait() {
    for (answer, said) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "proxy answers there (HTTP/1.1 400 Bad Request)",
        ),
        (b"<html>\r\n", "reverse proxy"),
        (&[21, 3, 3, 0, 2, 2, 22], "https://"),
        (b"\0\0\0\x03abc", "is not Palisade"),
    ] {
        reported(answer, said).await;
    }
}

async fn reported(answer: &'static [u8], said: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(answer).await;
        }
    });
    let url = format!("http://{address}");
    let connect = Client::connect(&url);
    let error = tokio::time::timeout(PATIENCE, connect)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::Invalid, "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

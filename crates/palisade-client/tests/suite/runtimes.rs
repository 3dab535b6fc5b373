//! A client whose Tokio runtime ends before the client: a static client of tests that each have a runtime, or a library
//! that makes a runtime for each call.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::sync::Arc;
use std::time::Duration;

use crate::support::server::Server;
use crate::support::{PATIENCE, poll, scripted_client};
use palisade_client::{Client, Code, Lease, Loss, secs};
use palisade_core::Span;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Uses a client on a runtime, and ends the runtime.
fn used_and_ended(connect: impl Future<Output = Client>) -> Client {
    let first = runtime();
    first.block_on(async {
        let client = connect.await;
        let lease = client.lock("warm-up").ttl(secs(1)).acquire().await;
        lease.unwrap().release().await.unwrap();
        client
    })
}

/// Acquires a lease that is renewed.
async fn is_kept(client: &Client) {
    let request = client.lock("orders").ttl(TTL).acquire();
    let lease = tokio::time::timeout(PATIENCE, request).await;
    is_renewed(lease.unwrap().unwrap()).await;
}

/// Long enough that a busy machine renews in time.
const TTL: Duration = secs(3);

/// Waits until two renewals are acknowledged, because nothing else adds time to a lease, and releases it.
async fn is_renewed(lease: Lease) {
    let (mut left, mut renewals) = (lease.remaining(), 0);
    let renewed = poll(async || {
        let before = std::mem::replace(&mut left, lease.remaining());
        renewals += u32::from(left > before);
        renewals == 2
    });
    tokio::select! {
        lost = lease.lost() => panic!("{lost}"),
        () = renewed => lease.check().unwrap(),
    }
    lease.release().await.unwrap();
}

#[test]
fn a_client_in_process_goes_on_and_renews_on_the_next_runtime() {
    let client = used_and_ended(async { Client::in_process().unwrap() });
    // Twice: a facade may make a runtime for every call.
    for _ in 0..2 {
        runtime().block_on(is_kept(&client));
    }
}

#[test]
fn a_client_of_a_server_connects_again_on_the_next_runtime() {
    let serving = runtime();
    let dir = tempfile::tempdir().unwrap();
    let server = serving.block_on(Server::start(&dir.path().join("data")));
    let url = server.url();
    let client = used_and_ended(async { Client::connect(&url).await.unwrap() });
    for _ in 0..2 {
        runtime().block_on(is_kept(&client));
    }
    serving.block_on(server.stop());
}

#[test]
fn a_lease_outlives_its_runtime_and_is_renewed_on_the_one_that_looks_at_it() {
    let client = Client::in_process().unwrap();
    let first = runtime();
    let request = client.lock("orders").ttl(TTL).acquire();
    let lease = first.block_on(request).unwrap();
    drop(first);
    runtime().block_on(is_renewed(lease));
}

#[test]
fn a_guard_that_is_dropped_after_its_runtime_has_ended_is_released_on_the_next_one() {
    let client = Client::in_process().unwrap();
    let first = runtime();
    let request = client.lock("orders").ttl(secs(3_600)).acquire();
    let lease = first.block_on(request).unwrap();
    drop(first);
    runtime().block_on(async {
        drop(lease);
        let next = client.lock("orders").wait(PATIENCE).acquire().await;
        next.unwrap().release().await.unwrap();
    });
}

/// The scripted authority behaves like those whose connections end with their runtime.
#[test]
fn a_client_that_cannot_go_on_refuses_at_once_and_its_lease_announces_its_end() {
    let (client, service, clock) = scripted_client();
    let local = || Builder::new_current_thread().enable_all().build().unwrap();
    let first = local();
    let lease = first.block_on(async {
        let request = client.lock("orders").ttl(secs(1)).acquire();
        let acquire = tokio::spawn(request);
        let crate::support::Call::Acquire { answer, .. } = service.call().await else {
            panic!("an acquire")
        };
        let granted = crate::support::scripted::granted(7, 1_000, 1_000, 0);
        answer.send(Ok(granted)).unwrap();
        acquire.await.unwrap().unwrap()
    });
    // A task on another runtime, which continues.
    let second = local();
    let signal = second.block_on(async { lease.cancellation_token() });
    drop(first);
    second.block_on(async {
        let refused = client.lock("stock").acquire().await.unwrap_err();
        assert_eq!(refused.code(), Code::Invalid, "{refused}");
        assert!(refused.to_string().contains("has ended"), "{refused}");
        assert!(!signal.is_cancelled());
        clock.advance(secs(1)).await;
        assert!(signal.is_cancelled());
        let lost = tokio::spawn(lease.lost());
        assert_eq!(lost.await.unwrap().why, Loss::Deadline);
        assert_eq!(Span::from(lease.remaining()), Span::ZERO);
    });
    drop(Arc::clone(&service));
}

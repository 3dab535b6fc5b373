//! A fence that refuses a lease's token is reported to its authority, in the background.

use std::sync::Arc;
use std::time::Duration;

use palisade_client::{Client, Fault, LateWrite, Lease, Options, secs};
use palisade_core::fence::{Late, Reporter as _};
use palisade_core::{Timestamp, Token};

use crate::support::scripted::{Answer, granted};
use crate::support::{Call, ScriptedLockService, VirtualClock, scripted_client, settle};

const TTL_MS: u64 = 60_000;

async fn lease(client: &Client, service: &ScriptedLockService) -> Lease {
    let acquire = tokio::spawn(client.lock("orders").ttl(secs(60)).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    acquire.await.unwrap().unwrap()
}

fn refuse(lease: &Lease, resource: &str) {
    lease.late(&Late {
        authority: None,
        lock: None,
        token: lease.token(),
        resource,
        highest: Token::new(8).unwrap(),
        operation: "write",
    });
}

/// The reports that have arrived, each with the time at which it was sent.
async fn sent(service: &ScriptedLockService) -> Vec<(Duration, LateWrite, Answer<()>)> {
    let mut sent = Vec::new();
    for call in service.calls().await {
        if let Call::Report { at, late, answer } = call {
            sent.push((at.since(Timestamp::ZERO).to_duration(), late, answer));
        }
    }
    sent
}

#[tokio::test]
async fn reports_keep_a_distance_and_a_bound_and_delay_nobody() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    // 70 resources refuse at once. The first report leaves at once, too, and none of the calls waited for it.
    for resource in 0..70 {
        refuse(&lease, &format!("r{resource}"));
        refuse(&lease, &format!("r{resource}"));
    }
    let mut first = sent(&service).await;
    let (began, late, answer) = first.pop().unwrap();
    assert!(first.is_empty());
    assert_eq!((&*late.lock.to_string(), late.token.get()), ("orders", 7));
    assert_eq!(late.authority.as_ref(), Some(lease.authority()));
    // Of the 64 that wait, equal ones count once; of the others, each.
    assert_eq!(client.reports_dropped(), 12);
    // One that the authority does not answer is given up after two seconds.
    drop(answer);
    clock.advance(Duration::from_millis(100)).await;
    assert_eq!(client.reports_dropped(), 13);
    let (next, _, silent) = sent(&service).await.pop().unwrap();
    assert_eq!(next - began, Duration::from_millis(100));
    clock.advance(Duration::from_millis(1_999)).await;
    assert_eq!(client.reports_dropped(), 13);
    clock.advance(Duration::from_millis(1)).await;
    assert_eq!(client.reports_dropped(), 14);
    drop(silent);
    let (third, _, answer) = sent(&service).await.pop().unwrap();
    assert_eq!(third - next, Duration::from_secs(2));
    answer.send(Ok(())).unwrap();
    settle().await;
    assert_eq!(client.reports_dropped(), 14);
    assert!(lease.check().is_ok(), "no report changes a lease");
}

#[tokio::test]
async fn reports_can_be_switched_off() {
    for (report_refusals, count) in [(true, 1), (false, 0)] {
        let clock = Arc::new(VirtualClock::at(Duration::from_secs(1_000)));
        let service = Arc::new(ScriptedLockService::new(clock.clone()));
        let options = Options {
            report_refusals,
            ..Options::default()
        };
        let client = Client::with(service.clone(), clock.clone(), &options).unwrap();
        let lease = lease(&client, &service).await;
        refuse(&lease, "orders");
        clock.advance(Duration::from_millis(100)).await;
        assert_eq!(sent(&service).await.len(), count);
    }
}

#[tokio::test]
async fn a_report_outlasts_its_lease_and_the_end_waits_for_a_moment() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    refuse(&lease, "orders");
    drop(lease);
    let end = tokio::spawn({
        let client = client.clone();
        async move { client.reports_sent().await }
    });
    let (_, _, answer) = sent(&service).await.pop().unwrap();
    assert!(!end.is_finished());
    answer.send(Err(Fault::unavailable("starting"))).unwrap();
    settle().await;
    assert!(end.is_finished());
    assert_eq!(client.reports_dropped(), 1);
    // Without an answer it ends by itself.
    client.late(&Late {
        authority: None,
        lock: None,
        token: Token::new(9).unwrap(),
        resource: "gpu~3",
        highest: Token::new(10).unwrap(),
        operation: "PUT /",
    });
    let end = tokio::spawn(async move { client.reports_sent().await });
    clock.advance(Duration::from_millis(100)).await;
    let (_, late, _answer) = sent(&service).await.pop().unwrap();
    assert_eq!(late.lock.to_string(), "gpu");
    assert!(!end.is_finished());
    clock.advance(Duration::from_millis(150)).await;
    assert!(end.is_finished());
}

#[cfg(feature = "palisade")]
mod over_a_network {
    use palisade_fence::memory::Guarded;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::support::poll;
    use crate::support::server::Server;

    async fn history(server: &Server) -> String {
        let mut stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let question =
            "GET /v1/history?refused=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(question.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The controls come first: a client that is not to report, a bare token, and a token of another authority.
    #[tokio::test]
    async fn a_late_write_is_in_the_history() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = Server::start_with_history(dir.path()).await;
        let other_server = Server::start(elsewhere.path()).await;
        let silent = Options {
            report_refusals: false,
            ..Options::default()
        };
        let silent = Client::connect_with(&server.url(), silent).await.unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let (total, mut leases) = (Guarded::new(0), Vec::new());
        for holder in [&silent, &client, &client] {
            let lease = holder.lock("a/b").ttl(secs(60)).acquire().await.unwrap();
            let revoked = client.revoke("a/b", lease.token(), "it hangs").await;
            revoked.unwrap();
            total.claim(lease.pass()).unwrap();
            leases.push(lease);
        }
        // A grant is in the history a second later.
        let seen = |text: &str| text.contains("\"rejections\"");
        assert!(!seen(&history(&server).await));
        total.claim(leases[0].pass()).unwrap_err();
        total.claim(leases[1].token().into()).unwrap_err();
        let other = Client::connect(&other_server.url()).await.unwrap();
        let theirs = other.lock("a/b").acquire().await.unwrap();
        client.late(&Late {
            authority: Some(theirs.authority()),
            lock: Some(theirs.lock()),
            token: theirs.token(),
            resource: "their total",
            highest: leases[2].token(),
            operation: "write",
        });
        client.reports_sent().await;
        assert_eq!(client.reports_dropped(), 1);
        // From a thread without a runtime.
        std::thread::scope(|scope| {
            let late = || total.claim(leases[1].pass().doing("add it up"));
            scope.spawn(late).join().unwrap().unwrap_err();
        });
        client.reports_sent().await;
        poll(async || seen(&history(&server).await)).await;
        let said = history(&server).await;
        for word in ["\"a/b\"", "\"add it up\"", "i32"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert_eq!(said.matches("\"reported_at\"").count(), 1, "{said}");
        assert_eq!(client.reports_dropped(), 1);
        drop((leases, theirs));
        server.stop().await;
        other_server.stop().await;
    }
}

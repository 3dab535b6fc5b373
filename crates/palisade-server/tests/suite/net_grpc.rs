//! The gRPC interface over real sockets: unary calls, watch, health, reflection.

use crate::net_support::grpc::{acquire, channel, client, error, granted, release, said};
use crate::net_support::{Server, Wish, soon};
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::{self, Reply, event::Change};
use palisade_server::net::Settings;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1 as reflection;
use tower_service::Service as _;

#[tokio::test]
async fn unary_calls_carry_a_lock_through_its_life() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    let held = granted(said(locks.acquire(acquire("x", "a", 0)).await));
    assert_eq!(
        (held.fencing_token, held.lease_id, held.lease_duration_ms),
        (1, 1, 10_000)
    );
    assert_eq!(
        (held.lock_token.len(), held.valid_for_ms, held.waited_ms),
        (16, 10_000, 0)
    );

    server.advance(1_000).await;
    let denied = said(locks.acquire(acquire("x", "b", 0)).await);
    let holder = v1::Holder {
        client_id: "a".into(),
        fencing_token: 1,
        remaining_ms: 9_000,
    };
    assert_eq!(denied, Some(Outcome::Held(holder.clone())));

    let Some(Outcome::Lock(shown)) = said(locks.show(v1::ShowRequest { lock: "x".into() }).await)
    else {
        panic!()
    };
    assert_eq!(
        (shown.holder, shown.lease_id, shown.waiters),
        (Some(holder), 1, 0)
    );
    assert_eq!(shown.acquired_at_ms, held.acquired_at_ms);

    let renew = v1::RenewRequest {
        lock: "x".into(),
        lock_token: held.lock_token.clone(),
        fencing_token: 1,
        lease_duration_ms: 0,
    };
    let renewed = v1::Renewed {
        fencing_token: 1,
        lease_duration_ms: 10_000,
        valid_for_ms: 10_000,
        waiters: 0,
    };
    assert_eq!(
        said(locks.renew(renew).await),
        Some(Outcome::Renewed(renewed))
    );

    let page = v1::ListRequest {
        prefix: String::new(),
        cursor: 0,
        limit: 0,
    };
    let Some(Outcome::Page(page)) = said(locks.list(page).await) else {
        panic!()
    };
    assert_eq!(page.locks.len(), 1);

    let Some(Outcome::Status(status)) = said(locks.status(v1::StatusRequest {}).await) else {
        panic!()
    };
    assert_eq!(
        (status.authority.as_str(), status.incarnation.as_str()),
        ("test-authority", "first")
    );
    assert_eq!(
        (
            status.next_token,
            status.locks,
            status.leases,
            status.manual_clock
        ),
        (2, 1, 1, true)
    );

    let released = Outcome::Released(v1::Released {
        fencing_token: 1,
        delayed_ms: 0,
    });
    assert_eq!(
        said(locks.release(release("x", &held.lock_token)).await),
        Some(released)
    );
    let again = Outcome::Ended(v1::Ended {
        fencing_token: 1,
        how: v1::Ending::Released.into(),
    });
    assert_eq!(
        said(locks.release(release("x", &held.lock_token)).await),
        Some(again)
    );
}

#[tokio::test]
async fn break_and_abandon() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    let named = v1::AcquireRequest {
        request_id: vec![7; 16],
        ..acquire("x", "a", 0)
    };
    granted(said(locks.acquire(named.clone()).await));
    let revoke = |fencing_token| v1::BreakRequest {
        lock: "x".into(),
        fencing_token,
        reason: "stuck".into(),
    };
    let stale = error(said(locks.r#break(revoke(5)).await));
    assert_eq!((stale.code.as_str(), stale.highest), ("stale", 1));
    let abandon = v1::AbandonRequest {
        request_id: vec![7; 16],
    };
    assert_eq!(
        said(locks.abandon(abandon).await),
        Some(Outcome::Done(v1::Done {}))
    );
    let Some(Outcome::Lock(shown)) = said(locks.show(v1::ShowRequest { lock: "x".into() }).await)
    else {
        panic!()
    };
    assert_eq!(
        shown.holder, None,
        "what an abandoned request was granted is released"
    );
    assert_eq!(error(said(locks.acquire(named).await)).code, "abandoned");

    granted(said(locks.acquire(acquire("x", "a", 0)).await));
    let taken = Outcome::Ended(v1::Ended {
        fencing_token: 2,
        how: v1::Ending::Revoked.into(),
    });
    assert_eq!(said(locks.r#break(revoke(2)).await), Some(taken));
    assert_eq!(error(said(locks.r#break(revoke(2)).await)).code, "not_held");
}

#[tokio::test]
async fn bad_input_is_an_invalid_argument_and_changes_nothing() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    let key = granted(said(locks.acquire(acquire("held", "a", 0)).await)).lock_token;
    let before = server.changes().await;
    type Spoil = fn(&mut v1::AcquireRequest);
    let spoils: [(&str, Spoil); 9] = [
        ("lock", |m| m.lock.clear()),
        ("lock", |m| m.lock = "x".repeat(256)),
        ("lock", |m| m.lock = "ü".into()),
        ("client_id", |m| m.client_id.clear()),
        ("lease_duration_ms", |m| m.lease_duration_ms = 0),
        ("lease_duration_ms", |m| m.lease_duration_ms = u32::MAX),
        ("wait_ms", |m| m.wait_ms = u32::MAX),
        ("lock_token", |m| m.lock_token = vec![1; 15]),
        ("request_id", |m| m.request_id = vec![1; 17]),
    ];
    for (field, spoil) in spoils {
        let mut message = acquire("x", "a", 0);
        spoil(&mut message);
        refused(locks.acquire(message).await, field);
    }
    for token in [0, 1 << 53] {
        let revoke = v1::BreakRequest {
            lock: "held".into(),
            fencing_token: token,
            reason: String::new(),
        };
        refused(locks.r#break(revoke).await, "fencing_token");
    }
    refused(
        locks
            .release(v1::ReleaseRequest {
                fencing_token: 1 << 53,
                ..release("held", &key)
            })
            .await,
        "fencing_token",
    );
    refused(locks.release(release("held", &[])).await, "lock_token");
    refused(
        locks
            .list(v1::ListRequest {
                limit: 1_001,
                ..v1::ListRequest::default()
            })
            .await,
        "limit",
    );
    let unknown = error(said(locks.release(release("held", &[9; 16])).await));
    assert_eq!(unknown.code, "not_held");
    assert_eq!(server.changes().await, before);
}

fn refused(reply: Result<tonic::Response<Reply>, Status>, field: &str) {
    let status = reply.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(
        status.message().starts_with(field),
        "{field}: {}",
        status.message()
    );
    assert_eq!(status.metadata().get("palisade-code").unwrap(), "invalid");
}

#[tokio::test]
async fn a_unary_call_that_is_cancelled_leaves_its_queue() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    granted(said(locks.acquire(acquire("x", "a", 0)).await));
    let mut other = locks.clone();
    let call = tokio::spawn(async move { other.acquire(acquire("x", "b", 60_000)).await });
    server.waiters(1).await;
    call.abort();
    server.waiters(0).await;
}

#[tokio::test]
async fn a_watch_tells_changes_of_its_prefix() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    let watch = v1::WatchRequest {
        prefix: "a".into(),
        after_revision: None,
    };
    let mut events = locks.watch(watch).await.unwrap().into_inner();
    let key = granted(said(locks.acquire(acquire("a1", "c", 0)).await)).lock_token;
    granted(said(locks.acquire(acquire("b1", "c", 0)).await));
    said(locks.release(release("a1", &key)).await);
    let first = soon(events.message()).await.unwrap().unwrap();
    assert_eq!(
        (
            first.revision,
            first.lock.as_str(),
            first.client_id.as_str(),
            first.fencing_token
        ),
        (1, "a1", "c", 1)
    );
    assert_eq!(first.change, Some(Change::GrantedMs(10_000)));
    let second = soon(events.message()).await.unwrap().unwrap();
    assert_eq!(
        (second.revision, second.change),
        (3, Some(Change::Ended(v1::Ending::Released.into())))
    );

    let resumed = v1::WatchRequest {
        prefix: String::new(),
        after_revision: Some(1),
    };
    let mut events = locks.watch(resumed).await.unwrap().into_inner();
    for revision in [2, 3] {
        let event = soon(events.message()).await.unwrap().unwrap();
        assert_eq!((event.revision, event.missed), (revision, 0));
    }
    granted(said(locks.acquire(acquire("z", "c", 0)).await));
    assert_eq!(soon(events.message()).await.unwrap().unwrap().revision, 4);

    let bad = v1::WatchRequest {
        prefix: "ü".into(),
        after_revision: None,
    };
    assert_eq!(
        locks.watch(bad).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

/// The controls: two streams before it, a check of the health beside it, and a session when one has ended.
#[tokio::test]
async fn one_address_gets_half_of_the_streams_and_a_check_of_the_health_is_none() {
    let server = Server::with(Wish::net(Settings {
        streams: 4,
        ..Settings::default()
    }))
    .await;
    let channel = channel(&server).await;
    let mut health = HealthClient::new(channel.clone());
    let session = async || {
        let (requests, frames) = tokio::sync::mpsc::channel::<v1::Requests>(1);
        let mut locks = client(&server).await;
        let replies = locks.session(ReceiverStream::new(frames)).await?;
        Ok::<_, Status>((requests, replies))
    };
    let open = session().await.unwrap();
    let check = HealthCheckRequest::default;
    let _watch = health.watch(check()).await.unwrap();
    let refused = session().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().contains("share of one address"),
        "{refused}"
    );
    let refused = health.watch(check()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    health.check(check()).await.unwrap();
    drop(open);
    soon(async { while session().await.is_err() {} }).await;
}

#[tokio::test]
async fn health_says_serving_and_reflection_knows_the_service() {
    let server = Server::start().await;
    let channel = channel(&server).await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "palisade.v1.Locks"] {
        let check = HealthCheckRequest {
            service: service.into(),
        };
        let status = health.check(check).await.unwrap().into_inner().status;
        assert_eq!(status, i32::from(ServingStatus::Serving), "{service}");
    }
    let question = reflection::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            reflection::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client
        .server_reflection_info(tokio_stream::once(question))
        .await
        .unwrap()
        .into_inner();
    let answer = soon(answers.message())
        .await
        .unwrap()
        .unwrap()
        .message_response;
    let Some(reflection::server_reflection_response::MessageResponse::ListServicesResponse(
        services,
    )) = answer
    else {
        panic!()
    };
    let names: Vec<_> = services
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(names.contains(&"palisade.v1.Locks".to_owned()), "{names:?}");
    assert!(
        names.contains(&"grpc.health.v1.Health".to_owned()),
        "{names:?}"
    );
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let server = Server::start().await;
    let mut grpc = tonic::client::Grpc::new(channel(&server).await);
    for path in ["/palisade.v1.Locks/Nonsense", "/no.such.Service/Call"] {
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::StatusRequest, Reply>::default();
        let call = tonic::Request::new(v1::StatusRequest {});
        let status = grpc
            .unary(call, path.parse().unwrap(), codec)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

/// A unary call, or a stream of one message, with these bytes for a message.
async fn raw(server: &Server, method: &str, message: &[u8]) -> http::HeaderMap {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    let request = http::Request::post(format!("http://{}/palisade.v1.Locks/{method}", server.addr))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(http_body_util::Full::from(body)))
        .unwrap();
    let mut channel = channel(server).await;
    std::future::poll_fn(|cx| channel.poll_ready(cx))
        .await
        .unwrap();
    let answer = soon(channel.call(request)).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = soon(http_body_util::BodyExt::collect(body)).await.unwrap();
    body.trailers().cloned().unwrap_or(head.headers)
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_is_invalid_and_says_so_in_our_words() {
    let server = Server::start().await;
    let before = server.changes().await;
    let unary = [
        "Acquire", "Renew", "Release", "Abandon", "Break", "Show", "List", "Status",
    ];
    // A field of a length that is not there; a wire type that does not exist; text that is none.
    for message in [&[0x0a, 0x7f][..], &[0x0f], &[0x0a, 1, 0xff]] {
        for method in unary.into_iter().chain(["Watch", "Session"]) {
            if ["Status", "Abandon"].contains(&method) && message == [0x0a, 1, 0xff] {
                continue; // Theirs would be no text: a field of a later version, and bytes.
            }
            let failed = raw(&server, method, message).await;
            let seen = (&failed["grpc-status"], failed.get("palisade-code"));
            let expected = ("3".parse().unwrap(), "invalid".parse().unwrap());
            assert_eq!(
                seen,
                (&expected.0, Some(&expected.1)),
                "{method} {message:?} {failed:?}"
            );
            assert!(
                failed["grpc-message"].to_str().unwrap().contains("rotobuf"),
                "{failed:?}"
            );
        }
    }
    let missing = raw(&server, "Nothing", &[]).await;
    assert_eq!(
        (&missing["grpc-status"], &missing["palisade-code"]),
        (&"12".parse().unwrap(), &"not_found".parse().unwrap())
    );
    // Control: a request that can be decoded is answered.
    assert_eq!(raw(&server, "Status", &[]).await["grpc-status"], "0");
    assert_eq!(server.changes().await, before);
}

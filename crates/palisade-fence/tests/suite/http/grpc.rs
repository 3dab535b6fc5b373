//! Refusals for gRPC callers, and calls that only read.

use palisade_fence::Rule;
use palisade_fence::http::{FenceLayer, Policy};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::support::{Map, Slow, by_segment, call, fenced, marks, request};

const GRPC: (&str, &str) = ("content-type", "application/grpc");

#[tokio::test]
async fn a_refusal_is_a_status_with_the_error_in_the_metadata() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    let rpc = |path, token| request("POST", path, &[GRPC, ("x-fencing-token", token)]);
    assert_eq!(call(&service, rpc("/rpc/read", "5")).await.text, "done");
    for (request, status, code) in [
        (rpc("/rpc/write", "4"), "9", "stale"),
        (rpc("/rpc/write", "0"), "3", "invalid"),
        (rpc("/rpc/write", "9007199254740991"), "9", "jump"),
        (request("POST", "/rpc/write", &[GRPC]), "9", "tokenless"),
    ] {
        let reply = call(&service, request).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, ""), "{code}");
        assert_eq!(reply.headers["content-type"], "application/grpc");
        assert_eq!(reply.headers["grpc-status"], status, "{code}");
        assert_eq!(reply.headers["palisade-code"], code);
        let message = reply.headers["grpc-message"].to_str().unwrap();
        assert!(!message.is_empty());
        let error = reply.headers["palisade-error"].to_str().unwrap();
        let error: serde_json::Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["code"], code);
        if code == "stale" {
            assert_eq!(error["highest"], 5);
        }
    }
    // A read without a token, although it is a POST.
    assert_eq!(
        call(&service, request("POST", "/rpc/read", &[GRPC]))
            .await
            .text,
        "done"
    );
    assert_eq!(slow.effects(), ["POST /rpc/read 5", "POST /rpc/read -"]);
}

/// A service of tonic behind the layer, called by a client of tonic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tonic_service_is_fenced_and_its_client_gets_the_reason() {
    let layer = FenceLayer::new(marks(Rule::CLAIM), by_segment as Map, Policy::default()).unwrap();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .layer(layer)
        .add_service(health);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect_lazy());
    let check = |token: u64| {
        let mut check = tonic::Request::new(HealthCheckRequest::default());
        check.metadata_mut().insert("x-fencing-token", token.into());
        check
    };
    assert!(client.check(check(5)).await.is_ok());
    let stale = client.check(check(4)).await.unwrap_err();
    assert_eq!(stale.code(), tonic::Code::FailedPrecondition);
    assert_eq!(stale.metadata().get("palisade-code").unwrap(), "stale");
    assert!(
        stale.message().contains("token 4 is stale: 4 < 5"),
        "{stale}"
    );
    let none = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(none.metadata().get("palisade-code").unwrap(), "tokenless");
    assert!(client.check(check(6)).await.is_ok());
}

//! Refusals as gRPC callers get them, and calls that only read.

use palisade_fence::http::Policy;

use crate::support::{Slow, call, fenced, request};

const GRPC: (&str, &str) = ("content-type", "application/grpc");

#[tokio::test]
async fn a_refusal_is_a_status_with_the_error_beside_it() {
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

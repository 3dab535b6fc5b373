//! Signed tokens at the layer.

use palisade_fence::http::{FenceLayer, Policy};
use palisade_fence::sequencer::{Check, Keys};
use palisade_fence::{DEFAULT_MAX_JUMP, Rule};
use serde_json::Value;
use tower_layer::Layer as _;

use super::support::{Fenced, Map, Slow, by_segment, call, marks, request};

/// The right sequencers of the vectors: for `orders` with token 34 and with the last one, for slots of `gpu`, and a reader's.
fn vectors() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/sequencers.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn of(vectors: &Value, name: &str) -> String {
    let cases = vectors["cases"].as_array().unwrap();
    let case = cases.iter().find(|case| case["name"] == name);
    case.unwrap()["sequencer"].as_str().unwrap().to_owned()
}

fn service(slow: &Slow, required: bool) -> Fenced<Slow> {
    let keys = Keys::parse(vectors()["jwks"].to_string().as_bytes()).unwrap();
    let check = Check::with(keys).required(required);
    let (marks, map) = (marks(Rule::CLAIM), by_segment as Map);
    let layer = FenceLayer::with_sequencers(marks, map, Policy::default(), check).unwrap();
    layer.layer(slow.clone())
}

#[tokio::test]
async fn a_signed_token_is_believed_however_far_it_leaps_and_a_bare_one_is_not() {
    let (slow, vectors) = (Slow::quick(), vectors());
    let service = service(&slow, false);
    let far = (DEFAULT_MAX_JUMP + 1).to_string();
    let bare = request("PUT", "/orders", &[("x-fencing-token", &far)]);
    assert_eq!(call(&service, bare).await.code(), (409, "jump".into()));
    let last = of(&vectors, "right, the last token");
    let put = |sequencer: &str| request("PUT", "/orders", &[("x-fencing-sequencer", sequencer)]);
    assert_eq!(call(&service, put(&last)).await.status, 200);
    let right = of(&vectors, "right");
    assert_eq!(
        call(&service, put(&right)).await.code(),
        (412, "stale".into())
    );
    assert_eq!(slow.effects(), ["PUT /orders -"]);
}

#[tokio::test]
async fn where_sequencers_are_required_a_bare_token_changes_nothing() {
    let (slow, vectors) = (Slow::quick(), vectors());
    let service = service(&slow, true);
    for (method, operation) in [("PUT", "write"), ("GET", "read"), ("POST", "claim")] {
        let mut headers = vec![("x-fencing-token", "99")];
        if operation == "claim" {
            headers.push(("x-fencing-operation", "claim"));
        }
        let refused = call(&service, request(method, "/orders", &headers)).await;
        assert_eq!(refused.code(), (428, "unsigned".into()), "{operation}");
    }
    let bare = request("PUT", "/orders", &[]);
    assert_eq!(call(&service, bare).await.code(), (428, "tokenless".into()));
    let observed = call(&service, request("GET", "/orders", &[])).await;
    assert_eq!(observed.status, 200, "an observer's read needs no token");
    let right = of(&vectors, "right");
    let right = request("PUT", "/orders", &[("x-fencing-sequencer", &right)]);
    assert_eq!(call(&service, right).await.status, 200, "99 was not kept");
}

#[tokio::test]
async fn a_sequencer_is_checked_before_anything_is_raised() {
    let (slow, vectors) = (Slow::quick(), vectors());
    let service = service(&slow, true);
    let (right, reader) = (
        of(&vectors, "right"),
        of(&vectors, "right, a reader that reads"),
    );
    let permits = of(&vectors, "right, for a slot");
    let grpc = ("content-type", "application/grpc");
    for (method, path, headers, code) in [
        (
            "PUT",
            "/payments",
            vec![("x-fencing-sequencer", &*right)],
            (409, "wrong_lock"),
        ),
        (
            "PUT",
            "/gpu~2",
            vec![("x-fencing-sequencer", &*permits)],
            (409, "wrong_lock"),
        ),
        (
            "PUT",
            "/orders",
            vec![("x-fencing-sequencer", &*reader)],
            (403, "bad_sequencer"),
        ),
        (
            "PUT",
            "/orders",
            vec![("x-fencing-sequencer", &right[1..])],
            (403, "bad_sequencer"),
        ),
        (
            "PUT",
            "/orders",
            vec![("x-fencing-sequencer", &*right), ("x-fencing-token", "35")],
            (403, "bad_sequencer"),
        ),
        (
            "PUT",
            "/orders",
            vec![
                ("x-fencing-sequencer", &*right),
                ("x-fencing-authority", "authority-b"),
            ],
            (403, "bad_sequencer"),
        ),
        (
            "PUT",
            "/orders",
            vec![
                ("x-fencing-sequencer", &*right),
                ("x-fencing-lock", "payments"),
            ],
            (403, "bad_sequencer"),
        ),
        (
            "PUT",
            "/orders",
            vec![
                ("x-fencing-sequencer", &*right),
                ("x-fencing-sequencer", &*right),
            ],
            (400, "invalid"),
        ),
        (
            "PUT",
            "/open",
            vec![("x-fencing-sequencer", &*right)],
            (400, "invalid"),
        ),
    ] {
        let refused = call(&service, request(method, path, &headers)).await;
        assert_eq!(
            refused.code(),
            (code.0, code.1.to_owned()),
            "{path} {headers:?}"
        );
        let mut headers = headers;
        headers.push(grpc);
        let refused = call(&service, request("POST", path, &headers)).await;
        assert_eq!(refused.headers["palisade-code"], code.1);
    }
    assert!(slow.effects().is_empty());
    for (method, path, sequencer) in [
        ("GET", "/orders", &reader),
        ("PUT", "/gpu~1", &permits),
        ("PUT", "/gpu~3", &permits),
    ] {
        let headers = [("x-fencing-sequencer", &**sequencer)];
        assert_eq!(
            call(&service, request(method, path, &headers)).await.status,
            200,
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_fence_without_keys_refuses_a_sequencer_and_says_how_it_gets_some() {
    let (slow, vectors) = (Slow::quick(), vectors());
    let service = super::support::fenced(slow, Policy::default());
    let right = of(&vectors, "right");
    let headers = [("x-fencing-sequencer", &*right), ("x-fencing-token", "34")];
    let (status, code, error) = call(&service, request("PUT", "/orders", &headers))
        .await
        .refusal();
    assert_eq!((status, &*code), (403, "bad_sequencer"));
    assert!(
        error["message"].as_str().unwrap().contains("--keys FILE"),
        "{error}"
    );
}

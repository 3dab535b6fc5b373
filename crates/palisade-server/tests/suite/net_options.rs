//! The options of a grant over real sockets, each from its request to everybody who looks at the grant. They are those of
//! the table, so a new one is covered.

use palisade_core::{GrantOption, GrantOptions};
use palisade_proto::{options, v1};
use prost::Message as _;
use serde_json::{Value, json};
use v1::reply::Outcome;

use crate::net_support::grpc::{self, client, said};
use crate::net_support::{Server, soon};
use crate::net_watch::Events;

fn ask(more: &Value) -> String {
    let mut body = json!({"client_id": "a", "lease_duration_ms": 10_000});
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// The options of an event or of a view, over gRPC.
fn of(messages: &[v1::AcquireOption]) -> GrantOptions {
    options::of_messages(messages).unwrap()
}

/// The control is a grant without options, which shows none.
#[tokio::test]
async fn each_option_of_a_grant_is_shown_wherever_the_grant_is() {
    for option in GrantOption::all() {
        let server = Server::start().await;
        let mut client = client(&server).await;
        let mut events = Events::open(&server, "/v1/watch?prefix=", "").await;
        let watch = client.watch(v1::WatchRequest::default());
        let mut over_grpc = watch.await.unwrap().into_inner();
        let most = GrantOptions::NONE
            .with(option, option.most().into())
            .unwrap();
        for (lock, more) in [
            ("plain", json!({})),
            ("asked", json!({ (option.field()): option.most() })),
        ] {
            let granted = server
                .post(&format!("/v1/locks/{lock}/acquire"), &ask(&more))
                .await;
            assert_eq!(granted.status, 200, "{option:?}: {}", granted.body);
        }
        let wish = v1::AcquireRequest {
            options: options::messages(most),
            ..grpc::acquire("over-grpc", "b", 0)
        };
        grpc::granted(said(client.acquire(wish).await));
        for (lock, expected) in [
            ("plain", GrantOptions::NONE),
            ("asked", most),
            ("over-grpc", most),
        ] {
            let value = expected.get(option);
            let field = if value > 0 { json!(value) } else { Value::Null };
            for path in ["/v1/locks/", "/v1/locks?prefix="] {
                let mut shown = server.get(&format!("{path}{lock}")).await.json();
                if let Some(listed) = shown.get_mut("locks") {
                    shown = listed[0].take();
                }
                let holder = &shown["holder"];
                assert_eq!(holder[option.field()], field, "{path}{lock}");
            }
            let show = v1::ShowRequest { lock: lock.into() };
            let Some(Outcome::Lock(view)) = said(client.show(show).await) else {
                panic!("{lock} is not shown");
            };
            assert_eq!(of(&view.options), expected, "{lock}");
            let (name, _, data) = events.next().await;
            assert_eq!((&*name, &data["resource_id"]), ("granted", &json!(lock)));
            assert_eq!(data[option.field()], field, "{lock}");
            let event = soon(over_grpc.message()).await.unwrap().unwrap();
            assert_eq!((&*event.lock, of(&event.options)), (lock, expected));
        }
    }
}

/// The control is the bound itself, which the test above asks for.
#[tokio::test]
async fn an_option_above_its_bound_or_of_a_reader_is_refused_by_its_name() {
    let server = Server::start().await;
    for option in GrantOption::all() {
        let above = json!({ (option.field()): u64::from(option.most()) + 1 });
        let shared = json!({ (option.field()): 1, "mode": "shared" });
        for (more, says) in [(above, option.field()), (shared, option.label())] {
            let refused = server.post("/v1/locks/x/acquire", &ask(&more)).await;
            assert_eq!((refused.status, refused.code()), (400, "invalid".into()));
            let message = refused.message();
            assert!(message.contains(says), "{message}");
        }
    }
}

/// A build that does not know an option refuses it over gRPC, and does not grant without it.
#[tokio::test]
async fn an_unknown_option_is_refused() {
    let server = Server::start().await;
    let mut client = client(&server).await;
    // Field 15 of the oneof, which no build has.
    let unknown = v1::AcquireOption::decode(&[15 << 3, 1][..]).unwrap();
    let wish = v1::AcquireRequest {
        options: vec![unknown],
        ..grpc::acquire("x", "a", 0)
    };
    let refused = client.acquire(wish).await.unwrap_err();
    assert!(refused.message().contains("unknown to this server"));
}

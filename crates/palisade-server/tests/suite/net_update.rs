//! Mode update over real sockets (S8).

use palisade_proto::v1;
use serde_json::{Value, json};

use crate::net_support::grpc::{acquire, client, granted, said};
use crate::net_support::{Server, soon};

async fn hold(server: &Server, client: &str, mode: &str) -> Value {
    let body = json!({"client_id": client, "lease_duration_ms": 10_000, "mode": mode});
    let granted = server.post("/v1/locks/x/acquire", &body.to_string()).await;
    assert_eq!(granted.status, 200, "{}", granted.body);
    granted.json()
}

/// A request for the upgrade of a grant.
fn upgrade(of: &Value, wait_ms: u64, request: u8) -> String {
    json!({
        "client_id": "u", "lock_token": of["lock_token"], "mode": "upgrade", "wait_ms": wait_ms,
        "request_id": format!("{request:032x}"),
    })
    .to_string()
}

fn named(grant: &Value) -> String {
    json!({"lock_token": grant["lock_token"], "fencing_token": grant["grant_id"]}).to_string()
}

#[tokio::test]
async fn an_upgrade_waits_for_the_readers_and_becomes_the_writer_with_a_higher_token() {
    let server = Server::start().await;
    let (update, reader) = (
        hold(&server, "u", "update").await,
        hold(&server, "r", "shared").await,
    );
    assert_eq!(
        (&update["fencing_token"], &update["grant_id"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        (&reader["fencing_token"], &reader["grant_id"]),
        (&json!(1), &json!(2))
    );
    let shown = server.get("/v1/locks/x").await.json();
    let modes = ["/readers/0/update", "/readers/1/update"].map(|at| shown.pointer(at).cloned());
    assert_eq!(modes, [Some(json!(true)), None]);
    let second =
        json!({"client_id": "v", "lease_duration_ms": 10_000, "mode": "update"}).to_string();
    let second = server.post("/v1/locks/x/acquire", &second).await;
    assert_eq!(
        (second.status, &second.json()["holder"]["client_id"]),
        (409, &json!("u"))
    );
    let denied = server
        .post("/v1/locks/x/acquire", &upgrade(&update, 0, 1))
        .await;
    assert_eq!(
        (denied.status, &denied.json()["holder"]["client_id"]),
        (409, &json!("r"))
    );

    let request = upgrade(&update, 60_000, 2);
    let waits = server.post("/v1/locks/x/acquire", &request);
    let release = async {
        server.waiters(1).await;
        let queue = server.get("/v1/locks/x").await.json()["queue"].clone();
        let released = server.post("/v1/locks/x/release", &named(&reader)).await;
        assert_eq!(released.status, 200, "{}", released.body);
        queue
    };
    let (writer, queue) = soon(async { tokio::join!(waits, release) }).await;
    assert_eq!(queue[0]["mode"], "upgrade");
    let writer = writer.json();
    assert_eq!(
        (&writer["fencing_token"], &writer["grant_id"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(writer["lock_token"], update["lock_token"]);
    // The same request again: the same grant.
    let again = server.post("/v1/locks/x/acquire", &request).await.json();
    assert_eq!(again["fencing_token"], 3);
    let old = server.post("/v1/locks/x/renew", &named(&update)).await;
    assert_eq!(old.code(), "superseded");
    let shown = server.get("/v1/locks/x").await.json();
    assert_eq!(
        (&shown["holder"]["fencing_token"], &shown["reader_count"]),
        (&json!(3), &Value::Null)
    );
}

/// A caller that hangs up, and does not come back within two seconds, gives the upgrade up and nothing else.
#[tokio::test]
async fn a_caller_that_hangs_up_keeps_its_grant_in_mode_update() {
    let server = Server::start().await;
    let (update, _) = (
        hold(&server, "u", "update").await,
        hold(&server, "r", "shared").await,
    );
    let request = upgrade(&update, 60_000, 1);
    {
        let waits = server.post("/v1/locks/x/acquire", &request);
        tokio::select! {
            answer = waits => panic!("upgraded beside a reader: {}", answer.body),
            () = server.waiters(1) => {}
        }
    }
    server.advance(1_999).await;
    server.waiters(1).await;
    server.advance(1).await;
    server.waiters(0).await;
    hold(&server, "s", "shared").await;
    let renewed = server.post("/v1/locks/x/renew", &named(&update)).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    // After its time, it learns which reader was in the way.
    let again = upgrade(&update, 500, 2);
    let waits = server.post("/v1/locks/x/acquire", &again);
    let passes = async {
        server.waiters(1).await;
        server.advance(500).await;
    };
    let (told, ()) = soon(async { tokio::join!(waits, passes) }).await;
    assert_eq!(
        (told.status, &told.json()["holder"]["client_id"]),
        (409, &json!("r"))
    );
    assert_eq!(
        server
            .post("/v1/locks/x/renew", &named(&update))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn who_has_nothing_to_upgrade_is_told_what_to_do() {
    let server = Server::start().await;
    let reader = hold(&server, "u", "shared").await;
    let refused = server
        .post("/v1/locks/x/acquire", &upgrade(&reader, 0, 1))
        .await;
    assert_eq!(refused.status, 400);
    assert!(
        refused
            .message()
            .contains("a reader cannot become a writer"),
        "{}",
        refused.body
    );
    let new = json!({"client_id": "u", "lease_duration_ms": 10_000, "mode": "upgrade"}).to_string();
    let refused = server.post("/v1/locks/y/acquire", &new).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.message().contains("ask for mode update"),
        "{}",
        refused.body
    );
    let renewed = server.post("/v1/locks/x/renew", &named(&reader)).await;
    assert_eq!(renewed.status, 200, "nothing changed");
    let both = json!({
        "client_id": "u", "lease_duration_ms": 10_000, "mode": "update", "permits": {"count": 1, "of": 2},
    });
    let refused = server.post("/v1/locks/z/acquire", &both.to_string()).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[tokio::test]
async fn over_grpc_the_mode_is_an_option() {
    let server = Server::start().await;
    let mut client = client(&server).await;
    let in_mode = |mode: v1::LockMode| v1::AcquireOption {
        option: Some(v1::acquire_option::Option::Mode(mode.into())),
    };
    let update = v1::AcquireRequest {
        options: vec![in_mode(v1::LockMode::Update)],
        ..acquire("x", "u", 0)
    };
    let update = granted(said(client.acquire(update).await));
    assert_eq!((update.fencing_token, update.grant_id), (1, 1));
    let upgrade = |of: &v1::Granted| v1::AcquireRequest {
        lock_token: of.lock_token.clone(),
        lease_duration_ms: 0,
        options: vec![in_mode(v1::LockMode::Upgrade)],
        ..acquire("x", "u", 0)
    };
    let writer = granted(said(client.acquire(upgrade(&update)).await));
    assert_eq!((writer.fencing_token, writer.grant_id), (2, 0));
    assert_eq!(writer.lock_token, update.lock_token);
    let refused = client.acquire(upgrade(&update)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let says = refused.message();
    assert!(says.contains("ask for mode update"), "{says}");
}

//! Sequencers: the callers that get one, its content, and the keys to check it with.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use palisade_core::AuthorityId;
use palisade_fence::sequencer::{BadSequencer, GrantMode, Keys, Sequencer};
use palisade_pipeline::Identity;
use palisade_proto::v1::{SequencerRequest, reply::Outcome};
use palisade_server::net::{KeyFileError, SequencerKeys, ServeError, Settings};
use serde_json::json;

use crate::net_access::{call, closed_with, code_of, code_of_status, rules, token};
use crate::net_support::{Response, Server, Wish, grpc};

fn settings(keys: &Path) -> Settings {
    Settings {
        sequencer_keys: Some(keys.to_owned()),
        ..Settings::default()
    }
}

async fn keys(server: &Server) -> Keys {
    let published = server.get("/.well-known/jwks.json").await;
    assert_eq!(published.status, 200, "{}", published.body);
    assert!(!published.body.contains("\"d\""), "no private half");
    Keys::parse(published.body.as_bytes()).unwrap()
}

async fn ask(server: &Server, lock: &str, key: &str) -> Response {
    let body = json!({"lock_token": key}).to_string();
    server
        .post(&format!("/v1/locks/{lock}/sequencer"), &body)
        .await
}

fn text(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["sequencer"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_holder_gets_what_it_holds_signed_and_nobody_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sequencer.keys");
    let server = Server::with(Wish::net(settings(&file))).await;
    let keys = keys(&server).await;
    let verified = |answer: &Response| -> Sequencer { keys.verify(&text(answer)).unwrap() };
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let (key, token) = server.lock("orders", "a").await;
    let answer = ask(&server, "orders", &key).await;
    assert_eq!(answer.json()["fencing_token"], token);
    let sequencer = verified(&answer);
    assert_eq!(sequencer.authority().as_str(), "test-authority");
    assert_eq!(
        (
            sequencer.lock().as_str(),
            sequencer.token().get(),
            sequencer.mode()
        ),
        ("orders", token, GrantMode::Exclusive)
    );
    assert_eq!((sequencer.slots(), sequencer.principal()), (&[][..], None));

    let reader = r#"{"client_id": "r", "lease_duration_ms": 10000, "mode": "shared"}"#;
    let mut readers = Vec::new();
    for client in ["r", "s"] {
        let body = reader.replace("\"r\"", &format!("\"{client}\""));
        let granted = server.post("/v1/locks/read/acquire", &body).await.json();
        readers.push(granted["lock_token"].as_str().unwrap().to_owned());
    }
    let tokens = [
        verified(&ask(&server, "read", &readers[0]).await),
        verified(&ask(&server, "read", &readers[1]).await),
    ]
    .map(|sequencer| {
        assert_eq!(sequencer.mode(), GrantMode::Shared);
        sequencer.token()
    });
    assert_eq!(tokens[0], tokens[1], "readers of one phase have one token");

    let permits =
        r#"{"client_id": "p", "lease_duration_ms": 10000, "permits": {"count": 2, "of": 5}}"#;
    let granted = server.post("/v1/locks/gpu/acquire", permits).await.json();
    let sequencer = verified(&ask(&server, "gpu", granted["lock_token"].as_str().unwrap()).await);
    assert_eq!(
        (sequencer.mode(), sequencer.slots()),
        (GrantMode::Permits, &[1, 2][..])
    );
    assert!(sequencer.covers("gpu~2").is_ok() && sequencer.covers("gpu~3").is_err());

    let before = server.sight().await;
    for (lock, key) in [("orders", "00".repeat(16)), ("read", key.clone())] {
        let refused = ask(&server, lock, &key).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (409, "not_held"),
            "{lock}"
        );
    }
    let stale = json!({"lock_token": key, "fencing_token": token + 1}).to_string();
    let stale = server.post("/v1/locks/orders/sequencer", &stale).await;
    assert_eq!(stale.code(), "not_held");
    assert_eq!(server.sight().await, before);
    server.advance(10_000).await;
    assert_eq!(ask(&server, "orders", &key).await.code(), "expired");
}

#[tokio::test]
async fn the_principal_is_signed_and_another_one_gets_nothing_for_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let closed = closed_with(&rules(), settings(&dir.path().join("sequencer.keys"))).await;
    let server = &closed.server;
    // Everybody may read the keys.
    let keys = keys(server).await;
    let send = async |by: &str, path: &str, body: String| {
        let headers = format!("Authorization: Bearer {}\r\n", token(by));
        server.send("POST", path, &headers, &body).await
    };
    let wish = json!({"client_id": "a", "lease_duration_ms": 10_000}).to_string();
    let granted = send("hold", "/v1/locks/x%2Fa/acquire", wish).await.json();
    let body = json!({"lock_token": granted["lock_token"]}).to_string();
    let path = "/v1/locks/x%2Fa/sequencer";
    let sequencer = keys
        .verify(&text(&send("hold", path, body.clone()).await))
        .unwrap();
    assert_eq!(
        sequencer.principal(),
        Some("hold"),
        "without the right to observe"
    );
    for (by, code) in [("both", "forbidden"), ("elsewhere", "forbidden")] {
        let refused = send(by, path, body.clone()).await;
        assert_eq!((refused.status, &*refused.code()), (403, code), "{by}");
    }
    let nobody = server.post(path, &body).await;
    assert_eq!(nobody.code(), "unauthenticated");
}

#[tokio::test]
async fn grpc_signs_the_same_for_the_same_callers() {
    let dir = tempfile::tempdir().unwrap();
    let closed = closed_with(&rules(), settings(&dir.path().join("sequencer.keys"))).await;
    let server = &closed.server;
    let keys = keys(server).await;
    let wish = json!({"client_id": "a", "lease_duration_ms": 10_000}).to_string();
    let headers = format!("Authorization: Bearer {}\r\n", token("hold"));
    let granted = server.send("POST", "/v1/locks/x%2Fa/acquire", &headers, &wish);
    let granted = granted.await.json();
    let key = u128::from_str_radix(granted["lock_token"].as_str().unwrap(), 16).unwrap();
    let message = |lock: &str, key: u128| SequencerRequest {
        lock: lock.to_owned(),
        lock_token: key.to_be_bytes().to_vec(),
        fencing_token: 0,
    };
    let mut client = grpc::client(server).await;
    let signed = client.sequencer(call(message("x/a", key), Some(&token("hold"))));
    match signed.await.unwrap().into_inner().outcome {
        Some(Outcome::Sequencer(signed)) => {
            let sequencer = keys.verify(&signed.sequencer).unwrap();
            assert_eq!(sequencer.lock().as_str(), "x/a");
            assert_eq!(sequencer.principal(), Some("hold"));
            assert_eq!(sequencer.token().get(), signed.fencing_token);
            assert_eq!(granted["fencing_token"], signed.fencing_token);
        }
        other => panic!("{other:?}"),
    }
    for (by, lock, key, code) in [
        (Some("both"), "x/a", key, "forbidden"),
        (Some("elsewhere"), "x/a", key, "forbidden"),
        (None, "x/a", key, "unauthenticated"),
        (Some("hold"), "x/a", key + 1, "not_held"),
        (Some("hold"), "", key, "invalid"),
    ] {
        let by = by.map(token);
        let refused = client.sequencer(call(message(lock, key), by.as_deref()));
        let refused = match refused.await {
            Ok(reply) => code_of(reply.into_inner().outcome),
            Err(status) => code_of_status(&status),
        };
        assert_eq!(refused, code, "{by:?} {lock:?}");
    }
}

#[tokio::test]
async fn a_key_is_published_before_it_signs_and_the_old_one_stays_published() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sequencer.keys");
    let server = Server::with(Wish::net(settings(&file))).await;
    let (key, _) = server.lock("orders", "a").await;
    let first = text(&ask(&server, "orders", &key).await);
    let old_set = keys(&server).await;

    let mut stored = SequencerKeys::read(&file).unwrap().unwrap();
    let new = stored.add().unwrap();
    stored.write(&file).unwrap();
    let second = text(&ask(&server, "orders", &key).await);
    assert!(old_set.verify(&second).is_ok(), "it does not sign yet");
    let published = keys(&server).await;

    stored.sign_with(&new).unwrap();
    stored.write(&file).unwrap();
    let third = text(&ask(&server, "orders", &key).await);
    assert!(matches!(old_set.verify(&third), Err(BadSequencer::UnknownKey(kid)) if kid == new));
    for sequencer in [&first, &second, &third] {
        assert!(
            published.verify(sequencer).is_ok(),
            "published before it was used"
        );
    }
    assert!(keys(&server).await.verify(&first).is_ok());

    let old = stored.list().next().unwrap().0.to_owned();
    assert!(matches!(stored.remove(&new), Err(KeyFileError::Signing(_))));
    stored.remove(&old).unwrap();
    stored.write(&file).unwrap();
    assert!(keys(&server).await.verify(&first).is_err(), "withdrawn");
    std::fs::write(&file, "{").unwrap();
    assert!(
        keys(&server).await.verify(&third).is_ok(),
        "a damaged file changes nothing"
    );
}

#[tokio::test]
async fn a_restart_keeps_the_key_and_a_restore_makes_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sequencer.keys");
    let server = Server::with(Wish::net(settings(&file))).await;
    let (key, _) = server.lock("orders", "a").await;
    let signed = text(&ask(&server, "orders", &key).await);
    drop(server);
    let server = Server::with(Wish::net(settings(&file))).await;
    assert!(keys(&server).await.verify(&signed).is_ok());
    drop(server);

    let identity = Identity {
        authority: AuthorityId::new("test-authority").unwrap(),
        incarnation: "before the restore".to_owned(),
    };
    let before = SequencerKeys::new(&identity).unwrap();
    let old = before.list().next().unwrap().0.to_owned();
    before.write(&file).unwrap();
    let server = Server::with(Wish::net(settings(&file))).await;
    let set = server.get("/.well-known/jwks.json").await.body;
    assert!(!set.contains(&old), "{set}");
    drop(server);

    let elsewhere = Identity {
        authority: AuthorityId::new("another").unwrap(),
        ..identity
    };
    SequencerKeys::new(&elsewhere)
        .unwrap()
        .write(&file)
        .unwrap();
    for (content, why) in [
        (None, "these are the keys of the authority another"),
        (Some("{}"), "it is not a file of keys"),
    ] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let mut server = Server::with(Wish::net(settings(&file))).await;
        let refused = server.ended().await.unwrap_err();
        assert!(matches!(refused, ServeError::Keys(_)), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[tokio::test]
async fn a_server_without_keys_says_so() {
    let server = Server::start().await;
    let (key, _) = server.lock("orders", "a").await;
    let changes = server.changes().await;
    for refused in [
        ask(&server, "orders", &key).await,
        server.get("/.well-known/jwks.json").await,
    ] {
        assert_eq!((refused.status, &*refused.code()), (409, "refused"));
        assert!(
            refused.message().contains("signs no sequencers"),
            "{}",
            refused.body
        );
    }
    assert_eq!(server.changes().await, changes);
}

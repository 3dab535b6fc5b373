//! JWTs at a server: the callers that it accepts, how long, and with which keys.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_access::LEEWAY;
use palisade_proto::v1::{self, request::Operation};
use palisade_server::net::Settings;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::net_access::{
    ask_session, call, code_of, http_of, open_session, plain_of, stream_of, unary_of,
};
use crate::net_audit::lines;
use crate::net_support::{Server, Wish, grpc, soon, without_hang_ups};

const RULES: &str = r#"[auth]
[[auth.issuers]]
issuer = "https://cluster"
audience = "palisade"
keys = "jwks.json"
[[auth.principals]]
name = "billing"
subjects = ["system:serviceaccount:prod:billing"]
[[auth.rules]]
principal = "billing"
prefix = "x/"
verbs = ["hold", "observe"]
"#;

/// An issuer's key; its id is `k` and the seed.
struct Key(Ed25519KeyPair, u8);

impl Key {
    fn new(seed: u8) -> Key {
        Key(
            Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            seed,
        )
    }

    fn set(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        let kid = format!("k{}", self.1);
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x}]}).to_string()
    }

    /// A token of the subject that expires so many seconds from now.
    fn sign(&self, subject: &str, expires: i64) -> String {
        let header = json!({"alg": "EdDSA", "kid": format!("k{}", self.1)});
        let claims = json!({
            "iss": "https://cluster", "aud": ["palisade"], "sub": subject,
            "exp": jiff::Timestamp::now().as_second() + expires,
        });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.0.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

const BILLING: &str = "system:serviceaccount:prod:billing";

struct Issued {
    server: Server,
    dir: TempDir,
    key: Key,
}

impl Issued {
    async fn new() -> Issued {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::new(1);
        std::fs::write(dir.path().join("access.toml"), RULES).unwrap();
        std::fs::write(dir.path().join("jwks.json"), key.set()).unwrap();
        let server = Server::with(Wish::net(Settings {
            access: Some(dir.path().join("access.toml")),
            audit: Some(dir.path().join("audit.jsonl")),
            ..Settings::default()
        }));
        Issued {
            server: server.await,
            dir,
            key,
        }
    }

    /// Puts another key set into its place, as a mount of Kubernetes does.
    fn put_keys(&self, text: &str) {
        let new: PathBuf = self.dir.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.dir.path().join("jwks.json")).unwrap();
    }
}

fn show() -> Operation {
    let lock = "x/1".to_owned();
    Operation::Show(v1::ShowRequest { lock })
}

/// The codes at each interface.
async fn codes(server: &Server, token: &str) -> [String; 4] {
    let token = Some(token);
    [
        http_of(server, ("GET", "/v1/locks/x%2F1", String::new()), token).await,
        unary_of(server, show(), token).await,
        stream_of(server, show(), token).await,
        plain_of(server, show(), token).await,
    ]
}

#[tokio::test]
async fn a_jwt_of_the_issuer_is_let_in_at_every_interface_and_another_one_at_none() {
    let issued = Issued::new().await;
    let right = issued.key.sign(BILLING, 60);
    // Twice: the second time it was verified before.
    for _ in 0..2 {
        assert_eq!(codes(&issued.server, &right).await, [""; 4]);
    }
    for wrong in [
        Key::new(2).sign(BILLING, 60),
        Key(Key::new(2).0, 1).sign(BILLING, 60),
        issued.key.sign("system:serviceaccount:prod:admin", 60),
        issued.key.sign(BILLING, -60),
        right[..right.len() - 2].to_owned(),
        format!("{right}{}", "A".repeat(7_000)),
    ] {
        let codes = codes(&issued.server, &wrong).await;
        assert_eq!(codes, ["unauthenticated"; 4], "{wrong}");
    }
    // No rule grants this one.
    let admin = ("POST", "/v1/clock/advance", r#"{"ms":1}"#.to_owned());
    assert_eq!(
        http_of(&issued.server, admin, Some(&right)).await,
        "forbidden"
    );
    let text = std::fs::read_to_string(issued.dir.path().join("audit.jsonl")).unwrap();
    let (_, signature) = right.rsplit_once('.').unwrap();
    assert!(
        !text.contains(&signature[..20]),
        "a token is in the audit file"
    );
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_a_new_token_of_the_principal_goes_on() {
    let issued = Issued::new().await;
    let leeway = i64::try_from(LEEWAY).unwrap();
    // Valid for two more seconds, by the machine's clock.
    let short = issued.key.sign(BILLING, 2 - leeway);
    let long = issued.key.sign(BILLING, 3_600);
    let mut session = open_session(&issued.server, Some(&short)).await;
    let acquire = Operation::Acquire(grpc::acquire("x/1", "c", 0));
    let held = grpc::granted(ask_session(&mut session, acquire).await);
    let mut client = grpc::client(&issued.server).await;
    let watch = v1::WatchRequest {
        prefix: "x/".to_owned(),
        after_revision: None,
    };
    let mut watch = client
        .watch(call(watch, Some(&*short)))
        .await
        .unwrap()
        .into_inner();
    let renew = || {
        Operation::Renew(v1::RenewRequest {
            lock: "x/1".to_owned(),
            lock_token: held.lock_token.clone(),
            ..v1::RenewRequest::default()
        })
    };
    let refused = soon(async {
        loop {
            let answer = ask_session(&mut session, renew()).await;
            if !code_of(answer.clone()).is_empty() {
                return grpc::error(answer);
            }
        }
    })
    .await;
    assert_eq!(refused.code, "unauthenticated");
    assert!(
        refused.message.contains("the JWT expired at 2"),
        "{}",
        refused.message
    );
    assert_eq!(codes(&issued.server, &short).await, ["unauthenticated"; 4]);
    // The lease belongs to the principal.
    let mut next = open_session(&issued.server, Some(&long)).await;
    assert_eq!(code_of(ask_session(&mut next, renew()).await), "");
    // The watch shows no later events.
    let release = Operation::Release(grpc::release("x/1", &held.lock_token));
    assert_eq!(code_of(ask_session(&mut next, release).await), "");
    while let Some(event) = soon(watch.message()).await.unwrap() {
        let ended = matches!(event.change, Some(v1::event::Change::Ended(_)));
        assert!(!ended, "{event:?}");
    }
}

#[tokio::test]
async fn new_keys_are_taken_without_a_signal_and_a_bad_set_leaves_the_old_ones() {
    let _no_signal = without_hang_ups().await;
    let issued = Issued::new().await;
    let old = issued.key.sign(BILLING, 60);
    let mut session = open_session(&issued.server, Some(&old)).await;
    assert_eq!(code_of(ask_session(&mut session, show()).await), "");
    let audit = issued.dir.path().join("audit.jsonl");
    let last = |lines: &[Value], taken: bool| {
        let last = lines.iter().rfind(|line| line["event"] == "keys");
        last.filter(|last| last["taken"] == taken).cloned()
    };
    issued.put_keys("{}");
    let refused = lines(&audit, |lines| last(lines, false).is_some()).await;
    let refused = last(&refused, false).unwrap();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("jwks.json"), "{message}");
    assert_eq!(codes(&issued.server, &old).await, [""; 4]);

    let new = Key::new(2);
    issued.put_keys(&new.set());
    lines(&audit, |lines| last(lines, true).is_some()).await;
    soon(async { while codes(&issued.server, &new.sign(BILLING, 60)).await != [""; 4] {} }).await;
    // The old key is withdrawn, also for open sessions and for tokens that were verified
    // before.
    assert_eq!(codes(&issued.server, &old).await, ["unauthenticated"; 4]);
    let answer = ask_session(&mut session, show()).await;
    assert_eq!(code_of(answer), "unauthenticated");
}

//! The fence's answers to sequences of requests.

use http::HeaderValue;
use palisade_fence::http::{Policy, Tokenless};

use super::support::{Slow, call, fenced, request, send};

#[tokio::test]
async fn a_late_write_is_412_with_the_highest_and_never_reaches_the_service() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    assert_eq!(send(&service, "PUT", "/r", 34).await.status, 200);
    assert_eq!(send(&service, "PUT", "/r", 35).await.status, 200);
    let (status, code, error) = send(&service, "PUT", "/r", 34).await.refusal();
    assert_eq!((status, code.as_str()), (412, "stale"));
    assert_eq!(error["highest"], 35);
    assert_eq!(slow.effects(), ["PUT /r 34", "PUT /r 35"]);
    // Tokens are tracked per resource.
    assert_eq!(send(&service, "PUT", "/s", 1).await.status, 200);
}

#[tokio::test]
async fn a_read_with_a_token_claims_and_a_stale_one_is_refused() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    assert_eq!(send(&service, "GET", "/r", 2).await.status, 200);
    assert_eq!(
        send(&service, "POST", "/r", 1).await.code(),
        (412, "stale".into())
    );
    assert_eq!(send(&service, "HEAD", "/r", 1).await.status, 412);
    assert_eq!(
        send(&service, "GET", "/r", 1).await.code(),
        (412, "stale".into())
    );
    // An observer's read stays possible.
    assert_eq!(call(&service, request("GET", "/r", &[])).await.text, "done");
    assert_eq!(slow.effects(), ["GET /r 2", "GET /r -"]);
}

#[tokio::test]
async fn a_claim_is_answered_by_the_fence_alone() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    let claim = |token| {
        let headers = [("x-fencing-token", token), ("x-fencing-operation", "claim")];
        request("POST", "/r", &headers)
    };
    let claimed = call(&service, claim("7")).await;
    assert_eq!(claimed.text, r#"{"error":null,"highest":7,"success":true}"#);
    assert_eq!(
        send(&service, "PUT", "/r", 6).await.code(),
        (412, "stale".into())
    );
    assert_eq!(
        call(&service, claim("6")).await.code(),
        (412, "stale".into())
    );
    assert!(slow.effects().is_empty());
}

#[tokio::test]
async fn a_write_without_a_token_is_428() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    for method in ["PUT", "POST", "PATCH", "DELETE", "BREW"] {
        let reply = call(&service, request(method, "/r", &[])).await;
        assert_eq!(reply.code(), (428, "tokenless".into()), "{method}");
    }
    let later = Policy {
        tokenless: Tokenless::UntilFenced,
        ..Policy::default()
    };
    let service = fenced(slow.clone(), later);
    assert_eq!(call(&service, request("PUT", "/r", &[])).await.status, 200);
    assert_eq!(send(&service, "GET", "/r", 3).await.status, 200);
    let (status, code, error) = call(&service, request("PUT", "/r", &[])).await.refusal();
    assert_eq!((status, code.as_str()), (428, "tokenless"));
    assert_eq!(error["highest"], 3);
    assert_eq!(slow.effects(), ["PUT /r -", "GET /r 3"]);
}

#[tokio::test]
async fn a_bad_header_is_named_with_its_range_and_changes_nothing() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    let token = |text| [("x-fencing-token", text), ("host", "x")];
    for text in [
        "",
        "0",
        "-1",
        "+5",
        " 5",
        "5 5",
        "5.0",
        "0x5",
        "1e3",
        "five",
        "9007199254740992",
        "99999999999999999999999",
        "5,6",
    ] {
        let Ok(value) = HeaderValue::from_str(text) else {
            panic!("{text}")
        };
        let mut bad = request("PUT", "/r", &[]);
        bad.headers_mut().insert("x-fencing-token", value);
        let (status, code, error) = call(&service, bad).await.refusal();
        let message = error["message"].as_str().unwrap();
        assert_eq!((status, code.as_str()), (400, "invalid"), "{text}");
        assert!(message.contains("x-fencing-token"), "{message}");
        assert!(message.contains("1 ..= 9007199254740991"), "{message}");
    }
    let five = token("5");
    for (more, named) in [
        (("x-fencing-token", "6"), "x-fencing-token appears twice"),
        (("x-fencing-sequence", "-1"), "x-fencing-sequence must be"),
        (
            ("x-fencing-sequence", "9007199254740992"),
            "0 ..= 9007199254740991",
        ),
        (("x-fencing-lock", ""), "x-fencing-lock: "),
        (("x-fencing-authority", ""), "x-fencing-authority: "),
        (
            ("x-fencing-operation", "write"),
            "x-fencing-operation must be claim",
        ),
    ] {
        let reply = call(&service, request("PUT", "/r", &[five[0], more])).await;
        let (status, _, error) = reply.refusal();
        let message = error["message"].as_str().unwrap();
        assert_eq!(status, 400, "{message}");
        assert!(message.contains(named), "{message}");
    }
    for (name, value) in [
        ("x-fencing-sequence", "1"),
        ("x-fencing-lock", "l"),
        ("x-fencing-authority", "a"),
        ("x-fencing-operation", "claim"),
    ] {
        let reply = call(&service, request("PUT", "/r", &[(name, value)])).await;
        assert_eq!(
            reply.code(),
            (400, "invalid".into()),
            "{name} without a token"
        );
    }
    let mut bytes = request("PUT", "/r", &[]);
    let raw = HeaderValue::from_bytes(b"\xff5").unwrap();
    bytes.headers_mut().insert("x-fencing-token", raw);
    assert_eq!(call(&service, bytes).await.code(), (400, "invalid".into()));
    let numbered_read = [five[0], ("x-fencing-sequence", "1")];
    let reply = call(&service, request("GET", "/r", &numbered_read)).await;
    assert_eq!(reply.code(), (400, "invalid".into()));
    // A token at an address where it would not be checked.
    assert_eq!(
        send(&service, "PUT", "/open", 5).await.code(),
        (400, "invalid".into())
    );
    assert!(slow.effects().is_empty());
    // None of them raised the fence.
    assert_eq!(send(&service, "PUT", "/r", 1).await.status, 200);
}

#[tokio::test]
async fn a_request_to_an_unfenced_address_passes() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    assert_eq!(
        call(&service, request("PUT", "/open", &[])).await.status,
        200
    );
    assert_eq!(slow.effects(), ["PUT /open -"]);
}

#[tokio::test]
async fn a_token_of_another_authority_or_lock_is_an_error() {
    let service = fenced(Slow::quick(), Policy::default());
    let named = |authority, lock| {
        let headers = [
            ("x-fencing-token", "5"),
            ("x-fencing-authority", authority),
            ("x-fencing-lock", lock),
        ];
        request("PUT", "/r", &headers)
    };
    assert_eq!(call(&service, named("a", "l")).await.status, 200);
    let (status, code, error) = call(&service, named("b", "l")).await.refusal();
    assert_eq!((status, code.as_str()), (409, "wrong_authority"));
    assert_eq!(error["authority"], "a");
    let reply = call(&service, named("a", "m")).await;
    assert_eq!(reply.code(), (409, "wrong_lock".into()));
    assert_eq!(
        send(&service, "PUT", "/r", 6).await.code(),
        (409, "wrong_authority".into())
    );
}

#[tokio::test]
async fn a_numbered_write_reaches_the_service_once() {
    let slow = Slow::quick();
    let service = fenced(slow.clone(), Policy::default());
    let numbered = |path, sequence| {
        let headers = [("x-fencing-token", "5"), ("x-fencing-sequence", sequence)];
        request("POST", path, &headers)
    };
    let first = call(&service, numbered("/r/created", "2")).await;
    assert_eq!((first.status, first.text.as_str()), (201, "done"));
    let again = call(&service, numbered("/r/created", "2")).await;
    assert_eq!(again.status, 201);
    assert_eq!(again.headers["x-fencing-repeat"], "true");
    let lower = call(&service, numbered("/r/created", "1")).await;
    assert_eq!(lower.code(), (412, "sequence_stale".into()));
    let other = call(&service, numbered("/r/other", "2")).await;
    assert_eq!(other.code(), (409, "sequence_reused".into()));
    assert_eq!(call(&service, numbered("/r/other", "9")).await.status, 200);
    assert_eq!(slow.effects(), ["POST /r/created 5", "POST /r/other 5"]);
}

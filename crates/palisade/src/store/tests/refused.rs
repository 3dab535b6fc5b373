//! Which requests are refused, with which code, and that they change nothing.

use axum::response::IntoResponse as _;

use super::*;

/// Each row replaces one field; the message must contain the word.
#[tokio::test]
async fn every_bad_input_is_named_and_changes_nothing() {
    let served = Served::start().await;
    let good = json!({"resource_id": "r", "fencing_token": 7, "authority": "a", "sequence": 1,
        "write_payload": {"file_path": "/f", "mutation_type": "PUT", "bytes": "eA=="}});
    let long = "x".repeat(256);
    let long_path = format!("/{}", "x".repeat(1_024));
    let cases = [
        ("/resource_id", json!(""), "resource_id"),
        ("/resource_id", json!(long), "resource_id"),
        ("/resource_id", json!("é"), "resource_id"),
        ("/resource_id", json!(5), "resource_id"),
        ("/resource_id", Value::Null, "resource_id"),
        ("/fencing_token", json!(0), "fencing_token"),
        ("/fencing_token", json!(-1), "fencing_token"),
        ("/fencing_token", json!(1_u64 << 53), "fencing_token"),
        ("/fencing_token", json!("7"), "fencing_token"),
        ("/fencing_token", json!(1e30), "fencing_token"),
        ("/fencing_token", json!(1.5), "fencing_token"),
        ("/fencing_token", json!([7]), "fencing_token"),
        ("/authority", json!(""), "authority"),
        ("/authority", json!("a\n"), "authority"),
        ("/authority", json!(1), "authority"),
        ("/sequence", json!(-1), "sequence"),
        ("/sequence", json!(1_u64 << 53), "sequence"),
        ("/sequence", json!("1"), "sequence"),
        ("/write_payload", Value::Null, "write_payload"),
        ("/write_payload", json!("x"), "write_payload"),
        ("/write_payload/file_path", json!("f"), "file_path"),
        ("/write_payload/file_path", json!(""), "file_path"),
        ("/write_payload/file_path", json!("/../x"), "file_path"),
        ("/write_payload/file_path", json!("/a//b"), "file_path"),
        ("/write_payload/file_path", json!("/a\u{7}"), "file_path"),
        ("/write_payload/file_path", json!(long_path), "file_path"),
        (
            "/write_payload/mutation_type",
            json!("put"),
            "mutation_type",
        ),
        (
            "/write_payload/mutation_type",
            json!("MOVE"),
            "mutation_type",
        ),
        ("/write_payload/mutation_type", json!("DELETE"), "bytes"),
        ("/write_payload/bytes", json!("eA="), "bytes"),
        ("/write_payload/bytes", json!("!!!!"), "bytes"),
        ("/write_payload/bytes", json!(120), "bytes"),
        ("/write_payload/bytes", Value::Null, "bytes"),
    ];
    for (at, bad, word) in cases {
        let mut body = good.clone();
        *body.pointer_mut(at).unwrap() = bad.clone();
        let reply = served.post("/v1/storage/write", &body.to_string()).await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{at} = {bad}");
        assert!(
            reply.text().contains(word),
            "{at} = {bad}: {}",
            reply.text()
        );
    }
    for (body, word) in [
        (
            r#"{"resource_id":"r","fencing_token":1,"fence_token":2}"#,
            "fence_token",
        ),
        (
            r#"{"resource_id":"r","fencing_token":1,"fencing_token":2}"#,
            "fencing_token appears twice",
        ),
        (
            r#"{"resource_id":"r","fencing_token":1,"write_payload":{}}"#,
            "write_payload",
        ),
        (r#"{"resource_id":"r","fencing_token":1"#, "EOF"),
        (
            r#"{"resource_id":"r","fencing_token":1,"write_payload":{"bytes":"eA==","bytes":"eQ=="}}"#,
            "bytes appears twice",
        ),
        (
            r#"{"resource_id":"r","fencing_token":9007199254740993.0}"#,
            "fencing_token",
        ),
        (
            r#"{"resource_id":"r","fencing_token":-0.5}"#,
            "fencing_token",
        ),
        ("[]", "object"),
        (r#"["r",1]"#, "object"),
        ("7", "object"),
        ("", "empty"),
    ] {
        let reply = served.post("/v1/storage/claim", body).await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{body}");
        assert!(reply.text().contains(word), "{body}: {}", reply.text());
    }
    let misspelt = r#"{"resource_id":"r","fencing_token":1,"write_payload":
        {"file_path":"/f","mutation_type":"PUT","bytes":"","mode":1}}"#;
    let reply = served.post("/v1/storage/write", misspelt).await;
    assert!(
        reply.text().contains("unknown field write_payload.mode"),
        "{}",
        reply.text()
    );
    let shown = served.get("/v1/storage/r", "").await.json();
    assert_eq!(
        (&shown["highest"], &shown["objects"]),
        (&Value::Null, &json!(0))
    );
    assert_eq!(
        served.get("/v1/storage", "").await.json()["resources"],
        json!([])
    );
    served.stop().await;
}

#[tokio::test]
async fn every_wrong_request_gets_json() {
    let served = Served::start().await;
    for path in [
        "/",
        "/v1/storage/r/files",
        "/v1/storage/r/x",
        "/v2",
        "/v1/storage/",
    ] {
        assert_eq!(
            served.get(path, "").await.refusal(),
            (404, "not_found".to_owned()),
            "{path}"
        );
    }
    let reply = served.post("/v1/storage/r", "{}").await;
    assert_eq!(reply.refusal(), (405, "method_not_allowed".to_owned()));
    assert!(reply.header("allow").unwrap().contains("GET"));
    // `write` and `claim` are paths when posted to, and names of resources when read.
    assert_eq!(served.post("/healthz", "").await.refusal().0, 405);
    let form = b"POST /v1/storage/claim HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        content-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(
        served.send(form).await.refusal(),
        (415, "unsupported_media_type".to_owned())
    );
    for (query, word) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("max=3", "max"),
    ] {
        let reply = served.get(&format!("/v1/storage?{query}"), "").await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{query}");
        assert!(reply.text().contains(word), "{}", reply.text());
    }
    served.stop().await;
}

#[tokio::test]
async fn bodies_and_stores_have_limits() {
    let served = Served::start().await;
    let reply = served
        .write(1, "PUT", &"x".repeat((1 << 20) + 1), json!({}))
        .await;
    assert_eq!(reply.refusal(), (413, "too_large".to_owned()));
    assert_eq!(reply.json()["error"]["max_bytes"], json!(1 << 20));
    let huge = b"POST /v1/storage/write HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        content-length: 99999999999\r\n\r\n";
    assert_eq!(
        served.send(huge).await.refusal(),
        (413, "too_large".to_owned())
    );
    assert_eq!(
        served.get("/v1/storage/r", "").await.json()["highest"],
        Value::Null
    );

    let object = "x".repeat(1 << 20);
    assert_eq!(served.write(1, "PUT", &object, json!({})).await.status, 200);
    let second = json!({"write_payload": {"file_path": "/g", "mutation_type": "PUT",
        "bytes": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, object)}});
    let full = served.write(2, "PUT", "", second).await;
    assert_eq!(full.refusal(), (507, "storage_full".to_owned()));
    assert!(full.text().contains("total_bytes"), "{}", full.text());
    assert_eq!(
        served.get("/v1/storage/r", "").await.json()["highest"],
        json!(1)
    );
    served.stop().await;
}

#[tokio::test]
async fn a_slow_request_is_ended() {
    let quick = Duration::from_millis(100);
    let bounds = shell::Settings {
        head_timeout: quick,
        body_timeout: quick,
        ..bounds()
    };
    let served = Served::with(tempfile::tempdir().unwrap(), &settings(), bounds).await;
    let body = b"POST /v1/storage/claim HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        content-length: 10\r\n\r\n{";
    assert_eq!(
        served.send(body).await.refusal(),
        (408, "request_timeout".to_owned())
    );
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /healthz HT").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest));
    assert!(ended.await.is_ok(), "the connection was kept");
    served.stop().await;
}

#[tokio::test]
async fn an_ambiguous_address_is_refused() {
    let served = Served::start().await;
    for (path, word) in [
        ("/v1/storage/%zz", "%zz"),
        ("/v1/storage/a%", "%25"),
        ("/v1/storage/r/files/%2", "%25"),
        ("/v1/storage?prefix=%zz", "%zz"),
        ("/v1/storage?prefixes=a", "prefixes"),
        ("/v1/storage?prefix=a&prefix=b", "prefix"),
        ("/v1/storage/r?limit=1", "no parameters"),
        ("/v1/storage/r/files/f?x", "no parameters"),
    ] {
        let reply = served.get(path, "").await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{path}");
        assert!(reply.text().contains(word), "{path}: {}", reply.text());
    }
    let claim = r#"{"resource_id":"r","fencing_token":7}"#;
    let reply = served.post("/v1/storage/claim?x=1", claim).await;
    assert_eq!(reply.refusal(), (400, "invalid".to_owned()));
    for token in ["7.0", "7e0", "70e-1"] {
        let claim = format!(r#"{{"resource_id":"r","fencing_token":{token}}}"#);
        let reply = served.post("/v1/storage/claim", &claim).await;
        assert_eq!(reply.json()["highest"], 7, "{token}");
    }
    served.stop().await;
}

/// Including refusals that happen before a fence decides (rule F13).
#[tokio::test]
async fn every_refusal_is_counted() {
    let served = Served::start().await;
    for _ in 0..6 {
        let reply = served
            .post("/v1/storage/claim", r#"{"resource_id":"r"}"#)
            .await;
        assert_eq!(reply.refusal(), (428, "tokenless".to_owned()));
    }
    served.post("/v1/storage/claim", "{}").await;
    served.get("/v1/storage/%zz", "").await;
    served
        .get("/v1/storage/r/files/f", "X-Fencing-Token: five\r\n")
        .await;
    served.get("/v1/storage/claim", "").await;
    // A missing object is not a refusal.
    served.get("/v1/storage/r/files/f", "").await;
    let metrics = served.get("/metrics", "").await.text();
    for (reason, count) in [
        ("tokenless", 6),
        ("invalid", 3),
        ("method_not_allowed", 1),
        ("stale", 0),
    ] {
        let line = format!("palisade_store_rejected_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    served.stop().await;
}

/// The table contains every code of fences, store and gateway, with its status.
#[test]
fn every_code_is_in_the_table() {
    use palisade_proto::Code;
    use palisade_proto::codes::CodeRow;

    let described: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
    let error = "/components/responses/Refused/content/application~1json/schema/properties/error";
    let codes = described
        .pointer(&format!("{error}/properties/code/enum"))
        .unwrap();
    for code in codes.as_array().unwrap() {
        assert!(Code::from_name(code.as_str().unwrap()).is_some(), "{code}");
    }
    let token = palisade_core::Token::new(1).unwrap();
    let highest = Some(token);
    for reject in [
        palisade_fence::Reject::Stale {
            presented: token,
            highest: token,
        },
        palisade_fence::Reject::Jump { highest, bound: 1 },
        palisade_fence::Reject::Tokenless { highest: token },
        palisade_fence::Reject::AlreadyWritten,
        palisade_fence::Reject::Missing,
    ] {
        let (code, response) = (reject.code(), Problem::from(reject).into_response());
        assert_eq!(CodeRow::of(code).http, response.status(), "{code}");
    }
}

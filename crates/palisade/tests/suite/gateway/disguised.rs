//! Writes disguised as reads or hidden in other requests (rule F11): none gets past the gateway without a token.
//! A real service executes each of them when it is sent there directly.

use palisade_testbed::LenientUpstream;

use super::support::{Caller, Gateway, exchange, until_async, writes};

/// Requests that write to account 7, or try to.
fn disguised() -> Vec<(&'static str, String)> {
    let hidden = "PUT /accounts/7 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nstale";
    let length = hidden.len();
    let with_body = |method: &str| {
        format!(
            "{method} /accounts/8 HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{hidden}"
        )
    };
    let with_header = |header: &str| {
        format!("GET /accounts/7 HTTP/1.1\r\nHost: x\r\n{header}: PUT\r\nConnection: close\r\n\r\n")
    };
    vec![
        ("body of GET", with_body("GET")),
        ("body of HEAD", with_body("HEAD")),
        ("body of OPTIONS", with_body("OPTIONS")),
        ("override", with_header("X-HTTP-Method-Override")),
        (
            "override in capitals",
            with_header("X-HTTP-METHOD-OVERRIDE"),
        ),
        (
            "_method",
            "GET /accounts/7?_method=PUT HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                .to_owned(),
        ),
        (
            "_method, encoded",
            "GET /accounts/7?a=b&%5Fmethod=PUT HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                .to_owned(),
        ),
    ]
}

async fn hits(url: &str) -> usize {
    writes(url).await.iter().filter(|(id, _)| *id == 7).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_writes_passes_as_a_read() {
    let upstream = LenientUpstream::start("urlparse");
    let url = upstream.url();
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(
        &url,
        dir.path(),
        &["--route", "/accounts/{id:uint}=account:{id}"],
    );
    for (what, request) in disguised() {
        let before = hits(&url).await;
        let (answer, _open) = exchange(&gateway.url, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{what}: {answer}");
        assert_eq!(hits(&url).await, before, "{what}");
        // Control: the service itself executes it.
        let (_, _open) = exchange(&url, request.as_bytes()).await;
        until_async(what, async || hits(&url).await == before + 1).await;
    }
    let caller = Caller::of(&gateway.url);
    for method in ["TRACE", "CONNECT"] {
        let request =
            format!("{method} /accounts/7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (answer, _) = exchange(&gateway.url, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    for (name, value) in [
        ("x-http-method", "GET"),
        ("x-method-override", "PUT"),
        ("x-original-url", "/accounts/7"),
        ("x-rewrite-url", "/accounts/7"),
        ("x_fencing_token", "9"),
        ("SCRIPT_NAME", "/drafts"),
        ("X_Forwarded_For", "1.2.3.4"),
    ] {
        let headers = [("x-fencing-token", "5"), (name, value)];
        let reply = caller.call("PUT", "/accounts/8", &headers, "").await;
        assert_eq!(reply.code(), (400, "invalid".into()), "{name}");
    }
    for body in [
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        for method in ["GET", "PUT"] {
            let request =
                format!("{method} /accounts/8 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{body}");
            let (answer, _) = exchange(&gateway.url, request.as_bytes()).await;
            // Of two lengths the gateway's server uses the chunks, and the upstream gets one length.
            let expected = if method == "GET" { "400" } else { "428" };
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {expected} ")),
                "{request}: {answer}"
            );
        }
    }
    let absolute = "PUT http://elsewhere/accounts/7 HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (answer, _) = exchange(&gateway.url, absolute.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 428 "), "{answer}");
    assert_eq!(caller.observe("/accounts/8?method=PUT").await.status, 200);
}

/// A holder of account 8 hides a write to account 7 in a body that the service does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_the_service_does_not_read_is_not_taken_for_a_request() {
    let upstream = LenientUpstream::start("urlparse");
    let url = upstream.url();
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(
        &url,
        dir.path(),
        &["--route", "/accounts/{id:uint}=account:{id}"],
    );
    let hidden = "PUT /accounts/7 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nstale";
    for (through, stale) in [(&gateway.url, 0), (&url, 1)] {
        let caller = Caller::of(through);
        let headers = [("x-fencing-token", "5")];
        let unread = caller
            .call("PUT", "/accounts/8/unread", &headers, hidden)
            .await;
        assert_eq!(unread.status, 200);
        if stale > 0 {
            until_async("the hidden write", async || hits(&url).await == stale).await;
        }
        assert_eq!(hits(&url).await, stale, "{through}");
    }
}

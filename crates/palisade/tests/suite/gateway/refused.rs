//! Refused command lines, directories and requests.

use std::process::Output;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{Caller, Gateway, command, palisade, stderr};
use super::upstream::Upstream;

fn refused(settings: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = palisade();
    command.args([
        "gateway",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--data",
    ]);
    let output = command
        .arg(dir.path().join("d"))
        .args(settings)
        .output()
        .unwrap();
    assert!(
        !dir.path().join("d").exists(),
        "nothing was made: {settings:?}"
    );
    output
}

#[test]
fn a_usage_error_names_its_cause() {
    let good = "http://127.0.0.1:9";
    for (settings, named) in [
        (&[][..], "--upstream"),
        (&["--upstream", "127.0.0.1:9"], "http://HOST"),
        (&["--upstream", "ftp://x"], "https://HOST"),
        (&["--upstream", "http://u@x"], "user"),
        (&["--upstream", "http://x/?q"], "query"),
        (
            &["--upstream", good, "--upstream-ca-file", "ca.pem"],
            "a CA is for an upstream with TLS",
        ),
        (&["--upstream", good, "--route", "/a"], "PREFIX=RESOURCE"),
        (&["--upstream", good, "--route", "a=b"], "start with '/'"),
        (&["--upstream", good, "--route", "/{id}={other}"], "{other}"),
        (
            &["--upstream", good, "--route", "/a=b", "--route", "/a=c"],
            "appears twice",
        ),
        (&["--upstream", good, "--wait", "10"], "needs a unit"),
        (&["--upstream", good, "--wait", "-1s"], "negative"),
        (
            &["--upstream", good, "--wait", "25h"],
            "not between 0s and 24h",
        ),
        (&["--upstream", good, "--settle", "25h"], "settle"),
        (
            &["--upstream", good, "--answer-timeout", "0"],
            "not between 1ms and 24h",
        ),
        (
            &["--upstream", good, "--write-timeout", "0"],
            "not between 1ms and 24h",
        ),
        (
            &["--upstream", good, "--request-timeout", "25h"],
            "not between 1ms and 24h",
        ),
        (&["--upstream", good, "--request-bytes", "0"], "in 1 to "),
        (
            &["--upstream", good, "--held-bytes", "1000"],
            "--request-bytes = 16777216 is not between 1 and 1000",
        ),
        (
            &["--upstream", good, "--max-jump", "0"],
            "1 to 9007199254740991",
        ),
        (
            &["--upstream", good, "--max-jump", "9007199254740992"],
            "1 to 9007199254740991",
        ),
        (&["--upstream", good, "--route", "/a/{id:number}=x"], "uuid"),
        (&["--upstream", good, "--fence", "none"], "claim"),
        (&["--upstream", good, "--listen", "nowhere"], "--listen"),
    ] {
        let output = refused(settings);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{settings:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(named),
            "{settings:?}: {}",
            stderr(&output)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_belongs_to_one_gateway_and_is_not_copied() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let gateway = Gateway::start(&url, &data, &[]);
    assert_eq!(Caller::of(&gateway.url).put("/a", 5, "x").await.status, 404);
    let lost = command(&url, &dir.path().join("lost"))
        .arg("--expect-marks")
        .output();
    let lost = lost.unwrap();
    assert_eq!(lost.status.code(), Some(125), "{}", stderr(&lost));
    assert!(stderr(&lost).contains("no marks here"), "{}", stderr(&lost));
    let second = command(&url, &data).output().unwrap();
    assert_eq!(second.status.code(), Some(125), "{}", stderr(&second));
    gateway.stop().await;
    let cp = std::process::Command::new("cp")
        .arg("-r")
        .arg(&data)
        .arg(&copy)
        .status();
    assert!(cp.unwrap().success());
    let copied = command(&url, &copy).output().unwrap();
    assert_eq!(copied.status.code(), Some(125), "{}", stderr(&copied));
    let other = command(&url, &data)
        .args(["--fence", "textbook"])
        .output()
        .unwrap();
    assert!(
        stderr(&other).contains("cannot be opened with"),
        "{}",
        stderr(&other)
    );
    let gateway = Gateway::start(&url, &data, &["--expect-marks"]);
    assert_eq!(Caller::of(&gateway.url).put("/a", 4, "x").await.status, 412);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_request_is_not_forwarded_and_raises_nothing() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let routes = ["--route", "/accounts/{id}=account:{id}"];
    let gateway = Gateway::start(&url, dir.path(), &routes);
    let caller = Caller::of(&gateway.url);
    for (path, headers, expected) in [
        ("/accounts/a", &[][..], (428, "tokenless")),
        ("/accounts/a", &[("x-fencing-token", "0")], (400, "invalid")),
        (
            "/accounts/a",
            &[("x-fencing-token", "9007199254740992")],
            (400, "invalid"),
        ),
        (
            "/accounts/a",
            &[("x-fencing-token", "9007199254740991")],
            (409, "jump"),
        ),
        (
            "/accounts/a",
            &[("x-fencing-sequence", "1")],
            (400, "invalid"),
        ),
        (
            "/accounts//a",
            &[("x-fencing-token", "5")],
            (400, "invalid"),
        ),
        (
            "/accounts/x/../a",
            &[("x-fencing-token", "5")],
            (400, "invalid"),
        ),
        (
            "/accounts/x%2Fa",
            &[("x-fencing-token", "5")],
            (400, "invalid"),
        ),
        ("/other", &[("x-fencing-token", "5")], (404, "no_route")),
        ("/other", &[], (404, "no_route")),
    ] {
        let reply = caller.call("PUT", path, headers, "bad").await;
        let expected = (expected.0, expected.1.to_owned());
        assert_eq!(reply.code(), expected, "{path} {headers:?}");
    }
    assert_eq!(upstream.value("a"), None);
    let fences = Caller::of(&gateway.admin)
        .observe("/v1/fences")
        .await
        .json();
    assert_eq!(fences["fences"].as_array().unwrap().len(), 0, "{fences}");
    assert_eq!(caller.put("/accounts/a", 1, "good").await.status, 200);
}

/// Bytes that are not a request end their connection and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_do_no_harm() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let address = gateway.url.trim_start_matches("http://");
    let long = format!(
        "PUT /a HTTP/1.1\r\nhost: x\r\nx-fencing-token: {}\r\n\r\n",
        "1".repeat(64 << 10)
    );
    for noise in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"PUT\r\n\r\n",
        b"PUT /a HTTP/9.9\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\nx-fencing-token: 1\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\nx-fencing-token: 1\r\n\r\n12345",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\nx-fencing-token: 1\r\nconnection: close\r\n\r\n",
        b"PUT * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        long.as_bytes(),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(noise).await;
        let _ = stream.shutdown().await;
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply).await;
        let status = String::from_utf8_lossy(&reply).split(' ').nth(1).map(str::to_owned);
        assert!(
            status.as_deref().is_none_or(|status| status.starts_with('4')),
            "{:?}: {status:?}",
            String::from_utf8_lossy(&noise[..noise.len().min(60)])
        );
    }
    let caller = Caller::of(&gateway.url);
    assert_eq!(caller.put("/accounts/a", 2, "alive").await.status, 200);
}

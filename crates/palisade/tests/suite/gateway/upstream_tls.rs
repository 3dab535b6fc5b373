//! An upstream that speaks TLS. The control is the gateway that does not know the upstream's CA.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use super::support::{Gateway, palisade, started};
use crate::common::{json, status, text};

fn get(gateway: &Gateway, path: &str) -> String {
    let address = gateway.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_upstream_with_tls_is_reached_and_its_certificate_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let made = palisade()
        .args(["auth", "cert", "--json", "127.0.0.1", "--dir"])
        .arg(path("ca"))
        .output()
        .unwrap();
    assert_eq!(status(&made), 0, "{}", text(&made.stderr));
    let made = json(&made.stdout);
    let mut store = palisade()
        .args(["store", "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(path("store"))
        .args(["--tls-cert", made["certificate"].as_str().unwrap()])
        .args(["--tls-key", made["key"].as_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let upstream = started(&mut store)["url"].as_str().unwrap().to_owned();
    assert!(upstream.starts_with("https://"), "{upstream}");
    let ca = made["ca"].as_str().unwrap();
    let trusting = Gateway::start(&upstream, &path("a"), &["--upstream-ca-file", ca]);
    let answer = get(&trusting, "/healthz");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stranger = Gateway::start(&upstream, &path("b"), &[]);
    let answer = get(&stranger, "/healthz");
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(answer.contains("nothing was sent"), "{answer}");
    store.kill().unwrap();
    store.wait().unwrap();
}

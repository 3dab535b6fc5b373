//! A stolen log or backup is useless: the server accepts no key from it (rule I9).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use palisade_pipeline::MARK;
use palisade_server::net::LOCK_TOKEN_FILE;
use serde_json::{Value, json};

use crate::common::{Server, palisade, text};

/// The status and the body of a request.
fn ask(address: &str, path: &str, body: &Value) -> (u16, Value) {
    let (mut stream, body) = (TcpStream::connect(address).unwrap(), body.to_string());
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn acquire(server: &Server, request: &str) -> String {
    let body = json!({"client_id": "a", "request_id": request, "lease_duration_ms": 600_000});
    let (status, granted) = ask(server.address(), "/v1/locks/orders/acquire", &body);
    assert_eq!(status, 200, "{granted}");
    granted["lock_token"].as_str().unwrap().to_owned()
}

fn renew(server: &Server, token: &str) -> u16 {
    let body = json!({"lock_token": token});
    ask(server.address(), "/v1/locks/orders/renew", &body).0
}

/// Everything in a directory but the file with the key.
fn contents(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => all.extend(contents(&entry.path())),
            _ if entry.file_name() == LOCK_TOKEN_FILE => {}
            _ => all.extend(fs::read(entry.path()).unwrap()),
        }
    }
    all
}

fn has(contents: &[u8], hex: &str) -> bool {
    let bytes = u128::from_str_radix(hex, 16).unwrap().to_be_bytes();
    contents.windows(16).any(|window| window == bytes)
}

/// The keys of leases that are in these bytes.
fn keys(contents: &[u8]) -> Vec<String> {
    let marked = contents
        .windows(16)
        .filter(|window| window.starts_with(&MARK));
    let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect();
    marked.map(hex).collect()
}

const REQUEST: &str = "00112233445566778899aabbccddeeff";

#[test]
fn what_a_log_and_a_backup_contain_lets_nobody_act() {
    let mut server = Server::start();
    let token = acquire(&server, REQUEST);
    let backup = server.file("backup");
    let made = server
        .palisade(&["backup", "--data", "data"])
        .arg(&backup)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    for dir in [server.file("data"), backup.clone()] {
        let contents = contents(&dir);
        assert!(contents.windows(6).any(|window| window == b"orders"));
        assert!(!has(&contents, &token) && !has(&contents, REQUEST));
        let keys = keys(&contents);
        assert!(!keys.is_empty(), "the lease is in it");
        for key in keys {
            assert_eq!(renew(&server, &key), 409, "{key}");
        }
    }
    assert!(!backup.join(LOCK_TOKEN_FILE).exists());

    // The holder acts, and a repeated request gets its answer, also after a restart.
    assert_eq!(renew(&server, &token), 200);
    server.kill();
    server.restart();
    assert_eq!(renew(&server, &token), 200);
    assert_eq!(acquire(&server, REQUEST), token);

    // A restored authority knows its holders with the file of the old one, and without it does not.
    for with_file in [false, true] {
        // A server's folder, for another directory in its place.
        let mut restored = Server::start();
        restored.kill();
        let data = restored.file("data");
        fs::remove_dir_all(&data).unwrap();
        let mut restore = palisade();
        restore.arg("restore").arg(&backup).arg("--data").arg(&data);
        let done = restore.output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        if with_file {
            fs::copy(
                server.file("data").join(LOCK_TOKEN_FILE),
                data.join(LOCK_TOKEN_FILE),
            )
            .unwrap();
        }
        restored.restart();
        assert_eq!(renew(&restored, &token), if with_file { 200 } else { 409 });
    }
}

#[test]
fn a_file_that_cannot_be_used_stops_the_start_and_says_what_follows() {
    let mut server = Server::start();
    server.kill();
    fs::write(server.file("data").join(LOCK_TOKEN_FILE), "short").unwrap();
    let refused = server.output(&["serve", "--listen", "127.0.0.1:0", "--data", "data"]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("32 bytes"),
        "{said}"
    );
}

//! Input that is not valid: a reason, and nothing changes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use chunk_store::name::ChunkId;

use crate::cluster::{Cluster, LIMIT};

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_a_reason_and_changes_nothing() {
    let cluster = Cluster::start();
    let _a = cluster.chunk_server("a", &[]);
    cluster.until_live(&["a"]).await;
    let client = cluster.client();
    let chunk: ChunkId = "log".parse().unwrap();
    client.create(&chunk).await.unwrap();
    client.append(&chunk, "one").await.unwrap();
    let found = client.lookup(&chunk).await.unwrap();
    let server = found.replicas[0].address;
    let version = u64::from(found.version);
    let append = |chunk: &str, version: u64, data: &str| {
        let request = serde_json::json!({ "chunk": chunk, "version": version, "data": data });
        post(server, "/v1/append", &request.to_string())
    };
    let long = "x".repeat(64 << 10);
    for (answer, status, reason) in [
        (post(server, "/v1/append", "{"), 400, "not a valid request"),
        (
            post(server, "/v1/append", "{\"chunk\":\"log\",\"extra\":1}"),
            400,
            "unknown field",
        ),
        (append("../log", version, "two"), 400, "1 - 64 of a-z"),
        (append("log", 0, "two"), 400, "not a valid request"),
        (append("log", version, "two\nthree"), 400, "printable ASCII"),
        (append("log", version, &long), 400, "1 - 65535 bytes"),
        (append("log", version + 1, "two"), 409, "not the primary"),
        (append("other", version, "two"), 404, "no replica of other"),
        (post(server, "/v1/nothing", "{}"), 404, "no such path"),
        (
            post(cluster.address, "/v1/create", "{\"chunk\":\"log\"}"),
            409,
            "already",
        ),
        (
            post(cluster.address, "/v1/lookup", "{\"chunk\":\"none\"}"),
            404,
            "no chunk none",
        ),
    ] {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(answer.contains(reason), "{answer}");
    }
    let huge = format!("{{\"chunk\":\"{}\"}}", "x".repeat(3 << 20));
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!(
        "POST /v1/append HTTP/1.1\r\nHost: {server}\r\nContent-Length: {}\r\n\r\n",
        huge.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 400", "it is refused before it is sent");
    let content = client.read(&chunk).await.unwrap();
    assert_eq!(
        (content.version, content.data.as_str()),
        (found.version, "one\n")
    );
}

#[test]
fn a_folder_belongs_to_one_process_and_a_damaged_replica_is_named() {
    let cluster = Cluster::start();
    let _a = cluster.chunk_server("a", &[]);
    let again = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_chunk-store"))
            .args([
                "chunk-server",
                name,
                "--master",
                &cluster.address.to_string(),
            ])
            .args([
                "--authority",
                &cluster.authority,
                "--data",
                &cluster.data(name),
            ])
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(again("a").contains("in use by another process"));
    std::fs::create_dir_all(cluster.data("b")).unwrap();
    let damaged = std::path::Path::new(&cluster.data("b")).join("log.chunk");
    std::fs::write(&damaged, "0000\n{}").unwrap();
    let message = again("b");
    assert!(message.contains("log.chunk is damaged"), "{message}");
}

//! The interface as a client sees it: bytes over a socket.

use std::time::Duration;

use palisade_fence::store::Settings;
use palisade_fence::{Mode, Rule, StoreLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

mod refused;

/// A store on a free port and in a temporary folder.
struct Served {
    address: std::net::SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), String>>,
    dir: tempfile::TempDir,
}

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Status and code; also checks that the body has the form of every error.
    fn refusal(&self) -> (u16, String) {
        let body = self.json();
        assert_eq!(body["success"], json!(false), "{body}");
        assert!(
            !body["error"]["message"]
                .as_str()
                .unwrap_or_default()
                .is_empty(),
            "{body}"
        );
        (
            self.status,
            body["error"]["code"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    }
}

fn settings() -> Settings {
    let limits = StoreLimits {
        object_bytes: 1 << 20,
        total_bytes: 2 << 20,
    };
    Settings {
        limits,
        ..Settings::default()
    }
}

fn bounds() -> shell::Settings {
    shell::Settings {
        drain_timeout: Duration::from_secs(2),
        hosts: shell::Hosts::Named(vec!["x".to_owned()]),
        ..super::settings(1 << 20)
    }
}

impl Served {
    async fn start() -> Served {
        Served::with(tempfile::tempdir().unwrap(), &settings(), bounds()).await
    }

    async fn with(dir: tempfile::TempDir, settings: &Settings, bounds: shell::Settings) -> Served {
        let store = Store::open(dir.path(), settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, ended) = oneshot::channel::<()>();
        let ended = async { ended.await.unwrap_or_default() };
        let task = tokio::spawn(serve(
            listener.into(),
            store,
            (Check::default(), None),
            bounds,
            ended,
        ));
        Served {
            address,
            shutdown: Some(shutdown),
            task,
            dir,
        }
    }

    async fn stop(mut self) -> tempfile::TempDir {
        self.shutdown.take().unwrap().send(()).unwrap();
        self.task.await.unwrap().unwrap();
        self.dir
    }

    async fn send(&self, request: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        let at = reply
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("no head");
        let head = String::from_utf8_lossy(&reply[..at]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply {
            status,
            head,
            body: reply.split_off(at + 4),
        }
    }

    async fn get(&self, path: &str, headers: &str) -> Reply {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        self.send(request.as_bytes()).await
    }

    async fn post(&self, path: &str, body: &str) -> Reply {
        let length = body.len();
        let head = "content-type: application/json\r\nhost: x\r\nconnection: close";
        let request =
            format!("POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        self.send(request.as_bytes()).await
    }

    async fn write(&self, token: u64, kind: &str, bytes: &str, more: Value) -> Reply {
        let mut payload = json!({"file_path": "/f", "mutation_type": kind});
        if kind != "DELETE" {
            payload["bytes"] =
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes).into();
        }
        let mut body =
            json!({"resource_id": "r", "fencing_token": token, "write_payload": payload});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap_or_default());
        self.post("/v1/storage/write", &body.to_string()).await
    }

    async fn claim(&self, token: u64) -> Reply {
        let body = json!({"resource_id": "r", "fencing_token": token});
        self.post("/v1/storage/claim", &body.to_string()).await
    }
}

#[tokio::test]
async fn the_example_of_the_contract() {
    let served = Served::start().await;
    let body = r#"{"resource_id": "storage:customer-orders-bucket", "fencing_token": 34,
        "write_payload": {"file_path": "/uploads/orders-2026-05.csv", "mutation_type": "APPEND",
                          "bytes": "T1JERVJfSUQsQU1PVU5U\n"}}"#;
    let reply = served.post("/v1/storage/write", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.json(),
        json!({"success": true, "error": null, "highest": 34})
    );

    let claim = r#"{"resource_id": "storage:customer-orders-bucket", "fencing_token": 35}"#;
    let reply = served.post("/v1/storage/claim", claim).await;
    assert_eq!(
        reply.json(),
        json!({"success": true, "error": null, "highest": 35})
    );

    let reply = served.post("/v1/storage/write", body).await;
    assert_eq!(reply.refusal(), (412, "stale".to_owned()));
    assert_eq!(reply.json()["error"]["highest"], json!(35));

    let path = "/v1/storage/storage%3Acustomer-orders-bucket/files/uploads/orders-2026-05.csv";
    let reply = served.get(path, "").await;
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, "ORDER_ID,AMOUNT")
    );
    assert_eq!(reply.header("x-fencing-read"), Some("observer"));

    let shown = served
        .get("/v1/storage/storage:customer-orders-bucket", "")
        .await
        .json();
    assert_eq!(
        shown["resource_id"],
        json!("storage:customer-orders-bucket")
    );
    assert_eq!(
        (&shown["highest"], &shown["authority"]),
        (&json!(35), &Value::Null)
    );
    served.stop().await;
}

#[tokio::test]
async fn a_tokened_read_raises_and_is_rejected_when_stale() {
    let served = Served::start().await;
    assert_eq!(served.write(1, "PUT", "x", json!({})).await.status, 200);
    let path = "/v1/storage/r/files/f";
    let reply = served.get(path, "X-Fencing-Token: 2\r\n").await;
    assert_eq!(
        (reply.status, reply.header("x-fencing-read")),
        (200, Some("tokened"))
    );
    assert_eq!(reply.header("x-fencing-highest"), Some("2"));
    assert_eq!(
        served.get(path, "X-Fencing-Token: 1\r\n").await.refusal().0,
        412
    );
    assert_eq!(
        served.write(1, "PUT", "late", json!({})).await.refusal().0,
        412
    );
    assert_eq!(served.get(path, "").await.text(), "x");
    // The path may begin with a slash of its own, but no path leads out of the resource.
    assert_eq!(served.get("/v1/storage/r/files//f", "").await.text(), "x");
    for outside in [
        "../f",
        "a/../f",
        "%2e%2e/f",
        "..%2f..%2fr/files/f",
        "a//f",
        "f%00",
        "%ff",
    ] {
        let reply = served
            .get(&format!("/v1/storage/r/files/{outside}"), "")
            .await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{outside}");
    }
    for bad in [
        "0",
        "-1",
        "+3",
        "1.0",
        "x",
        "",
        "9007199254740992",
        "99999999999999999999999",
    ] {
        let reply = served
            .get(path, &format!("X-Fencing-Token: {bad}\r\n"))
            .await;
        assert_eq!(reply.refusal(), (400, "invalid".to_owned()), "{bad}");
    }
    let twice = "X-Fencing-Token: 2\r\nX-Fencing-Token: 3\r\n";
    assert_eq!(served.get(path, twice).await.refusal().0, 400);
    assert_eq!(
        served
            .get(path, "X-Fencing-Authority: a\r\n")
            .await
            .refusal()
            .0,
        400
    );
    assert_eq!(
        served.get("/v1/storage/r/files/none", "").await.refusal().0,
        404
    );
    served.stop().await;
}

#[tokio::test]
async fn sequence_numbers_make_writes_repeatable() {
    let served = Served::start().await;
    let first = json!({"sequence": 1});
    assert_eq!(
        served
            .write(5, "APPEND", "a", first.clone())
            .await
            .json()
            .get("repeat"),
        None
    );
    let repeat = served.write(5, "APPEND", "a", first.clone()).await.json();
    assert_eq!(
        repeat,
        json!({"success": true, "error": null, "highest": 5, "repeat": true})
    );
    let other = served.write(5, "APPEND", "b", first.clone()).await;
    assert_eq!(other.refusal(), (409, "sequence_reused".to_owned()));
    assert_eq!(
        served
            .write(5, "APPEND", "b", json!({"sequence": 3}))
            .await
            .status,
        200
    );
    let late = served.write(5, "APPEND", "a", first).await;
    assert_eq!(late.refusal(), (412, "sequence_stale".to_owned()));
    assert_eq!(late.json()["error"]["last"], json!(3));
    assert_eq!(served.get("/v1/storage/r/files/f", "").await.text(), "ab");
    assert_eq!(
        served.get("/v1/storage/r", "").await.json()["sequence"],
        json!(3)
    );
    served.stop().await;
}

#[tokio::test]
async fn every_other_rejection_has_its_own_code() {
    let served = Served::start().await;
    let jump = served.claim(palisade_fence::DEFAULT_MAX_JUMP + 1).await;
    assert_eq!(jump.refusal(), (409, "jump".to_owned()));
    assert_eq!(
        jump.json()["error"]["bound"],
        json!(palisade_fence::DEFAULT_MAX_JUMP)
    );
    assert_eq!(
        served.write(1, "DELETE", "", json!({})).await.refusal(),
        (404, "missing".to_owned())
    );
    assert_eq!(
        served
            .write(1, "PUT", "x", json!({"authority": "ours"}))
            .await
            .status,
        200
    );
    let wrong = served
        .write(2, "PUT", "y", json!({"authority": "theirs"}))
        .await;
    assert_eq!(wrong.refusal(), (409, "wrong_authority".to_owned()));
    assert_eq!(wrong.json()["error"]["authority"], json!("ours"));
    assert_eq!(
        served.claim(2).await.refusal(),
        (409, "wrong_authority".to_owned())
    );
    let body = r#"{"resource_id":"r","write_payload":{"file_path":"/f","mutation_type":"DELETE"}}"#;
    let tokenless = served.post("/v1/storage/write", body).await;
    assert_eq!(tokenless.refusal(), (428, "tokenless".to_owned()));
    assert_eq!(served.get("/v1/storage/r/files/f", "").await.text(), "x");
    served.stop().await;
}

#[tokio::test]
async fn lists_page_by_page() {
    let served = Served::start().await;
    for name in ["a:1", "a:2", "a:3", "b"] {
        let body = json!({"resource_id": name, "fencing_token": 1}).to_string();
        assert_eq!(served.post("/v1/storage/claim", &body).await.status, 200);
    }
    let page = served
        .get("/v1/storage?prefix=a%3A&limit=2", "")
        .await
        .json();
    assert_eq!(page["resources"][1]["resource_id"], json!("a:2"));
    let cursor = page["cursor"].as_str().unwrap();
    let rest = served
        .get(
            &format!("/v1/storage?prefix=a%3A&limit=2&cursor={cursor}"),
            "",
        )
        .await
        .json();
    assert_eq!(rest["resources"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&rest["resources"][0]["resource_id"], &rest["cursor"]),
        (&json!("a:3"), &Value::Null)
    );
    served.stop().await;
}

#[tokio::test]
async fn late_writes_are_counted_as_rejected() {
    let served = Served::start().await;
    served.claim(5).await;
    served.claim(4).await;
    let metrics = served.get("/metrics", "").await;
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = metrics.text();
    for line in [
        "palisade_store_admitted_total 1",
        "palisade_store_rejected_total{reason=\"stale\"} 1",
        "palisade_store_rejected_total{reason=\"jump\"} 0",
        "palisade_store_resources 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    assert_eq!(
        served.get("/healthz", "").await.json(),
        json!({"status": "ok", "fence": "claim"})
    );
    served.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_what_was_acknowledged() {
    let served = Served::start().await;
    assert_eq!(served.write(9, "PUT", "kept", json!({})).await.status, 200);
    let dir = served.stop().await;
    let served = Served::with(dir, &settings(), bounds()).await;
    assert_eq!(
        served.write(8, "PUT", "late", json!({})).await.refusal().0,
        412
    );
    assert_eq!(served.get("/v1/storage/r/files/f", "").await.text(), "kept");
    served.stop().await;
}

/// Control: the same interface without the check.
#[tokio::test]
async fn the_unfenced_store_takes_the_late_write() {
    let rule = Rule {
        mode: Mode::DangerUnfenced,
        ..Rule::CLAIM
    };
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(dir, &settings().with_rule(rule), bounds()).await;
    assert_eq!(served.write(2, "PUT", "new", json!({})).await.status, 200);
    let late = served.write(1, "PUT", "late", json!({})).await;
    assert_eq!(
        late.json(),
        json!({"success": true, "error": null, "highest": null})
    );
    assert_eq!(served.get("/v1/storage/r/files/f", "").await.text(), "late");
    let shown = served.get("/v1/storage/r", "").await.json();
    assert_eq!(shown["fence"], json!("danger-unfenced"));
    // A program that knows of no token is the plainest case of the damage; a fenced store refuses it (428).
    let payload = json!({"file_path": "/f", "mutation_type": "PUT", "bytes": "cGxhaW4="});
    let plain = json!({"resource_id": "r", "write_payload": payload}).to_string();
    let taken = served.post("/v1/storage/write", &plain).await;
    assert_eq!((taken.status, taken.json()), (200, late.json()));
    assert_eq!(
        served.get("/v1/storage/r/files/f", "").await.text(),
        "plain"
    );
    // A claim without a token claims nothing.
    let claim = served
        .post("/v1/storage/claim", r#"{"resource_id": "r"}"#)
        .await;
    assert_eq!(claim.refusal(), (428, "tokenless".to_owned()));
    served.stop().await;
}

/// Every path of the description exists, and every code in it is in the table.
#[tokio::test]
async fn the_description_matches_the_interface() {
    let served = Served::start().await;
    let described = served.get("/openapi.json", "").await.json();
    let paths = described["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 8);
    let mut names = std::collections::BTreeSet::new();
    for (path, methods) in paths {
        for operation in methods.as_object().unwrap().values() {
            let name = operation["operationId"].as_str().expect(path);
            assert!(names.insert(name), "{name} appears twice");
        }
        let path = path
            .replace("{resource_id}", "r")
            .replace("{file_path}", "f");
        let reply = match methods.get("post") {
            Some(_) => served.post(&path, "{}").await,
            None => served.get(&path, "").await,
        };
        let elsewhere = reply.text().contains("there is nothing at");
        assert!(
            !elsewhere && reply.status != 405,
            "{path}: {}",
            reply.text()
        );
    }
    served.stop().await;
}

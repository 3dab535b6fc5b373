//! Real processes, a real lock server, `moto`'s S3. Without the fence the paused primary's late swap removes
//! the new primary's entries; with the fence the swap is rejected.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use manifest_primary::{Location, Mode, Outcome, run};
use palisade_testbed::Moto;

/// `palisade serve` from the same build; it stops when this value is dropped.
struct Authority {
    process: Child,
    url: String,
    _data: tempfile::TempDir,
}

impl Authority {
    fn start() -> Authority {
        let data = tempfile::tempdir().unwrap();
        let program = palisade();
        assert!(
            program.exists(),
            "{} is not built: cargo build --release",
            program.display()
        );
        let mut process = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let started: serde_json::Value = serde_json::from_str(&line).unwrap();
        Authority {
            process,
            url: started["url"].as_str().unwrap().to_owned(),
            _data: data,
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program is in the folder above that of the test programs.
fn palisade() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("palisade")
}

fn bucket(name: &str) {
    let server = Moto::shared().address();
    let mut stream = TcpStream::connect(server).unwrap();
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: {server}\r\nContent-Length: 0\r\nConnection: close\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}

async fn outcome(mode: Mode) -> Outcome {
    let authority = Authority::start();
    bucket(mode.as_str());
    let location = Location {
        s3: Moto::shared().url(),
        bucket: mode.as_str().to_owned(),
        folder: "scenario".to_owned(),
        key_id: "test".to_owned(),
        secret: "test".to_owned(),
    };
    let program = Path::new(env!("CARGO_BIN_EXE_manifest-primary"));
    run(program, &authority.url, &location, mode, |_| {})
        .await
        .unwrap()
}

#[tokio::test]
async fn without_the_fence_the_late_swap_loses_the_new_primarys_entries() {
    let outcome = outcome(Mode::Unfenced).await;
    assert_eq!(outcome.acknowledged, ["a1", "b1", "b2", "a2"]);
    assert_eq!(outcome.manifest, ["a1", "a2"]);
    assert_eq!(outcome.lost(), ["b1", "b2"]);
}

#[tokio::test]
async fn with_the_fence_the_late_swap_is_rejected() {
    let outcome = outcome(Mode::Fenced).await;
    assert_eq!(outcome.acknowledged, ["a1", "b1", "b2"]);
    assert_eq!(outcome.rejected, ["a2"]);
    assert_eq!(outcome.manifest, ["a1", "b1", "b2"]);
}

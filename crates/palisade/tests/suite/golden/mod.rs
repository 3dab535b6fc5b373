//! This build must serve the data and the requests of released versions (G188). proof/golden/README.md lists each set.

mod directories;
mod fences;
mod kinds;
mod place;
mod requests;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::common::{SOON, palisade};

/// The golden data of one version.
struct Set {
    folder: PathBuf,
    manifest: Value,
}

impl Set {
    /// One for each version.
    fn all() -> Vec<Set> {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proof/golden");
        let folders = std::fs::read_dir(golden).unwrap();
        let folders = folders.map(|entry| entry.unwrap().path());
        let read = |folder: PathBuf| {
            let manifest = std::fs::read_to_string(folder.join("manifest.json")).ok()?;
            let manifest = serde_json::from_str(&manifest).unwrap();
            Some(Set { folder, manifest })
        };
        let sets: Vec<Set> = folders.filter_map(read).collect();
        assert!(!sets.is_empty(), "no golden data");
        sets
    }

    /// The manifest's facts about one directory.
    fn facts(&self, name: &str) -> Facts {
        Facts(self.manifest["directories"][name].clone())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// A server on a directory that outlives it.
struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// Starts it, or returns what it said when it refused.
    fn try_start(kind: &str, data: &Path, listen: &str, flags: &[&str]) -> Result<Server, String> {
        let log = data.with_extension("log");
        // By default the rows of grants that ended thirty days ago would be gone.
        let age: &[&str] = match kind {
            "serve" => &["--history-age", "3660d"],
            _ => &[],
        };
        let mut child = palisade()
            .args([kind, "--json", "--listen", listen, "--data"])
            .arg(data)
            .args(age)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let mut server = Server {
            child,
            address: listen.to_owned(),
            log,
        };
        if listen.ends_with(":0") {
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line).unwrap();
            let Ok(started) = serde_json::from_str::<Value>(&line) else {
                server.child.wait().unwrap();
                return Err(server.said());
            };
            let url = started["url"].as_str().unwrap();
            server.address = url.trim_start_matches("http://").to_owned();
        }
        Ok(server)
    }

    fn start(kind: &str, data: &Path, flags: &[&str]) -> Server {
        Server::try_start(kind, data, "127.0.0.1:0", flags).unwrap_or_else(|said| panic!("{said}"))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// `None` if there was no answer.
    fn try_ask(
        &self,
        method: &str,
        path: &str,
        bearer: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let bearer = match bearer {
            "" => String::new(),
            bearer => format!("Authorization: Bearer {bearer}\r\n"),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{bearer}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.get(9..12)?.parse().ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        let text = || Value::String(body.to_owned());
        Some((
            status,
            serde_json::from_str(body).unwrap_or_else(|_| text()),
        ))
    }

    fn ask(&self, method: &str, path: &str, bearer: &str, body: &Value) -> (u16, Value) {
        let answer = self.try_ask(method, path, bearer, body);
        answer.unwrap_or_else(|| panic!("{path}: no answer\n{}", self.said()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answers of an authority before its directory was packed.
#[derive(Clone)]
struct Facts(Value);

/// The counter of a directory that was opened again.
#[derive(Clone, Copy, PartialEq)]
enum Counter {
    Same,
    /// A restore leaps.
    Leapt,
}

impl Facts {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// The differences at the server that has the directory now.
    fn differences(&self, server: &Server, counter: Counter) -> Vec<String> {
        let bearer = self.text("bearer");
        let get = |path: &str| server.ask("GET", path, bearer, &Value::Null).1;
        let mut found = Vec::new();
        let mut compare = |what: &str, owed: &Value, given: &Value| {
            if let Some(difference) = missing(owed, given) {
                found.push(format!("{what}{difference}"));
            }
        };
        let status = get("/v1/status");
        compare("authority", &self.0["authority"], &status["authority"]);
        match counter {
            Counter::Same => compare("next token", &self.0["next_token"], &status["next_token"]),
            Counter::Leapt => compare(
                "a leap",
                &Value::Bool(true),
                &Value::Bool(status["next_token"].as_u64() > self.0["next_token"].as_u64()),
            ),
        }
        for (name, owed) in self.0["locks"].as_object().unwrap() {
            compare(name, owed, &get(&format!("/v1/locks/{name}")));
        }
        for owed in self.0["history"].as_array().unwrap() {
            let path = format!(
                "/v1/history?lock={}&token={}&limit=1000",
                owed["resource_id"].as_str().unwrap(),
                owed["fencing_token"]
            );
            let page = get(&path);
            let rows = page["grants"].as_array();
            let is_there = rows
                .into_iter()
                .flatten()
                .any(|row| missing(owed, row).is_none());
            if !is_there {
                compare(
                    "history",
                    owed,
                    rows.and_then(|rows| rows.first()).unwrap_or(&Value::Null),
                );
            }
        }
        for grant in self.0["grants"].as_array().unwrap() {
            let path = format!("/v1/locks/{}/renew", grant["lock"].as_str().unwrap());
            let body = json!({"lock_token": grant["lock_token"], "fencing_token": grant["number"]});
            let bearer = grant["bearer"].as_str().unwrap_or(bearer);
            let (status, answer) = server.ask("POST", &path, bearer, &body);
            let code = match status {
                200 => Value::from("held"),
                _ => answer["error"]["code"].clone(),
            };
            compare(&format!("renewal of {grant}"), &grant["is"], &code);
        }
        found
    }

    /// Acquires a lock, and returns its token.
    fn acquire(&self, server: &Server, lock: &str) -> u64 {
        let body = json!({"client_id": "later", "lease_duration_ms": 60000});
        let path = format!("/v1/locks/{lock}/acquire");
        let (status, answer) = server.ask("POST", &path, self.text("bearer"), &body);
        assert_eq!(status, 200, "{answer}");
        answer["fencing_token"].as_u64().unwrap()
    }
}

/// Says what of `owed` is not in `given`, which may have more fields.
fn missing(owed: &Value, given: &Value) -> Option<String> {
    match (owed, given) {
        (Value::Object(owed), Value::Object(given)) => owed.iter().find_map(|(name, value)| {
            let given = given.get(name).unwrap_or(&Value::Null);
            missing(value, given).map(|found| format!(".{name}{found}"))
        }),
        (Value::Array(owed), Value::Array(given)) if owed.len() == given.len() => owed
            .iter()
            .zip(given)
            .enumerate()
            .find_map(|(at, (owed, given))| {
                missing(owed, given).map(|found| format!("[{at}]{found}"))
            }),
        _ if owed == given => None,
        _ => Some(format!(": {owed} is owed, and there is {given}")),
    }
}

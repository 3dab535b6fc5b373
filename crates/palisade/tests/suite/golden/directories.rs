//! Directories of earlier versions are opened, served, killed and opened again.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::place::{edit_head, edit_identity, names, settle, unpack};
use super::{Counter, Facts, Server, Set};
use crate::common::cluster::ELECTION;
use crate::common::{palisade, status, text, until_in};

/// Looks at a directory without opening it.
fn doctor(data: &Path) -> (i32, String) {
    let output = palisade().arg("doctor").arg(data).output().unwrap();
    (status(&output), text(&output.stdout))
}

/// Every recorded grant is there, the next token follows, and both survive the end of the server by SIGKILL.
fn serves(facts: &Facts, data: &Path, flags: &[&str], counter: Counter) {
    let mut server = Server::start("serve", data, flags);
    let found = facts.differences(&server, counter);
    assert!(found.is_empty(), "{data:?}:\n{}", found.join("\n"));
    let token = facts.acquire(&server, "later");
    if counter == Counter::Same {
        assert_eq!(Some(token), facts.0["next_token"].as_u64());
    }
    server.kill();

    let server = Server::start("serve", data, flags);
    let next = Facts({
        let mut next = facts.0.clone();
        next["next_token"] = (token + 1).into();
        next["history"] = json!([]);
        next
    });
    let found = next.differences(&server, Counter::Same);
    assert!(found.is_empty(), "{data:?} again:\n{}", found.join("\n"));
    let (_, shown) = server.ask("GET", "/v1/locks/later", facts.text("bearer"), &Value::Null);
    assert_eq!(shown["holder"]["fencing_token"], token);
    assert_eq!(facts.acquire(&server, "even-later"), token + 1);
}

#[test]
fn a_directory_of_each_version_is_served_and_goes_on() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let access = set.file("directories/access.toml");
        for name in ["single", "restored"] {
            let data = dir.path().join(name);
            settle(&set.file(&format!("directories/{name}.tar.gz")), &data);
            let (_, said) = doctor(&data);
            assert!(!said.contains("problem"), "{said}");
            let flags = ["--access", access.to_str().unwrap()];
            serves(&set.facts(name), &data, &flags, Counter::Same);
        }
    }
}

#[test]
fn a_backup_of_each_version_is_restored() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        unpack(&set.file("directories/backup.tar.gz"), &path("backup"));
        unpack(&set.file("directories/single.tar.gz"), &path("single"));
        let (code, said) = doctor(&path("backup"));
        assert_eq!(code, 0, "{said}");
        let restored = palisade()
            .arg("restore")
            .arg(path("backup"))
            .arg("--data")
            .arg(path("data"))
            .output()
            .unwrap();
        assert_eq!(status(&restored), 0, "{}", text(&restored.stderr));
        // The key is not in a backup: an operator copies it.
        fs::copy(
            path("single").join("lock_token.key"),
            path("data").join("lock_token.key"),
        )
        .unwrap();
        let mut facts = set.facts("backup");
        // The history has what the backup's log still tells: grants, not the reports of late writes.
        facts.0["history"] = json!([]);
        let access = set.file("directories/access.toml");
        let flags = ["--access", access.to_str().unwrap()];
        serves(&facts, &path("data"), &flags, Counter::Leapt);
    }
}

/// Nodes of a cluster, at the addresses that are in their logs.
struct Nodes {
    nodes: Vec<Server>,
    _alone: TcpListener,
}

impl Nodes {
    fn start(set: &Set, facts: &Facts, dir: &Path) -> Nodes {
        let hosts = facts.0["hosts"].as_array().unwrap().iter();
        let hosts: Vec<&str> = hosts.map(|host| host.as_str().unwrap()).collect();
        // Another run of this test on this machine has the same addresses.
        let mut alone = None;
        until_in(2 * ELECTION, "the addresses of the golden cluster", || {
            alone = TcpListener::bind((hosts[0], 7419)).ok();
            alone.is_some()
        });
        let peers: Vec<String> = hosts.iter().map(|host| format!("{host}:7421")).collect();
        let key = set.file("directories/cluster.key");
        let start = |at: usize| {
            let data = dir.join(format!("node-{}", at + 1));
            let flags = [
                "--cluster",
                &peers.join(","),
                "--peer-listen",
                &peers[at],
                "--cluster-key-file",
                key.to_str().unwrap(),
            ];
            let listen = format!("{}:7420", hosts[at]);
            Server::try_start("serve", &data, &listen, &flags).unwrap()
        };
        Nodes {
            nodes: (0..hosts.len()).map(start).collect(),
            _alone: alone.unwrap(),
        }
    }

    /// The node that leads, once all that run are ready.
    fn leader(&self) -> &Server {
        let get = |node: &Server, path: &str| node.try_ask("GET", path, "", &Value::Null);
        let mut leader = None;
        until_in(ELECTION, "a leader", || {
            let ready =
                |node: &Server| get(node, "/readyz").is_some_and(|(status, _)| status == 200);
            let leads = |node: &Server| {
                get(node, "/v1/cluster").is_some_and(|(_, answer)| answer["role"] == "leader")
            };
            leader = self.nodes.iter().find(|node| leads(node));
            leader.is_some() && self.nodes.iter().all(ready)
        });
        leader.unwrap()
    }
}

#[test]
fn a_cluster_of_each_version_is_served_and_goes_on() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let facts = set.facts("cluster");
        for at in 1..=3 {
            let name = format!("node-{at}");
            let data = dir.path().join(&name);
            settle(&set.file(&format!("directories/{name}.tar.gz")), &data);
            let (_, said) = doctor(&data);
            assert!(!said.contains("problem"), "{said}");
        }
        let mut nodes = Nodes::start(&set, &facts, dir.path());
        let leader = nodes.leader();
        // The request that waited takes its place again, or joins the queue.
        let waiting = &facts.0["waiting"];
        let mut again = waiting.clone();
        again["poll_ms"] = 1000.into();
        let (status, answer) = leader.ask("POST", "/v1/locks/after-election/acquire", "", &again);
        assert_eq!(
            (status, &answer["waiting"]),
            (202, &Value::Bool(true)),
            "{answer}"
        );
        let found = facts.differences(leader, Counter::Same);
        assert!(found.is_empty(), "{}", found.join("\n"));
        let token = facts.acquire(leader, "later");
        assert_eq!(Some(token), facts.0["next_token"].as_u64());

        // The leader is killed, and the other two go on.
        let address = leader.address.clone();
        nodes.nodes.retain_mut(|node| {
            let stays = node.address != address;
            if !stays {
                node.kill();
            }
            stays
        });
        let leader = nodes.leader();
        assert_eq!(facts.acquire(leader, "even-later"), token + 1);
        let (_, shown) = leader.ask("GET", "/v1/locks/later", "", &Value::Null);
        assert_eq!(shown["holder"]["fencing_token"], token);
    }
}

#[test]
fn a_store_of_each_version_keeps_its_fence() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("store");
        settle(&set.file("directories/store.tar.gz"), &data);
        let facts = &set.manifest["directories"]["store"];
        let mut server = Server::start("store", &data, &[]);
        let get = |server: &Server, path: &str| server.ask("GET", path, "", &Value::Null).1;
        let resource = get(&server, "/v1/storage/orders");
        assert_eq!(super::missing(&facts["resource"], &resource), None);
        for (name, owed) in facts["files"].as_object().unwrap() {
            let path = format!("/v1/storage/orders/files/{name}");
            // The stored text `41` reads as a number.
            let given = match get(&server, &path) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            assert_eq!(owed.as_str(), Some(&*given), "{name}");
        }
        let claim = |server: &Server, token: u64| {
            let body =
                json!({"resource_id": "orders", "authority": "golden", "fencing_token": token});
            server.ask("POST", "/v1/storage/claim", "", &body)
        };
        let highest = facts["resource"]["highest"].as_u64().unwrap();
        let (_, refused) = claim(&server, highest - 1);
        assert_eq!(refused["error"]["code"], "stale", "{refused}");
        assert_eq!(claim(&server, highest + 1).0, 200);
        server.kill();
        let server = Server::start("store", &data, &[]);
        assert_eq!(get(&server, "/v1/storage/orders")["highest"], highest + 1);
    }
}

/// The last set, and a copy of its directory of a single server.
fn copy(settled: bool) -> (Set, tempfile::TempDir, PathBuf) {
    let set = Set::all().pop().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("single");
    if settled {
        settle(&set.file("directories/single.tar.gz"), &data)
    } else {
        unpack(&set.file("directories/single.tar.gz"), &data)
    }
    (set, dir, data)
}

fn refusal(data: &Path) -> String {
    match Server::try_start("serve", data, "127.0.0.1:0", &[]) {
        Ok(_) => panic!("it was served"),
        Err(said) => said,
    }
}

/// Controls: what a build would say that lost the ability to read a format.
#[test]
fn a_directory_with_another_byte_or_version_is_refused_by_name() {
    // As it is packed, it is a copy.
    let (_, _dir, data) = copy(false);
    assert!(refusal(&data).contains("--in-place"), "{}", refusal(&data));

    let (_, _dir, data) = copy(true);
    edit_identity(&data, |line| {
        line.replace("palisade-identity 1", "palisade-identity 2")
    });
    let said = refusal(&data);
    assert!(said.contains("identity"), "{said}");

    let (_, _dir, data) = copy(true);
    edit_head(&data, |head| head[8] = 2);
    let said = refusal(&data);
    assert!(said.contains("version 2"), "{said}");

    let (_, _dir, data) = copy(true);
    let log = names(&data, "log-").pop().unwrap();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&log)
        .unwrap();
    let mut byte = [0];
    // Inside the first frame's payload.
    file.read_exact_at(&mut byte, 100).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 100).unwrap();
    let said = refusal(&data);
    assert!(said.contains("log-"), "{said}");
    let (code, said) = doctor(&data);
    assert_eq!(code, 1, "{said}");
}

/// The control of the comparison: facts that are not so are found.
#[test]
fn a_manifest_that_is_wrong_is_found() {
    let (set, _dir, data) = copy(true);
    let access = set.file("directories/access.toml");
    let server = Server::start("serve", &data, &["--access", access.to_str().unwrap()]);
    let right = set.facts("single");
    assert_eq!(
        right.differences(&server, Counter::Same),
        Vec::<String>::new()
    );
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut facts = right.clone();
        change(&mut facts.0);
        facts.differences(&server, Counter::Same)
    };
    let token = wrong(&|facts| facts["locks"]["plain"]["holder"]["fencing_token"] = 2.into());
    assert!(
        token.len() == 1 && token[0].starts_with("plain.holder.fencing_token"),
        "{token:?}"
    );
    let next = wrong(&|facts| facts["next_token"] = 1.into());
    assert!(
        next.len() == 1 && next[0].starts_with("next token"),
        "{next:?}"
    );
    let row = wrong(&|facts| facts["history"][0]["client_id"] = "nobody".into());
    assert!(
        row.len() == 1 && row[0].starts_with("history.client_id"),
        "{row:?}"
    );
    let key = wrong(&|facts| facts["grants"][0]["lock_token"] = "0".repeat(32).into());
    assert!(key.len() == 1 && key[0].starts_with("renewal"), "{key:?}");
}

//! Signed tokens from the server to the store and the gateway, as processes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use palisade_server::net::LOCK_TOKEN_FILE;
use serde_json::{Value, json};

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{Server, palisade, status, text, until_in};

/// A store or a gateway, killed with its test.
struct Fence {
    child: Child,
    address: String,
}

impl Drop for Fence {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fence(arguments: &[&str], data: &Path, keys: &Path) -> Fence {
    let mut command = palisade();
    command
        .args(arguments)
        .args(["--json", "--listen", "127.0.0.1:0", "--require-signed"]);
    command.arg("--data").arg(data).arg("--keys").arg(keys);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let started: Value = serde_json::from_str(&line).unwrap();
    let address = started["listening"].as_str().unwrap().to_owned();
    Fence { child, address }
}

fn ask(address: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

fn value(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).unwrap()
}

fn code(answer: (u16, String)) -> (u16, String) {
    let body: Value = serde_json::from_str(&answer.1).unwrap();
    (answer.0, body["error"]["code"].as_str().unwrap().to_owned())
}

/// A grant of the lock `orders`: its key, its token and its sequencer.
fn grant(address: &str, client: &str) -> (String, u64, String) {
    let body = json!({"client_id": client, "lease_duration_ms": 60_000}).to_string();
    let granted = value(ask(address, "POST", "/v1/locks/orders/acquire", "", &body));
    let key = granted["lock_token"].as_str().unwrap().to_owned();
    let body = json!({"lock_token": key}).to_string();
    let signed = value(ask(
        address,
        "POST",
        "/v1/locks/orders/sequencer",
        "",
        &body,
    ));
    let sequencer = signed["sequencer"].as_str().unwrap().to_owned();
    (key, granted["fencing_token"].as_u64().unwrap(), sequencer)
}

/// The public keys of a server.
fn published(address: &str) -> Value {
    value(ask(address, "GET", "/.well-known/jwks.json", "", ""))
}

fn keys(server: &Server) -> std::path::PathBuf {
    let file = server.file("keys.json");
    std::fs::write(&file, published(server.address()).to_string()).unwrap();
    file
}

#[test]
fn a_client_that_makes_up_a_high_token_is_refused_where_sequencers_are_required() {
    let server = Server::start();
    let (_, token, sequencer) = grant(server.address(), "a");
    let keys = keys(&server);
    let store = fence(&["store"], &server.file("store"), &keys);
    let claim = |body: Value| {
        ask(
            &store.address,
            "POST",
            "/v1/storage/claim",
            "",
            &body.to_string(),
        )
    };
    let made_up = claim(json!({"resource_id": "orders", "fencing_token": token + 1_000}));
    assert_eq!(code(made_up), (428, "unsigned".into()));
    // Another scalar: the 50th letter of the signature.
    let at = sequencer.len() - 36;
    let other = if &sequencer[at..=at] == "A" { "B" } else { "A" };
    let forged = format!("{}{other}{}", &sequencer[..at], &sequencer[at + 1..]);
    let forged = claim(json!({"resource_id": "orders", "sequencer": forged}));
    assert_eq!(code(forged), (403, "bad_sequencer".into()));
    let elsewhere = claim(json!({"resource_id": "payments", "sequencer": sequencer}));
    assert_eq!(code(elsewhere), (409, "wrong_lock".into()));
    let other_token =
        json!({"resource_id": "orders", "sequencer": sequencer, "fencing_token": token + 1});
    assert_eq!(code(claim(other_token)), (403, "bad_sequencer".into()));
    let claimed = value(claim(
        json!({"resource_id": "orders", "sequencer": sequencer}),
    ));
    assert_eq!(
        claimed["highest"], token,
        "none of them has raised the fence"
    );

    let read = |headers: &str| {
        ask(
            &store.address,
            "GET",
            "/v1/storage/orders/files/f",
            headers,
            "",
        )
    };
    let put = json!({"resource_id": "orders", "sequencer": sequencer,
        "write_payload": {"file_path": "/f", "mutation_type": "PUT", "bytes": "eA=="}});
    value(ask(
        &store.address,
        "POST",
        "/v1/storage/write",
        "",
        &put.to_string(),
    ));
    assert_eq!(
        read(&format!("X-Fencing-Sequencer: {sequencer}\r\n")),
        (200, "x".into())
    );
    assert_eq!(
        code(read(&format!("X-Fencing-Token: {token}\r\n"))),
        (428, "unsigned".into())
    );
    assert_eq!(read("").0, 200, "an observer");
}

#[test]
fn a_gateway_admits_the_signed_token_and_rejects_it_when_a_newer_holder_came() {
    let server = Server::start();
    let (_, token, old) = grant(server.address(), "a");
    let (_, newer, new) = grant(server.address(), "a");
    assert!(newer > token);
    let keys = keys(&server);
    // The lock server itself is the API behind it: any one answers.
    let gateway = fence(
        &[
            "gateway",
            "--admin",
            "127.0.0.1:0",
            "--upstream",
            &server.url,
            "--route",
            "/v1/locks/{id}=orders",
        ],
        &server.file("gateway"),
        &keys,
    );
    let post = |headers: &str| ask(&gateway.address, "POST", "/v1/locks/orders", headers, "");
    assert_eq!(
        code(post("X-Fencing-Token: 99\r\n")),
        (428, "unsigned".into())
    );
    // 405 is the answer of the API: the write got there.
    assert_eq!(post(&format!("X-Fencing-Sequencer: {new}\r\n")).0, 405);
    assert_eq!(
        code(post(&format!("X-Fencing-Sequencer: {old}\r\n"))),
        (412, "stale".into())
    );
}

#[test]
fn a_job_and_a_shell_get_their_tokens_signed() {
    let server = Server::start();
    let keys = keys(&server);
    let store = fence(&["store"], &server.file("store"), &keys);
    let claim = |resource: &str, sequencer: &str| {
        let body = json!({"resource_id": resource, "sequencer": sequencer}).to_string();
        ask(&store.address, "POST", "/v1/storage/claim", "", &body)
    };
    let script = r#"printf %s "$PALISADE_SEQUENCER""#;
    let job = [
        "run",
        "stock",
        "orders",
        "--sequencer",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = server.output(&job);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    let [stock, orders] = lines[..] else {
        panic!("{printed:?}");
    };
    assert_eq!(code(claim("orders", stock)), (409, "wrong_lock".into()));
    value(claim("orders", orders));
    value(claim("stock", stock));
    // Nobody who did not ask gets one.
    let bare = server.output(&["run", "orders", "--", "sh", "-c", script]);
    assert_eq!((status(&bare), &*text(&bare.stdout)), (0, ""));

    let held = server.output(&["acquire", "orders", "--json"]);
    let held: Value = serde_json::from_slice(&held.stdout).unwrap();
    let secret = held["lock_token"].as_str().unwrap().to_owned();
    let sign = |secret: &str| {
        let mut command = server.palisade(&["sequencer", "orders"]);
        command.env("PALISADE_LOCK_TOKEN", secret).output().unwrap()
    };
    let signed = sign(&secret);
    assert_eq!(status(&signed), 0, "{}", text(&signed.stderr));
    let claimed = value(claim("orders", text(&signed.stdout).trim_end()));
    assert_eq!(claimed["highest"], held["fencing_token"]);
    let refused = sign(&"00".repeat(16));
    assert_eq!((status(&refused), &*text(&refused.stdout)), (123, ""));
    assert!(
        text(&refused.stderr).contains("palisade show"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn keys_that_cannot_be_used_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, "{}").unwrap();
    for (arguments, why) in [
        (vec!["--require-signed"], "--keys <FILE>"),
        (vec!["--keys", "missing.json"], "missing.json: No such file"),
        (vec!["--keys", "bad.json"], "/.well-known/jwks.json"),
    ] {
        let mut command = palisade();
        command
            .current_dir(dir.path())
            .args(["store", "--listen", "127.0.0.1:0"])
            .args(arguments);
        let output = command.output().unwrap();
        assert_eq!(status(&output), 2, "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(why),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_rotation_by_the_command_line_refuses_nobody() {
    let server = Server::start();
    let (key, token, first) = grant(server.address(), "a");
    let keys = keys(&server);
    let store = fence(&["store"], &server.file("store"), &keys);
    let admitted = |sequencer: &str| {
        let body = json!({"resource_id": "orders", "sequencer": sequencer}).to_string();
        ask(&store.address, "POST", "/v1/storage/claim", "", &body)
    };
    let rotate = |arguments: &[&str]| {
        let data = server.file("data");
        let mut command = server.palisade(&[&["auth", "key"], arguments].concat());
        let output = command
            .arg("--json")
            .arg("--data")
            .arg(data)
            .output()
            .unwrap();
        (status(&output), text(&output.stdout), text(&output.stderr))
    };
    let signed = || {
        let body = json!({"lock_token": key}).to_string();
        let answer = ask(
            server.address(),
            "POST",
            "/v1/locks/orders/sequencer",
            "",
            &body,
        );
        value(answer)["sequencer"].as_str().unwrap().to_owned()
    };
    let made: Value = serde_json::from_str(&rotate(&["new"]).1).unwrap();
    let new = made["kid"].as_str().unwrap();
    assert_eq!(
        value(admitted(&signed()))["highest"],
        token,
        "the old key signs"
    );
    let (_, set) = ask(server.address(), "GET", "/.well-known/jwks.json", "", "");
    std::fs::write(&keys, set).unwrap();
    assert_eq!(rotate(&["use", new]).0, 0);
    let listed = rotate(&["ls"]).1;
    assert!(
        listed.lines().last().unwrap().contains(new) && listed.contains(r#""signs":true"#),
        "{listed}"
    );
    let second = signed();
    assert_ne!(second, first);
    for sequencer in [&first, &second] {
        value(admitted(sequencer));
    }
    let (refused, _, why) = rotate(&["drop", new]);
    assert!(
        refused == 2 && why.contains("is the key that signs"),
        "{why}"
    );
    let (refused, _, why) = rotate(&["use", "0123456789abcdef"]);
    assert!(refused == 2 && why.contains("there is no key"), "{why}");
}

/// A fence accepts the sequencers of any leader: all nodes derive the same key from the cluster's. A single server that
/// becomes a member gets that key, too, and its holders keep their leases.
#[test]
fn all_nodes_of_a_cluster_sign_with_one_key() {
    let mut single = Server::start();
    let (held, _, before) = grant(single.address(), "a");
    single.kill();

    let mut cluster = Cluster::planned(3);
    for node in &cluster.nodes[1..] {
        std::fs::create_dir(&node.data).unwrap();
        let file = single.file("data").join(LOCK_TOKEN_FILE);
        std::fs::copy(file, node.data.join(LOCK_TOKEN_FILE)).unwrap();
    }
    std::fs::rename(single.file("data"), &cluster.nodes[0].data).unwrap();
    let secret = cluster.dir.path().join("cluster.key");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let (list, secret) = (cluster.list.clone(), secret.to_str().unwrap());
    let flags = ["--cluster", &list, "--cluster-key-file", secret];
    cluster.nodes.iter_mut().for_each(|node| node.start(&flags));
    cluster.until_ready();
    until_in(ELECTION, "three voters", || {
        let view = cluster.json(&["cluster", "status"]);
        let members = view["members"].as_array().unwrap();
        members
            .iter()
            .filter(|member| member["voter"] == true)
            .count()
            == 3
    });
    let first = cluster.until_ready();
    let set = published(&cluster.nodes[first].listen);
    for node in &cluster.nodes {
        assert_eq!(published(&node.listen), set);
    }

    let keys = cluster.dir.path().join("keys.json");
    std::fs::write(&keys, set.to_string()).unwrap();
    let store = fence(&["store"], &cluster.dir.path().join("store"), &keys);
    let admitted = |sequencer: &str| {
        let body = json!({"resource_id": "orders", "sequencer": sequencer}).to_string();
        ask(&store.address, "POST", "/v1/storage/claim", "", &body)
    };
    assert_eq!(
        code(admitted(&before)).1,
        "bad_sequencer",
        "of a key that is gone"
    );
    let renewed = |node: &str| {
        let body = json!({"lock_token": held}).to_string();
        ask(node, "POST", "/v1/locks/orders/renew", "", &body).0
    };
    assert_eq!(renewed(&cluster.nodes[first].listen), 200);
    for node in &cluster.nodes {
        let (_, _, sequencer) = grant(&node.listen, "a");
        value(admitted(&sequencer));
    }

    cluster.nodes[first].kill();
    until_in(ELECTION, "another leader", || {
        cluster.leader().is_some_and(|now| now != first)
    });
    cluster.until_ready();
    let (_, _, sequencer) = grant(&cluster.nodes[(first + 1) % 3].listen, "a");
    value(admitted(&sequencer));
    cluster.nodes[first].start(&flags);
    cluster.until_ready();
    assert_eq!(published(&cluster.nodes[first].listen), set);
}

/// Without a key that only the nodes have, there is nothing to make one of.
#[test]
fn a_cluster_without_a_key_signs_nothing_and_says_how() {
    let cluster = Cluster::of(1);
    let refused = ask(
        &cluster.nodes[0].listen,
        "GET",
        "/.well-known/jwks.json",
        "",
        "",
    );
    assert_eq!(code(refused.clone()), (409, "refused".into()));
    assert!(refused.1.contains("--cluster-key-file"), "{}", refused.1);
    let job = ["run", "orders", "--sequencer", "--", "true"];
    let refused = cluster.output(&job);
    assert_eq!(status(&refused), 125);
    let said = text(&refused.stderr);
    assert!(said.contains("--cluster-key-file"), "{said}");
    let shown = cluster.json(&["show", "orders"]);
    assert_eq!(shown["holder"], Value::Null, "the lock is released");
}

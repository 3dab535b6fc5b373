//! Chunk servers that are gone for good.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use chunk_store::event::{Event, now_ms};
use chunk_store::name::ServerId;
use chunk_store::wire::{ProblemCode, Standing};

use crate::cluster::{Cluster, poll};
use crate::input::post;
use crate::rules::{append, log, named, until_judged};

fn server(name: &str) -> ServerId {
    name.parse().unwrap()
}

fn retire(cluster: &Cluster, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chunk-store"))
        .args(["retire", "--master", &cluster.address.to_string()])
        .args(words)
        .output()
        .unwrap()
}

fn refused(cluster: &Cluster, words: &[&str], reason: &str) {
    let output = retire(cluster, words);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && message.contains(reason),
        "{message}"
    );
}

fn replica(cluster: &Cluster, name: &str) -> PathBuf {
    Path::new(&cluster.data(name)).join("log.chunk")
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_retired_server_and_it_is_refused_when_it_is_back() {
    let mut cluster = Cluster::start();
    let _a = cluster.chunk_server("a", &[]);
    let [b, c] = ["b", "c"].map(|name| cluster.chunk_server(name, &[]));
    cluster.until_live(&["a", "b", "c"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    append(&client, &log(), "one").await;
    // c misses a version. Then the master starts again, and b is gone.
    drop(c);
    cluster.until_live(&["a", "b"]).await;
    client.append(&log(), "two").await.unwrap_err();
    append(&client, &log(), "three").await;
    cluster.master = None;
    drop(b);
    cluster.start_master();
    let c = cluster.chunk_server("c", &[]);
    until_judged(cluster.master(), "c", Standing::Stale);
    // The control: without a word about b, c’s stale replica stays, for five times as long as it takes to collect one.
    let until = now_ms() + 1_000.0;
    poll("a second", async || {
        assert!(replica(&cluster, "c").exists(), "collected too early");
        (now_ms() > until).then_some(())
    })
    .await;
    let status = client.status().await.unwrap();
    assert_eq!(
        (status.missing, status.retired),
        (vec![server("b")], vec![])
    );
    poll("the time in which b may report", async || {
        match client.retire(&server("b"), false).await {
            Ok(()) => Some(()),
            Err(problem) => {
                assert_eq!(problem.code, ProblemCode::Unavailable, "{problem}");
                None
            }
        }
    })
    .await;
    c.until("the collection", |event| {
        matches!(event, Event::Collected { .. }).then_some(())
    });
    poll("two replicas", async || {
        (named(&client, &log()).await == ["a", "c"]).then_some(())
    })
    .await;
    // The master does not forget it, and a second time is the same.
    cluster.start_master();
    cluster.until_live(&["a", "c"]).await;
    let status = client.status().await.unwrap();
    assert!(
        status.all_reported && status.retired == [server("b")],
        "{status:?}"
    );
    assert!(retire(&cluster, &["b"]).status.success());
    // b is back: it gets the next step, and ends. Its replica stays.
    let ended = cluster.chunk_server("b", &[]).until_ended().await;
    assert!(!ended.success());
    let heartbeat = r#"{"server":"b","address":"127.0.0.1:1","replicas":[]}"#;
    let answer = post(cluster.address, "/v1/heartbeat", heartbeat);
    assert!(
        answer.starts_with("HTTP/1.1 410") && answer.contains("with another name"),
        "{answer}"
    );
    assert_eq!(named(&client, &log()).await, ["a", "c"]);
    assert!(replica(&cluster, "b").exists());
    // The operator follows the message: another name for the same folder. Its replica is stale, collected and made
    // anew.
    fs::rename(cluster.data("b"), cluster.data("b2")).unwrap();
    let b2 = cluster.chunk_server("b2", &[]);
    b2.until("the collection", |event| {
        matches!(event, Event::Collected { .. }).then_some(())
    });
    poll("three replicas", async || {
        (named(&client, &log()).await == ["a", "b2", "c"]).then_some(())
    })
    .await;
    let content = client.read(&log()).await.unwrap().data;
    assert_eq!(content, "one\ntwo\nthree\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_live_or_has_the_only_replica_is_retired_by_force_only() {
    let cluster = Cluster::start();
    let a = cluster.chunk_server("a", &[]);
    cluster.until_live(&["a"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    append(&client, &log(), "one").await;
    let record = || fs::read(Path::new(&cluster.data("master")).join("master.json")).unwrap();
    let before = record();
    refused(
        &cluster,
        &["b"],
        "no chunk server b ever reported; these did: a",
    );
    refused(&cluster, &["a"], "stop its process first");
    drop(a);
    cluster.until_live(&[]).await;
    refused(&cluster, &["a"], "the only current replica of log");
    assert_eq!(record(), before, "a refusal changed something");
    let a = cluster.chunk_server("a", &[]);
    assert_eq!(client.read(&log()).await.unwrap().data, "one\n");
    // By force, its process ends by itself.
    assert!(retire(&cluster, &["a", "--force"]).status.success());
    assert!(!a.until_ended().await.success());
    assert!(named(&client, &log()).await.is_empty());
}

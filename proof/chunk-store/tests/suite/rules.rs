//! The rules that the story does not show, with real processes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use chunk_store::client::ChunkClient;
use chunk_store::event::{Event, now_ms};
use chunk_store::name::ChunkId;
use chunk_store::version::Version;
use chunk_store::wire::{ProblemCode, Standing};
use palisade_client::Client;
use rustix::process::Signal;

use crate::cluster::{Cluster, Process, TTL, poll};

pub(crate) fn log() -> ChunkId {
    "log".parse().unwrap()
}

pub(crate) async fn append(client: &ChunkClient, chunk: &ChunkId, data: &str) -> Version {
    client.append(chunk, data).await.unwrap().position.version
}

/// The servers that look-ups name now; none if there is no current replica.
pub(crate) async fn named(client: &ChunkClient, chunk: &ChunkId) -> Vec<String> {
    let found = client.lookup(chunk).await;
    let replicas = found.map(|found| found.replicas).unwrap_or_default();
    replicas
        .iter()
        .map(|replica| replica.server.to_string())
        .collect()
}

pub(crate) fn until_judged(master: &Process, server: &str, standing: Standing) {
    master.until(
        &format!("that {server} is {standing:?}"),
        |event| match event {
            Event::Judged {
                server: its,
                standing: as_what,
                ..
            } => (its.as_str() == server && *as_what == standing).then_some(()),
            _ => None,
        },
    );
}

/// K1.
#[tokio::test(flavor = "multi_thread")]
async fn one_lease_serves_all_chunks_of_a_primary_and_its_renewal_keeps_the_versions() {
    let cluster = Cluster::start();
    let _a = cluster.chunk_server("a", &[]);
    cluster.until_live(&["a"]).await;
    let client = cluster.client();
    let chunks: [ChunkId; 2] = [log(), "index".parse().unwrap()];
    let mut versions = Vec::new();
    for chunk in &chunks {
        client.create(chunk).await.unwrap();
        versions.push(append(&client, chunk, "first").await);
    }
    assert!(versions[0] < versions[1], "tokens rise over all locks");
    let authority = Client::connect(&cluster.authority).await.unwrap();
    let own = authority.show("chunk-server/a").await.unwrap();
    assert!(own.lease.is_some());
    for (chunk, version) in chunks.iter().zip(&versions) {
        let view = authority
            .show(chunk.lock().unwrap().as_str())
            .await
            .unwrap();
        assert_eq!(view.lease, own.lease, "a lease of its own");
        assert_eq!(view.holder.unwrap().token, version.token());
    }
    // Twice the time to live: without renewals the lease is over then.
    let until = now_ms() + 2.0 * TTL.as_secs_f64() * 1_000.0;
    poll("the end of the first lease", async || {
        for (chunk, version) in chunks.iter().zip(&versions) {
            assert_eq!(append(&client, chunk, "more").await, *version);
        }
        (now_ms() > until).then_some(())
    })
    .await;
}

/// K2: a primary that is asked gives up at once; nobody waits for its lease. The control is the primary that does not
/// answer, in the next test.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_revokes_the_lease_of_a_primary_that_answers() {
    let cluster = Cluster::start();
    let servers = ["a", "b"].map(|name| cluster.chunk_server(name, &[]));
    cluster.until_live(&["a", "b"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    let first = append(&client, &log(), "one").await;
    let cloned = client
        .snapshot(&log(), &"copy".parse().unwrap())
        .await
        .unwrap();
    assert!(first < cloned.version);
    servers[0].until("the acknowledgement", |event| match event {
        Event::GaveUp { version, .. } => (*version == first).then_some(()),
        _ => None,
    });
    let again = append(&client, &log(), "two").await;
    assert!(cloned.version < again);
    let copy = client.read(&"copy".parse().unwrap()).await.unwrap();
    assert_eq!(
        (copy.version, copy.data.as_str()),
        (cloned.version, "one\n")
    );
    assert_eq!(client.read(&log()).await.unwrap().data, "one\ntwo\n");
    let exists = client
        .snapshot(&log(), &"copy".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(exists.code, ProblemCode::Exists);
    // The first mutation of the copy has a version of its own.
    let own = append(&client, &"copy".parse().unwrap(), "three").await;
    assert!(again < own);
}

/// K7, K2.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_waits_for_the_lease_of_a_primary_that_does_not_answer() {
    let cluster = Cluster::start();
    let a = cluster.chunk_server("a", &["--freeze-at", "late"]);
    let _b = cluster.chunk_server("b", &[]);
    cluster.until_live(&["a", "b"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    let first = append(&client, &log(), "one").await;
    let late = tokio::spawn({
        let client = client.clone();
        async move { client.append(&log(), "late").await }
    });
    a.until("the pause", |event| {
        matches!(event, Event::Freezing { .. }).then_some(())
    });
    a.until_stopped();
    let copy: ChunkId = "copy".parse().unwrap();
    let cloned = client.snapshot(&log(), &copy).await.unwrap();
    assert!(first < cloned.version);
    let authority = Client::connect(&cluster.authority).await.unwrap();
    let view = authority.show("chunk/log").await.unwrap();
    assert!(
        view.holder
            .is_none_or(|holder| holder.token > first.token()),
        "still held"
    );
    a.signal(Signal::CONT);
    let refused = late.await.unwrap().unwrap_err();
    assert_eq!(refused.code, ProblemCode::Stale, "{refused}");
    assert_eq!(client.read(&copy).await.unwrap().data, "one\n");
    assert_eq!(client.read(&log()).await.unwrap().data, "one\n");
}

/// K5: a master whose folder was restored from a backup meets a replica that is ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_ahead_raises_an_alarm_and_is_neither_named_nor_collected() {
    let mut cluster = Cluster::start();
    let a = cluster.chunk_server("a", &[]);
    let _b = cluster.chunk_server("b", &[]);
    cluster.until_live(&["a", "b"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    append(&client, &log(), "one").await;
    assert_eq!(client.status().await.unwrap().alarms, 0);
    let file = Path::new(&cluster.data("master")).join("master.json");
    let backup = fs::read(&file).unwrap();
    // Another version, without a.
    drop(a);
    cluster.until_live(&["b"]).await;
    append(&client, &log(), "two").await;
    cluster.master = None;
    fs::write(&file, backup).unwrap();
    cluster.start_master();
    until_judged(cluster.master(), "b", Standing::Ahead);
    let _a = cluster.chunk_server("a", &[]);
    until_judged(cluster.master(), "a", Standing::Current);
    poll("a look-up without b", async || {
        (named(&client, &log()).await == ["a"]).then_some(())
    })
    .await;
    let status = client.status().await.unwrap();
    assert!(status.all_reported && status.alarms > 0, "{status:?}");
    let kept = Path::new(&cluster.data("b")).join("log.chunk");
    assert!(kept.exists());
}

/// K6.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_master_nothing_is_collected_before_every_server_has_reported() {
    let mut cluster = Cluster::start();
    let _a = cluster.chunk_server("a", &[]);
    let [b, c] = ["b", "c"].map(|name| cluster.chunk_server(name, &[]));
    cluster.until_live(&["a", "b", "c"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    append(&client, &log(), "one").await;
    // c misses a version.
    drop(c);
    cluster.until_live(&["a", "b"]).await;
    let incomplete = client.append(&log(), "two").await.unwrap_err();
    assert_eq!(incomplete.code, ProblemCode::Incomplete, "{incomplete}");
    append(&client, &log(), "three").await;
    // The master starts again, and b is away.
    cluster.master = None;
    drop(b);
    cluster.start_master();
    let c = cluster.chunk_server("c", &[]);
    until_judged(cluster.master(), "c", Standing::Stale);
    let stale = Path::new(&cluster.data("c")).join("log.chunk");
    // Five times as long as it takes to collect a replica.
    let until = now_ms() + 1_000.0;
    poll("a second", async || {
        assert!(stale.exists(), "collected too early");
        assert!(!named(&client, &log()).await.contains(&"c".to_owned()));
        (now_ms() > until).then_some(())
    })
    .await;
    // The control: b’s report is all that was missing.
    let _b = cluster.chunk_server("b", &[]);
    c.until("the collection", |event| {
        matches!(event, Event::Collected { .. }).then_some(())
    });
    poll("three replicas", async || {
        (named(&client, &log()).await == ["a", "b", "c"]).then_some(())
    })
    .await;
    let content = client.read(&log()).await.unwrap().data;
    assert_eq!(content, "one\ntwo\nthree\n");
}

/// K6: the replicas of a chunk that was deleted are unknown, and collected.
#[tokio::test(flavor = "multi_thread")]
async fn the_replicas_of_a_deleted_chunk_are_collected() {
    let cluster = Cluster::start();
    let a = cluster.chunk_server("a", &[]);
    cluster.until_live(&["a"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    append(&client, &log(), "one").await;
    client.delete(&log()).await.unwrap();
    until_judged(cluster.master(), "a", Standing::Unknown);
    a.until("the collection", |event| {
        matches!(event, Event::Collected { .. }).then_some(())
    });
    assert!(!Path::new(&cluster.data("a")).join("log.chunk").exists());
    let short = ChunkClient::new(cluster.address, Duration::from_secs(1));
    assert_eq!(
        short.read(&log()).await.unwrap_err().code,
        ProblemCode::NotFound
    );
}

/// An acknowledged record is on the disk: a server that is killed and started again has it.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_records_survive_a_kill_of_all_processes_but_the_lock_server() {
    let mut cluster = Cluster::start();
    let servers = ["a", "b", "c"].map(|name| cluster.chunk_server(name, &[]));
    cluster.until_live(&["a", "b", "c"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    let before = append(&client, &log(), "one").await;
    drop(servers);
    cluster.start_master();
    let _servers = ["a", "b", "c"].map(|name| cluster.chunk_server(name, &[]));
    let after = append(&client, &log(), "two").await;
    assert!(before < after, "another primary is another version");
    assert_eq!(client.read(&log()).await.unwrap().data, "one\ntwo\n");
}

/// A power failure at the servers of a second version, after which a mutation of the first one arrives there. Returns the
/// answer to that mutation, the answers that readers get then, and whether any file has the record of the second version.
async fn power_failure(
    switches: &[&str],
) -> (
    Result<Version, ProblemCode>,
    Result<String, ProblemCode>,
    bool,
) {
    let cluster = Cluster::start();
    let a = cluster.chunk_server("a", &["--freeze-at", "late"]);
    let others = ["b", "c"].map(|name| cluster.chunk_server(name, &[]));
    cluster.until_live(&["a", "b", "c"]).await;
    let client = cluster.client();
    client.create(&log()).await.unwrap();
    let first = append(&client, &log(), "one").await;
    // b and c start again where a finds them.
    let found = client.lookup(&log()).await.unwrap().replicas;
    let start_again = |switches: &[&str]| {
        let others = found.iter().filter(|its| its.server.as_str() != "a");
        let others = others.map(|its| {
            let address = its.address.to_string();
            let more = [&["--listen", &address], switches].concat();
            cluster.chunk_server(its.server.as_str(), &more)
        });
        others.collect::<Vec<_>>()
    };
    drop(others);
    let others = start_again(switches);
    // a checks its lease, which is valid, and is stopped with a mutation in its hand.
    let late = tokio::spawn({
        let client = client.clone();
        async move { client.append(&log(), "late").await }
    });
    a.until_stopped();
    cluster.until_live(&["b", "c"]).await;
    assert!(first < append(&client, &log(), "two").await);
    drop(others);
    let _others = start_again(&[]);
    a.signal(Signal::CONT);
    let late = late.await.unwrap();
    let reader = ChunkClient::new(cluster.address, Duration::from_secs(5));
    let content = reader.read(&log()).await;
    let kept = ["a", "b", "c"].iter().any(|name| {
        let file = Path::new(&cluster.data(name)).join("log.chunk");
        fs::read_to_string(file).is_ok_and(|replica| replica.contains("two"))
    });
    (
        late.map(|appended| appended.position.version)
            .map_err(|problem| problem.code),
        content
            .map(|content| content.data)
            .map_err(|problem| problem.code),
        kept,
    )
}

/// K3: replicas that recorded a version durably still refuse the former one after a power failure, and have every record.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_version_survives_a_power_failure() {
    let (late, content, kept) = power_failure(&[]).await;
    assert_eq!(late, Err(ProblemCode::Stale));
    assert_eq!(content, Ok("one\ntwo\n".to_owned()));
    assert!(kept);
}

/// The control of K3: the replicas answered before the version was on the disk. They are back at the former one, admit its
/// late mutation, and no replica has the record that was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_sync_a_power_failure_brings_a_former_version_back() {
    let (late, content, kept) = power_failure(&["--danger-unsynced"]).await;
    assert!(late.is_ok(), "{late:?}");
    assert_eq!(content, Err(ProblemCode::Unavailable));
    assert!(!kept, "the acknowledged record is somewhere");
}

//! Many held locks: all survive a SIGKILL. Memory, rates and start-up time are only printed.
//!
//! `PALISADE_LOCKS=1000000 cargo xtask test -- many_held_locks` runs the full size.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::server_process::{ServerProcess, Stopwatch, asking};
use palisade_client::Client;
use palisade_client::service::{Acquired, LockService};
use rustix::process::Signal;

const TTL: Duration = Duration::from_secs(3_600);
const LOOPS: usize = 512;

async fn hold(service: Arc<dyn LockService>, numbers: Range<usize>, metadata: Option<Box<str>>) {
    for at in numbers.step_by(LOOPS) {
        let mut wish = asking(
            &format!("held/{at:07}"),
            &format!("client-{}", at % 1_000),
            TTL,
            None,
        );
        wish.metadata.clone_from(&metadata);
        let outcome = service.acquire(wish).await.unwrap();
        assert!(matches!(outcome, Acquired::Granted(_)), "{outcome:?}");
    }
}

async fn hold_all(client: &Client, numbers: Range<usize>, metadata: Option<Box<str>>) {
    let loops: Vec<_> = numbers
        .clone()
        .take(LOOPS)
        .map(|first| {
            let service = Arc::clone(client.service());
            tokio::spawn(hold(service, first..numbers.end, metadata.clone()))
        })
        .collect();
    for one in loops {
        one.await.unwrap();
    }
}

fn proc_number(pid: i32, file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Waits half a minute at most: an idle server soon makes a snapshot.
async fn until_at_rest(pid: i32) {
    for _ in 0..30 {
        let ticks = cpu_ticks(pid);
        tokio::time::sleep(Duration::from_secs(1)).await; // real time: a thread makes the snapshot
        if cpu_ticks(pid) - ticks <= 2 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_locks_survive_a_sigkill() {
    let locks: usize =
        std::env::var("PALISADE_LOCKS").map_or(100_000, |text| text.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = ServerProcess::begin(&data);
    let empty = proc_number(server.pid(), "status", "VmRSS");

    let watch = Stopwatch::start();
    let client = Client::connect(&server.url).await.unwrap();
    hold_all(&client, 0..locks, None).await;
    let rate = locks as f64 / watch.elapsed().as_secs_f64();
    let full = proc_number(server.pid(), "status", "VmRSS");
    println!("{locks} locks held, each under a lease of its own: {rate:.0} grants/s");
    println!(
        "server memory {} MiB, {} bytes a lock",
        full / 1_024,
        (full - empty) * 1_024 / locks as u64
    );

    until_at_rest(server.pid()).await;
    let ticks = cpu_ticks(server.pid());
    tokio::time::sleep(Duration::from_secs(2)).await; // real time: the CPU an idle server uses
    println!(
        "idle server: {:.1} % of a core",
        (cpu_ticks(server.pid()) - ticks) as f64 / 2.0
    );

    server.end(Signal::KILL);
    let server = ServerProcess::begin(&data);
    let client = Client::connect(&server.url).await.unwrap();
    let outcome = client
        .service()
        .acquire(asking("first", "c", TTL, None))
        .await
        .unwrap();
    println!(
        "first grant {:.2} s after the start",
        server.begun.elapsed().as_secs_f64()
    );
    let Acquired::Granted(granted) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(granted.token.get(), locks as u64 + 1);
    assert_eq!(client.status().await.unwrap().locks, locks as u64 + 1);
}

/// The fraction of a server's peak memory that is still in use some time after its snapshot.
async fn left_after_a_snapshot(environment: &[(&str, &str)], enough: f64) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = ServerProcess::begin_with(&data, environment);
    let client = Client::connect(&server.url).await.unwrap();
    let files = |begin: &str, end: &str| {
        let names = std::fs::read_dir(&data).unwrap();
        let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with(begin) && name.ends_with(end))
            .count()
    };
    let made = || files("snap-", ".snap") > 0;
    let metadata: Box<str> = "m".repeat(256).into();
    // Three sealed segments, of 1, 16 and 16 MiB, are worth a snapshot when the server is idle.
    for fill in 0.. {
        if made() || files("log-", ".seg") > 3 {
            break;
        }
        assert!(fill < 40, "no segment is sealed");
        let numbers = fill * 10_000..(fill + 1) * 10_000;
        hold_all(&client, numbers, Some(metadata.clone())).await;
    }
    let watch = Stopwatch::start();
    while !made() {
        assert!(watch.elapsed() < Duration::from_secs(60), "no snapshot");
        tokio::time::sleep(Duration::from_millis(20)).await; // real time: a thread makes it
    }
    let mut left = 1.0;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await; // real time: a thread gives memory back
        let memory = |field| proc_number(server.pid(), "status", field) as f64;
        left = memory("VmRSS") / memory("VmHWM");
        if left < enough {
            break;
        }
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_has_given_back_the_memory_of_its_snapshot() {
    const ENOUGH: f64 = 0.75;
    let left = left_after_a_snapshot(&[], ENOUGH).await;
    println!("left of the most: {left:.2}");
    assert!(left < ENOUGH, "{left}");
    let kept = left_after_a_snapshot(&[("MIMALLOC_PURGE_DELAY", "-1")], ENOUGH).await;
    println!("left with an allocator that keeps it: {kept:.2}");
    assert!(kept >= ENOUGH, "{kept}");
}

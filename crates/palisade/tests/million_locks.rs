//! Many held locks: all of them are there after a SIGKILL. Memory, rates and start-up are printed; they
//! decide nothing.
//!
//! `PALISADE_LOCKS=1000000 cargo xtask test -- many_held_locks` is the full size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod life;

use std::sync::Arc;
use std::time::Duration;

use life::{Life, Watch, asking};
use palisade_client::Client;
use palisade_client::service::{Acquired, LockService};
use rustix::process::Signal;

const TTL: Duration = Duration::from_secs(3_600);
const LOOPS: usize = 512;

async fn hold(service: Arc<dyn LockService>, first: usize, locks: usize) {
    for at in (first..locks).step_by(LOOPS) {
        let wish = asking(
            &format!("held/{at:07}"),
            &format!("client-{}", at % 1_000),
            TTL,
            None,
        );
        let outcome = service.acquire(wish).await.unwrap();
        assert!(matches!(outcome, Acquired::Granted(_)), "{outcome:?}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_locks_survive_a_sigkill() {
    let locks: usize =
        std::env::var("PALISADE_LOCKS").map_or(100_000, |text| text.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Life::begin(&data);
    let empty = proc_number(server.pid(), "status", "VmRSS");

    let watch = Watch::start();
    let client = Client::connect(&server.url).await.unwrap();
    let loops: Vec<_> = (0..LOOPS)
        .map(|first| tokio::spawn(hold(Arc::clone(client.service()), first, locks)))
        .collect();
    for one in loops {
        one.await.unwrap();
    }
    let rate = locks as f64 / watch.elapsed().as_secs_f64();
    let full = proc_number(server.pid(), "status", "VmRSS");
    println!("{locks} locks held, each under a lease of its own: {rate:.0} grants/s");
    println!(
        "server memory {} MiB, {} bytes a lock",
        full / 1_024,
        (full - empty) * 1_024 / locks as u64
    );

    let ticks = cpu_ticks(server.pid());
    tokio::time::sleep(Duration::from_secs(2)).await; // real time: the CPU an idle server uses
    println!(
        "idle server: {:.1} % of a core",
        (cpu_ticks(server.pid()) - ticks) as f64 / 2.0
    );

    server.end(Signal::KILL);
    let server = Life::begin(&data);
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

//! The cost of a fence in Redis: the same write with and without a fence, interleaved, in one run.
//!
//! ```text
//! cargo bench -p palisade-fence --features redis --bench fence_cost_redis
//! ```
//!
//! It starts its own Redis, without persistence, so that nothing hides the script's cost. Each round runs
//! every arm once for `PALISADE_MILLIS` (200). The program prints medians over `PALISADE_ROUNDS` (25), and
//! the range of the ratios in the middle half of the rounds. Every connection writes its own key, one write
//! after the other. The second plain arm is the control: the distance of its ratio from 1 is the resolution
//! of this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::time::{Duration, Instant};

use palisade_core::Token;
use palisade_fence::Sequence;
use palisade_fence::redis::{Resource, Script};
use palisade_testbed::Redis;
use redis::aio::MultiplexedConnection;
use redis::cmd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Plain,
    Fenced,
    Numbered,
    PlainScript,
    FencedScript,
}

const ARMS: [(Arm, &str); 6] = [
    (Arm::Plain, "plain SET"),
    (Arm::Plain, "plain SET again"),
    (Arm::Fenced, "fenced SET"),
    (Arm::Numbered, "fenced SET with a sequence number"),
    (Arm::PlainScript, "EVALSHA of a script that does SET"),
    (Arm::FencedScript, "the same script behind the fence"),
];

const LUA: &str = "return redis.call('SET', KEYS[1], ARGV[1])";

struct Worker {
    connection: MultiplexedConnection,
    resource: Resource,
    numbered: Resource,
    key: String,
    script: Script,
    hash: String,
    sequence: u64,
}

impl Worker {
    async fn new(url: &str, name: &str) -> Worker {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let resource = Resource::new(name).unwrap();
        let numbered = Resource::new(&format!("{name}-numbered")).unwrap();
        for resource in [&resource, &numbered] {
            let token = Token::new(1_000).unwrap();
            resource.claim(&mut connection, token).await.unwrap();
        }
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(LUA);
        Worker {
            hash: load.query_async(&mut connection).await.unwrap(),
            key: resource.key("data"),
            script: Script::new(LUA).unwrap(),
            connection,
            resource,
            numbered,
            sequence: 0,
        }
    }

    async fn write(&mut self, arm: Arm, bytes: &[u8]) {
        let token = Token::new(1_000).unwrap();
        let (connection, key) = (&mut self.connection, self.key.as_str());
        let write = self.resource.write(token);
        match arm {
            Arm::Plain => {
                let mut set = cmd("SET");
                set.arg(key).arg(bytes);
                set.exec_async(connection).await.unwrap();
            }
            Arm::PlainScript => {
                let mut run = cmd("EVALSHA");
                run.arg(&self.hash).arg(1).arg(key).arg(bytes);
                run.exec_async(connection).await.unwrap();
            }
            Arm::Fenced => {
                write.set(connection, key, bytes).await.unwrap();
            }
            Arm::Numbered => {
                self.sequence += 1;
                let sequence = Sequence::new(self.sequence).unwrap();
                let write = self.numbered.write(token).numbered(sequence);
                let key = self.numbered.key("data");
                write.set(connection, &key, bytes).await.unwrap();
            }
            Arm::FencedScript => {
                write
                    .run::<_, redis::Value>(connection, &self.script, &[key], &[bytes])
                    .await
                    .unwrap();
            }
        }
    }
}

/// Returns the writes per second of these workers.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
async fn measure(workers: &mut Vec<Worker>, arm: Arm, time: Duration) -> f64 {
    let began = Instant::now();
    let tasks: Vec<_> = workers
        .drain(..)
        .map(|mut worker| {
            tokio::spawn(async move {
                let (mut writes, bytes) = (0_u32, [b'x'; 100]);
                while began.elapsed() < time {
                    worker.write(arm, &bytes).await;
                    writes += 1;
                }
                (worker, writes)
            })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        let (worker, writes) = task.await.unwrap();
        workers.push(worker);
        all += writes;
    }
    f64::from(all) / began.elapsed().as_secs_f64()
}

/// Returns this quantile, in hundredths, of the sorted figures.
fn quantile(figures: &mut [f64], hundredths: usize) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() - 1) * hundredths / 100]
}

fn setting(name: &str, usual: u32) -> u32 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// The name of the processor in Linux.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = model
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, {}", name.unwrap_or("unknown"))
}

#[tokio::main]
async fn main() {
    let server = Redis::start(&[]);
    let url = server.url();
    let client = redis::Client::open(url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let info: String = cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .unwrap();
    let version = info.lines().find(|line| line.starts_with("redis_version"));
    let (rounds, millis) = (
        setting("PALISADE_ROUNDS", 25),
        setting("PALISADE_MILLIS", 200),
    );
    println!(
        "{}, {}\n{rounds} rounds of {millis} ms an arm, interleaved; ratios within a round",
        version.unwrap_or_default(),
        machine()
    );
    let time = Duration::from_millis(u64::from(millis));
    for connections in [1, 16] {
        let mut workers = Vec::new();
        for number in 0..connections {
            workers.push(Worker::new(&url, &format!("{number}-of-{connections}")).await);
        }
        let mut seen: Vec<Vec<f64>> = vec![Vec::new(); ARMS.len()];
        for round in 0..rounds as usize {
            for turn in 0..ARMS.len() {
                // Each round begins with another arm.
                let at = (turn + round) % ARMS.len();
                seen[at].push(measure(&mut workers, ARMS[at].0, time).await);
            }
        }
        println!("\n{connections} connection(s)");
        for ((_, name), figures) in ARMS.iter().zip(&seen) {
            let ratios = figures.iter().zip(&seen[0]).map(|(arm, plain)| arm / plain);
            let (mut ratios, mut figures): (Vec<f64>, _) = (ratios.collect(), figures.clone());
            let [low, middle, high] = [25, 50, 75].map(|at| quantile(&mut ratios, at));
            let writes = quantile(&mut figures, 50);
            println!("  {name:36} {writes:8.0}/s  {middle:5.2}  ({low:.2} to {high:.2})");
        }
    }
}

//! The cost of a fence in PostgreSQL: the same write with and without a fence, interleaved, in one run.
//!
//! ```text
//! cargo bench -p palisade-fence --features postgres,sqlx-postgres --bench fence_cost_postgres
//! ```
//!
//! It starts its own PostgreSQL with default settings (every commit is synced). Each round runs every arm
//! once for `PALISADE_MILLIS` (300). The program prints medians over `PALISADE_ROUNDS` (25), and the range of
//! the ratios in the middle half of the rounds. Every connection writes its own row. The second plain arm is
//! the control: the distance of its ratio from 1 is the resolution of this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::time::{Duration, Instant};

use palisade_core::Token;
use palisade_fence::postgres::{Column, Guard, KeyType, MIGRATIONS, Records, Strategy, claim};
use palisade_testbed::Postgres;
use tokio_postgres::{Client, NoTls, Statement};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Plain,
    Optimistic,
    PlainTransaction,
    GuardRow,
    OneRoundTrip,
    PlainPessimistic,
    Pessimistic,
}

const ARMS: [(Arm, &str); 8] = [
    (Arm::Plain, "plain UPDATE"),
    (Arm::Plain, "plain UPDATE again"),
    (Arm::Optimistic, "UPDATE … AND last_fencing_token <= $3"),
    (Arm::PlainTransaction, "BEGIN, UPDATE, COMMIT"),
    (Arm::GuardRow, "BEGIN, claim the guard row, UPDATE, COMMIT"),
    (Arm::OneRoundTrip, "the same, sent together"),
    (
        Arm::PlainPessimistic,
        "BEGIN, SELECT FOR UPDATE, UPDATE, COMMIT",
    ),
    (Arm::Pessimistic, "BEGIN, Records pessimistic, COMMIT"),
];

struct Worker {
    client: Client,
    row: String,
    plain: Statement,
    fenced: Statement,
    lock: Statement,
}

impl Worker {
    async fn new(url: &str, number: usize) -> Worker {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let row = format!("row-{number}");
        let column = Column::new(
            "resource_records",
            "resource_id",
            KeyType::Text,
            "last_fencing_token",
        );
        let condition = column.unwrap().condition(3);
        let set = "UPDATE resource_records SET resource_data = $2, updated_at = now()";
        let insert =
            "INSERT INTO resource_records (resource_id) VALUES ($1) ON CONFLICT DO NOTHING";
        client.execute(insert, &[&row]).await.unwrap();
        let fenced =
            format!("{set}, last_fencing_token = $3 WHERE resource_id = $1 AND {condition}");
        Worker {
            row,
            plain: client
                .prepare(&format!("{set} WHERE resource_id = $1"))
                .await
                .unwrap(),
            fenced: client.prepare(&fenced).await.unwrap(),
            lock: client
                .prepare(
                    "SELECT resource_data FROM resource_records WHERE resource_id = $1 FOR UPDATE",
                )
                .await
                .unwrap(),
            client,
        }
    }

    async fn write(&mut self, arm: Arm) {
        let (row, data, token) = (&self.row, "x".repeat(100), Token::new(1_000).unwrap());
        let number = 1_000_i64;
        match arm {
            Arm::Plain => assert_eq!(
                self.client
                    .execute(&self.plain, &[row, &data])
                    .await
                    .unwrap(),
                1
            ),
            Arm::Optimistic => {
                let hit = self
                    .client
                    .execute(&self.fenced, &[row, &data, &number])
                    .await
                    .unwrap();
                assert_eq!(hit, 1);
            }
            Arm::Pessimistic => {
                let mut tx = self.client.transaction().await.unwrap();
                let records = Records::new(Strategy::Pessimistic);
                let written = records.write(&mut tx, row, token, &data).await;
                written.unwrap();
                tx.commit().await.unwrap();
            }
            Arm::OneRoundTrip => {
                let written = Guard::CLAIM
                    .execute(&self.client, row, token, &self.plain, &[row, &data])
                    .await;
                written.unwrap();
            }
            Arm::PlainTransaction | Arm::GuardRow | Arm::PlainPessimistic => {
                let mut tx = self.client.transaction().await.unwrap();
                if arm == Arm::GuardRow {
                    claim(&mut tx, row, token).await.unwrap();
                } else if arm == Arm::PlainPessimistic {
                    tx.query_one(&self.lock, &[row]).await.unwrap();
                }
                tx.execute(&self.plain, &[row, &data]).await.unwrap();
                tx.commit().await.unwrap();
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
                let mut writes = 0_u32;
                while began.elapsed() < time {
                    worker.write(arm).await;
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

#[tokio::main]
async fn main() {
    let server = Postgres::start(&[]);
    let url = server.url();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    for (_, sql) in MIGRATIONS {
        client.batch_execute(sql).await.unwrap();
    }
    let version: String = client
        .query_one("SELECT version()", &[])
        .await
        .unwrap()
        .get(0);
    let (rounds, millis) = (
        setting("PALISADE_ROUNDS", 25),
        setting("PALISADE_MILLIS", 300),
    );
    println!(
        "{version}\n{rounds} rounds of {millis} ms an arm, interleaved; ratios within a round"
    );
    let time = Duration::from_millis(u64::from(millis));
    for connections in [1, 16] {
        let mut workers = Vec::new();
        for number in 0..connections {
            workers.push(Worker::new(&url, number).await);
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
            println!("  {name:44} {writes:8.0}/s  {middle:5.2}  ({low:.2} to {high:.2})");
        }
    }
}

//! The scenario, with an authority whose clock is manual, so that every run is the same.

use std::sync::Arc;

use palisade_client::in_process::InProcess;
use palisade_client::{Client, secs};
use palisade_core::Span;
use palisade_fence::postgres::MIGRATIONS;
use tokio_postgres::NoTls;

use crate::{Desk, Failure, Mode, Ticket};

const SEAT: &str = "12A";
const LEASE_SECONDS: u64 = 10;

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Alice's outcome.
    pub alice: Ticket,
    /// Bob's outcome.
    pub bob: Ticket,
    /// The passenger's name on the seat.
    pub seated: Option<String>,
    /// The customers who have paid and got no refund.
    pub charged: Vec<String>,
}

/// Runs the scenario once, in its own tables, and reports it line by line.
///
/// # Errors
/// Errors of the database or the authority.
pub async fn run(url: &str, mode: Mode, mut log: impl FnMut(String)) -> Result<Outcome, Failure> {
    prepare(url).await?;
    let authority = Arc::new(InProcess::with_manual_clock()?);
    let (mut alice, mut bob) = (Desk::open(url, mode).await?, Desk::open(url, mode).await?);
    let lock = format!("seat:{SEAT}");
    let request = async || {
        let client = Client::new(authority.clone())?;
        client
            .lock(&lock)
            .ttl(secs(LEASE_SECONDS))
            .wait(secs(5))
            .acquire()
            .await
    };

    let hers = request().await?;
    let free = alice.is_free(SEAT, hers.token()).await?;
    log(format!(
        "Alice holds the lock on seat {SEAT}, token {}. Free: {free}. She pays; her bank is slow.",
        hers.token()
    ));

    let seconds = LEASE_SECONDS + 1;
    authority
        .advance(Span::from_millis(1_000 * seconds))
        .await?;
    log(format!(
        "{seconds} s later her lease of {LEASE_SECONDS} s has expired. Her process has not noticed."
    ));

    let his = request().await?;
    let free = bob.is_free(SEAT, his.token()).await?;
    log(format!(
        "Bob holds the lock now, token {}. Free: {free}. He pays at once.",
        his.token()
    ));
    let payment = bob.charge("Bob").await?;
    let bobs = bob.book(SEAT, "Bob", his.token(), payment).await?;
    log(format!("Bob gets the answer: {}.", words(bobs)));

    let payment = alice.charge("Alice").await?;
    log("Alice's payment has finally gone through. Her process books the seat.".to_owned());
    let hers = alice.book(SEAT, "Alice", hers.token(), payment).await?;
    log(format!("Alice gets the answer: {}.", words(hers)));
    outcome(url, hers, bobs).await
}

const fn words(ticket: Ticket) -> &'static str {
    match ticket {
        Ticket::Booked => "seat 12A is yours",
        Ticket::Refunded => "seat 12A is gone, here is your money back",
    }
}

/// Creates new tables. Tokens of an authority in memory start at 1 again, so this also removes the fence of the
/// seat. A program with a durable authority must not do that.
async fn prepare(url: &str) -> Result<(), Failure> {
    let (database, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    for (_, sql) in MIGRATIONS {
        database.batch_execute(sql).await?;
    }
    let forget = "BEGIN; SET LOCAL palisade.rearm = 'on';
        DELETE FROM palisade_fence WHERE resource = 'seat:12A'; COMMIT";
    database.batch_execute(forget).await?;
    Ok(database
        .batch_execute(include_str!("../sql/shop.sql"))
        .await?)
}

async fn outcome(url: &str, alice: Ticket, bob: Ticket) -> Result<Outcome, Failure> {
    let (database, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let seat = database
        .query_one("SELECT passenger FROM seats WHERE seat = $1", &[&SEAT])
        .await?;
    let sql = "SELECT passenger FROM payments WHERE NOT refunded ORDER BY passenger";
    let charged = database.query(sql, &[]).await?;
    Ok(Outcome {
        alice,
        bob,
        seated: seat.get(0),
        charged: charged.iter().map(|row| row.get(0)).collect(),
    })
}

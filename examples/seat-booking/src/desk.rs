//! The booking desk of one customer: its connection to the database, and to the payment provider.

use palisade_client::Token;
use palisade_fence::postgres::{Refused, claim};
use tokio_postgres::{Client, NoTls, Transaction};

use crate::{Failure, Mode};

const PRICE_CENTS: i64 = 12_900;

/// Looks, charges, books and refunds.
pub struct Desk {
    database: Client,
    mode: Mode,
}

/// What the customer gets in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// The seat.
    Booked,
    /// No seat, and the money back.
    Refunded,
}

impl Desk {
    /// Connects.
    ///
    /// # Errors
    /// The database's.
    pub async fn open(url: &str, mode: Mode) -> Result<Desk, Failure> {
        let (database, connection) = tokio_postgres::connect(url, NoTls).await?;
        // It ends with its client.
        tokio::spawn(connection);
        Ok(Desk { database, mode })
    }

    /// Whether the seat is free. The claim comes before this first read: from its commit on, nobody with
    /// an older token changes what was seen here.
    ///
    /// # Errors
    /// The fence's and the database's.
    pub async fn is_free(&mut self, seat: &str, token: Token) -> Result<bool, Refused> {
        let mut tx = self.database.transaction().await?;
        enter(self.mode, &mut tx, seat, token).await?;
        let sql = "SELECT passenger IS NULL FROM seats WHERE seat = $1";
        let free = tx.query_one(sql, &[&seat]).await?.get(0);
        tx.commit().await?;
        Ok(free)
    }

    /// Asks the payment provider for the money; gives the payment's number.
    ///
    /// # Errors
    /// The provider's, which here is a table.
    pub async fn charge(&self, passenger: &str) -> Result<i64, Failure> {
        let sql = "INSERT INTO payments (passenger, cents) VALUES ($1, $2) RETURNING id";
        let row = self
            .database
            .query_one(sql, &[&passenger, &PRICE_CENTS])
            .await?;
        Ok(row.get(0))
    }

    /// Books the seat, or gives the money back if somebody newer has the seat in hand.
    ///
    /// # Errors
    /// The database's.
    pub async fn book(
        &mut self,
        seat: &str,
        passenger: &str,
        token: Token,
        payment: i64,
    ) -> Result<Ticket, Failure> {
        match self.write(seat, passenger, token).await {
            Ok(()) => Ok(Ticket::Booked),
            Err(Refused::Rejected(_)) => {
                self.refund(payment).await?;
                Ok(Ticket::Refunded)
            }
            Err(Refused::Fault(fault)) => Err(fault.into()),
        }
    }

    async fn write(&mut self, seat: &str, passenger: &str, token: Token) -> Result<(), Refused> {
        let mut tx = self.database.transaction().await?;
        enter(self.mode, &mut tx, seat, token).await?;
        let sql = "UPDATE seats SET passenger = $2 WHERE seat = $1";
        tx.execute(sql, &[&seat, &passenger]).await?;
        Ok(tx.commit().await?)
    }

    /// The compensation: in a transaction of its own, for the rejected one is rolled back. Asking twice
    /// gives the money back once.
    async fn refund(&self, payment: i64) -> Result<(), Failure> {
        let sql = "UPDATE payments SET refunded = true WHERE id = $1";
        self.database.execute(sql, &[&payment]).await?;
        Ok(())
    }
}

async fn enter(
    mode: Mode,
    tx: &mut Transaction<'_>,
    seat: &str,
    token: Token,
) -> Result<(), Refused> {
    if mode == Mode::Fenced {
        claim(tx, &format!("seat:{seat}"), token).await?;
    }
    Ok(())
}

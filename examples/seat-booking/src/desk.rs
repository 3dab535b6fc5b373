//! One customer's booking desk, with its connection to the database and to the payment provider.

use palisade_client::Token;
use palisade_fence::postgres::claim;
use palisade_fence::rejection;
use tokio_postgres::{Client, NoTls, Transaction};

use crate::{Failure, Mode};

const PRICE_CENTS: i64 = 12_900;

/// Checks, charges, books and refunds.
pub struct Desk {
    database: Client,
    mode: Mode,
}

/// The outcome for the customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// The seat.
    Booked,
    /// No seat, and the money is refunded.
    Refunded,
}

impl Desk {
    /// Opens a connection.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn open(url: &str, mode: Mode) -> Result<Desk, Failure> {
        let (database, connection) = tokio_postgres::connect(url, NoTls).await?;
        // The task ends with its client.
        tokio::spawn(connection);
        Ok(Desk { database, mode })
    }

    /// Whether the seat is free. The claim precedes this first read: from its commit on, no client with an
    /// older token changes the data that was read here.
    ///
    /// # Errors
    /// The rejection, if a newer holder has claimed the seat; errors of the database.
    pub async fn is_free(&mut self, seat: &str, token: Token) -> Result<bool, Failure> {
        let mut tx = self.database.transaction().await?;
        enter(self.mode, &mut tx, seat, token).await?; // with `?`, the transaction is dropped and rolls back
        let sql = "SELECT passenger IS NULL FROM seats WHERE seat = $1";
        let free = tx.query_one(sql, &[&seat]).await?.get(0);
        tx.commit().await?;
        Ok(free)
    }

    /// Charges the customer through the payment provider; returns the payment's number.
    ///
    /// # Errors
    /// Errors of the provider, which is a table in this example.
    pub async fn charge(&self, passenger: &str) -> Result<i64, Failure> {
        let sql = "INSERT INTO payments (passenger, cents) VALUES ($1, $2) RETURNING id";
        let row = self
            .database
            .query_one(sql, &[&passenger, &PRICE_CENTS])
            .await?;
        Ok(row.get(0))
    }

    /// Books the seat, or refunds the money if a newer holder has claimed the seat.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn book(
        &mut self,
        seat: &str,
        passenger: &str,
        token: Token,
        payment: i64,
    ) -> Result<Ticket, Failure> {
        match self.write(seat, passenger, token).await {
            Ok(()) => Ok(Ticket::Booked),
            Err(error) if rejection(&*error).is_some() => {
                self.refund(payment).await?;
                Ok(Ticket::Refunded)
            }
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, seat: &str, passenger: &str, token: Token) -> Result<(), Failure> {
        let mut tx = self.database.transaction().await?;
        enter(self.mode, &mut tx, seat, token).await?;
        let sql = "UPDATE seats SET passenger = $2 WHERE seat = $1";
        tx.execute(sql, &[&seat, &passenger]).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The compensation. It runs in its own transaction, because the rejected one is rolled back. A second
    /// call does not refund again.
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
) -> Result<(), Failure> {
    if mode == Mode::Fenced {
        claim(tx, &format!("seat:{seat}"), token).await?;
    }
    Ok(())
}

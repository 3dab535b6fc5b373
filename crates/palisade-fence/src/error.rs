//! The error of the crate.
//!
//! The crate's page has an example that must not compile. This is its control: with `?` it compiles.
//!
//! ```
//! #![deny(unused_must_use)]
//! # use palisade_fence::{Edit, Fence, Pass, Write};
//! async fn forgets(seat: &impl Fence, pass: Pass<'_>) -> palisade_fence::Result<()> {
//!     seat.write(pass, Write::new("/passenger", Edit::Put(b"Alice"))).await?;
//!     Ok(())
//! }
//! ```

use palisade_core::fence::{FloorTooLow, Reject};

use crate::name::Invalid;

/// The result of a fence's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation that a fence refused, or that failed. [`Error::kind`] says what to do next.
///
/// A refused operation is an error like any other: one `?` ends the work of a stale holder, and no ignored result
/// passes for success. [`Error::rejected`] distinguishes a refusal from a failure:
///
/// ```
/// # use palisade_core::Token;
/// # use palisade_fence::{Edit, Error, Fence, StoreLimits, Rule, Write, memory};
/// # async fn book() -> palisade_fence::Result<()> {
/// # let seat = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT).resource("seat:12A")?;
/// # let (mine, newer) = (Token::FIRST.into(), Token::new(2).unwrap().into());
/// # seat.claim(newer).await?;
/// match seat.write(mine, Write::new("/passenger", Edit::Put(b"Alice"))).await {
///     Ok(_) => println!("booked"),
///     Err(Error::Rejected(reject)) => println!("give up: {reject}"), // token 1 is stale: 1 < 2 …
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(book()).unwrap();
/// ```
///
/// Its text does not repeat the [`source`](std::error::Error::source), the error of the driver or the system;
/// [`Error::report`] returns both. (Only a database's own message is part of the text.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fence refused the operation; nothing changed. It was logged and counted ([`audit`](crate::audit)).
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// The name of a resource or the path of an object is not valid.
    #[error(transparent)]
    Name(#[from] Invalid),
    /// An argument is invalid; the text names it and the allowed values.
    #[error("{0}")]
    Argument(String),
    /// The object would be larger than [`StoreLimits::object_bytes`](crate::StoreLimits::object_bytes).
    #[error("the object would have {bytes} bytes; at most {max} are allowed (object_bytes)")]
    ObjectTooLarge {
        /// The size that it would have.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A fence cannot be re-armed with a floor below its token.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// DynamoDB: a condition of the caller was false.
    #[error("the condition of item {index} of the write did not hold; nothing was written")]
    Condition {
        /// The index of the item in the list, starting at 0.
        index: usize,
    },
    /// Redis: the command failed, for example on a key of another type. The fence was not raised.
    #[error("the command failed, and nothing was written: {0}")]
    Command(String),
    /// Redis: the caller's own script failed. **Its earlier writes stay**, and so does the raised fence, because Redis
    /// does not roll back. A repeat of a numbered write gets the same answer.
    #[error("the script failed; its earlier writes stay: {0}")]
    Script(String),
    /// The connection is not in a transaction, so check and effect could not be one step.
    #[error("a fence needs a transaction: begin one, and write in it")]
    NoTransaction,
    /// The transaction read before it claimed this resource. Its data may be older than the last write under the guard
    /// row, and writes computed from it would be wrong.
    #[error(
        "the transaction has read before it claimed {0}, and what it has read may be older than the last write: \
         begin again, and claim first"
    )]
    ReadBeforeClaim(String),
    /// Others held the resource for the whole wait, or changed it at each attempt.
    #[error("{0}")]
    Busy(String),
    /// It is unknown whether the write took effect.
    #[error("{0}")]
    UnknownOutcome(String),
    /// A table or a function of the fence is missing. The text contains the database's message, and how to create it.
    #[error("the fence is not installed in this database ({0})")]
    NotInstalled(String),
    /// There is data without a fence (rule F7). An operator must restore the fence, or re-arm it with a floor. The same
    /// applies to data that existed before the fence.
    #[error("{0}")]
    FenceLost(String),
    /// Something other than the fence changed its record or its data; the text describes the damage.
    #[error("{0}")]
    Damaged(String),
    /// The server's configuration does not allow a safe fence.
    #[error("{0}")]
    Unsuitable(String),
    /// The store would be larger than [`StoreLimits::total_bytes`](crate::StoreLimits::total_bytes).
    #[error("the store is full: {max} bytes are allowed in all (total_bytes)")]
    StorageFull {
        /// The limit.
        max: u64,
    },
    /// The disk is full. Reads under the same token and rejections still work; writes work again once there is room.
    #[error("{0}; nothing was written")]
    DiskFull(String),
    /// The store has stopped. A restart recovers it.
    #[error("the store has stopped: {0}")]
    Stopped(String),
    /// The database answered with an error of its own. Inside a transaction nothing took effect.
    #[error("the database answered {state}: {message}")]
    Database {
        /// The database's own code: SQLSTATE in PostgreSQL, the number of the error elsewhere.
        state: String,
        /// Its message.
        message: String,
        /// The next step: [`ErrorKind::Retry`] if the same transaction may succeed when it is begun again.
        kind: ErrorKind,
        /// The driver's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The resource, or access to it, failed: a connection, a request, a call to the file system.
    #[error("{what}")]
    Failed {
        /// The operation that failed.
        what: String,
        /// The next step for the caller.
        kind: ErrorKind,
        /// The error of the driver or the system.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Returns the reason if this error, or one of its causes, is a fence's refusal. Use it with `Box<dyn Error>` and other
/// error types that wrap [`enum@Error`].
#[must_use]
pub fn rejection<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Reject> {
    let mut chain = std::iter::successors(Some(error), |error| error.source());
    chain.find_map(|error| error.downcast_ref::<Error>()?.rejected())
}

/// The next step for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Stop: the fence refused, and nothing changed. [`Error::rejected`] says why. Nearly always, a newer holder has
    /// claimed the resource.
    Rejected,
    /// Nothing took effect, and the same call may succeed: make it again. In a database: roll back, and begin the same
    /// transaction again.
    Retry,
    /// It is unknown whether a write took effect: repeat it under its sequence number, or read the resource.
    Unknown,
    /// Change the call; it cannot succeed as it is. Nothing took effect, except that in Redis the earlier writes of the
    /// caller's own failed script stay.
    Invalid,
    /// Nothing took effect, and nothing will until an operator acts; the message says how.
    Operator,
}

impl Error {
    /// Creates the error of a resource that this crate does not know, for your own [`Fence`](crate::Fence).
    pub fn failed(
        kind: ErrorKind,
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::Failed {
            what: what.into(),
            kind,
            source: source.into(),
        }
    }

    /// Returns what the caller should do next.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Error::Rejected(_) => ErrorKind::Rejected,
            Error::ReadBeforeClaim(_) | Error::Busy(_) => ErrorKind::Retry,
            Error::UnknownOutcome(_) => ErrorKind::Unknown,
            Error::Name(_)
            | Error::Argument(_)
            | Error::ObjectTooLarge { .. }
            | Error::FloorTooLow(_)
            | Error::Condition { .. }
            | Error::Command(_)
            | Error::Script(_)
            | Error::NoTransaction => ErrorKind::Invalid,
            Error::NotInstalled(_)
            | Error::FenceLost(_)
            | Error::Damaged(_)
            | Error::Unsuitable(_)
            | Error::StorageFull { .. }
            | Error::DiskFull(_)
            | Error::Stopped(_) => ErrorKind::Operator,
            Error::Database { kind, .. } | Error::Failed { kind, .. } => *kind,
        }
    }

    /// Returns the reason if the fence refused the operation.
    #[must_use]
    pub const fn rejected(&self) -> Option<&Reject> {
        match self {
            Error::Rejected(reject) => Some(reject),
            _ => None,
        }
    }

    /// Returns the database's own code, if the error is the database's.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        match self {
            Error::Database { state, .. } => Some(state),
            _ => None,
        }
    }

    /// Returns the message and those of its causes, each once, on one line.
    #[must_use]
    pub fn report(&self) -> String {
        let cause = match self {
            Error::Database { .. } => None,
            _ => std::error::Error::source(self),
        };
        with_causes(self.to_string(), cause)
    }
}

/// Appends the messages of the causes that `text` does not contain yet.
pub(crate) fn with_causes(
    mut text: String,
    mut cause: Option<&(dyn std::error::Error + 'static)>,
) -> String {
    while let Some(error) = cause {
        let message = error.to_string();
        // Some drivers repeat their causes.
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

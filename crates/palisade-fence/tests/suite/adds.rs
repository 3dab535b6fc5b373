//! Many holders, each with its own token, add to the value that they read: the race through each `transact`.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use palisade_core::Token;
use palisade_fence::rejection;

pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Whether an add was acknowledged; anything else must be a rejection.
pub(crate) fn added(done: Result<(), AnyError>) -> bool {
    match done {
        Ok(()) => true,
        Err(error) => {
            assert!(rejection(&*error).is_some(), "{error}");
            false
        }
    }
}

/// Each connection adds this many times. Returns how many adds were acknowledged.
pub(crate) async fn race<C>(
    connections: impl IntoIterator<Item = C>,
    adds: u64,
    add: impl AsyncFn(&mut C, Token) -> bool,
) -> i64 {
    let next = AtomicU64::new(1);
    let holders = connections.into_iter().map(async |mut connection| {
        let mut added = 0;
        for _ in 0..adds {
            let token = Token::new(next.fetch_add(1, Ordering::Relaxed)).unwrap();
            added += i64::from(add(&mut connection, token).await);
        }
        added
    });
    join_all(holders).await.into_iter().sum()
}

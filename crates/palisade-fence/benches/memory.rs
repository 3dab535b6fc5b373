//! The cost of a check if the resource is in memory.
//!
//! ```text
//! cargo bench -p palisade-fence --bench memory
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use divan::{Bencher, black_box};
use palisade_core::Token;
use palisade_fence::memory::Ratchet;

fn main() {
    divan::main();
}

/// A write under the highest token.
#[divan::bench]
fn the_same_token_again(bencher: Bencher<'_, '_>) {
    let (ratchet, token) = (Ratchet::new(), Token::new(42).unwrap());
    ratchet.present(token).unwrap();
    bencher.bench_local(|| ratchet.present(black_box(token)).unwrap());
}

/// A claim: each token is higher than the previous one.
#[divan::bench]
fn a_higher_token(bencher: Bencher<'_, '_>) {
    let (ratchet, mut number) = (Ratchet::new(), 0);
    bencher.bench_local(|| {
        number += 1;
        ratchet.present(Token::new(number).unwrap()).unwrap();
    });
}

/// A late write.
#[divan::bench]
fn a_stale_token(bencher: Bencher<'_, '_>) {
    let (ratchet, late) = (Ratchet::new(), Token::new(1).unwrap());
    ratchet.present(Token::new(2).unwrap()).unwrap();
    bencher.bench_local(|| ratchet.present(black_box(late)).unwrap_err());
}

//! The cost for a holder of checking its guard before each step of its work.
//!
//! ```text
//! cargo bench -p palisade-client --features in-process --bench guard
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use divan::Bencher;
use palisade_client::Client;
use palisade_client::in_process::InProcess;

fn main() {
    divan::main();
}

#[divan::bench]
fn check(bencher: Bencher<'_, '_>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Client::new(Arc::new(InProcess::start().unwrap())).unwrap();
    let asked = async {
        let lock = client.lock("orders").ttl(Duration::from_secs(3_600));
        lock.acquire().await
    };
    let lease = runtime.block_on(asked).unwrap();
    bencher.bench_local(|| lease.check().unwrap());
}

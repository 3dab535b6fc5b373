//! The cost of a commit: one frame, one write, one sync. The folder is the system's for temporary
//! files, or the one that `PALISADE_BENCH_DIR` names.
//!
//! ```text
//! PALISADE_BENCH_DIR=target cargo bench -p palisade-wal --bench append
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use divan::Bencher;
use divan::counter::BytesCount;
use palisade_wal::{CreateOptions, Options, Wal};

fn main() {
    divan::main();
}

/// From one operation to a large batch.
#[divan::bench(args = [100, 4_096, 65_536], sample_count = 200, sample_size = 1)]
fn commit(bencher: Bencher<'_, '_>, bytes: usize) {
    let place = std::env::var_os("PALISADE_BENCH_DIR")
        .map_or_else(std::env::temp_dir, std::path::PathBuf::from);
    let dir = tempfile::tempdir_in(place).unwrap();
    let create = CreateOptions::default();
    let opened = Wal::create(&dir.path().join("log"), &create, &Options::default()).unwrap();
    let mut wal = opened.into_wal();
    let payload = vec![7; bytes];
    bencher
        .counter(BytesCount::new(bytes))
        .bench_local(|| wal.commit(&payload).unwrap());
}

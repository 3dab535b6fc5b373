//! A process without a free file descriptor goes on committing. A program of its own: it lowers the limit of its process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

#[path = "suite/common.rs"]
mod common;

use std::fs::File;

use common::{Journal, fill};
use palisade_wal::{CreateOptions, Options, Wal};
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn a_log_goes_on_when_every_other_descriptor_is_taken() {
    let settings = Options {
        segment_bytes: 8 << 10,
        first_segment_bytes: 8 << 10,
        ..Options::default()
    };
    let home = tempfile::tempdir().unwrap();
    let opened = Wal::create(home.path(), &CreateOptions::default(), &settings).unwrap();
    let mut wal = opened.into_wal();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(taken.len() > 20);
    for round in 1..=5 {
        fill(&mut wal, 100 * round);
        let made = wal.compactor().compact(&mut Journal::default()).unwrap();
        assert!(made.is_some());
    }
    wal.check_directory().unwrap();
    wal.close().unwrap();
    drop(taken);
    let opened = Wal::open(home.path(), &settings).unwrap();
    assert_eq!(Journal::of(&opened), Journal::upto(500));
}

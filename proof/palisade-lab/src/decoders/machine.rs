//! The contents of the log and of snapshots: entries and records of the machine.

use palisade_core::machine::Record;
use palisade_core::{Machine, invariants};
use palisade_pipeline::codec;
use palisade_pipeline::replay::{Replay, ReplayError};

use crate::history::generate::{self, Shape};

/// A machine built from any bytes must keep its invariants and survive its own snapshot.
fn sound(replay: Replay) {
    let bytes = snapshot_of(&replay);
    let machine = replay.finish();
    assert_eq!(invariants::check(&machine), Ok(()));
    let again = Replay::from_snapshot(1, &bytes);
    assert!(again.is_ok(), "{:?}", again.err());
    if let Ok(again) = again {
        let (again, machine) = (records(&again.finish()), records(&machine));
        assert!(again == machine, "a snapshot of {machine:?} is {again:?}");
    }
}

fn records(machine: &Machine) -> Vec<Record> {
    machine.records().collect()
}

/// A batch of the log, applied to an empty machine.
pub(super) fn log(bytes: &[u8]) -> bool {
    let mut replay = Replay::from_nothing(1);
    let read = replay.batch(bytes);
    // Nothing of an unreadable batch was applied.
    sound(replay);
    is_valid(read)
}

/// A snapshot.
pub(super) fn snapshot(bytes: &[u8]) -> bool {
    is_valid(Replay::from_snapshot(1, bytes).map(sound))
}

fn is_valid(read: Result<(), ReplayError>) -> bool {
    match read {
        Ok(()) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

const SHAPE: Shape = Shape {
    clients: 3,
    locks: 2,
    operations: 30,
    kinds: false,
};

/// The first entries of generated histories, all in one batch.
pub(super) fn log_seeds() -> Vec<(&'static str, Vec<u8>)> {
    ["first", "second", "third"]
        .into_iter()
        .zip(1..)
        .map(|(name, seed)| (name, batch(seed)))
        .collect()
}

fn batch(seed: u64) -> Vec<u8> {
    let entries = generate::log(seed, SHAPE);
    let mut bytes = Vec::new();
    if let Some(last) = entries.last() {
        codec::encode_head(&mut bytes, last.at, last.wall);
    }
    for entry in &entries {
        codec::encode_command(&mut bytes, &entry.command);
    }
    bytes
}

/// Snapshots of machines in the middle of generated histories.
pub(super) fn snapshot_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let names = ["early", "middle", "late"];
    let cuts = names.into_iter().zip([12, 24, 36]);
    cuts.map(|(name, entries)| (name, snapshot_after(entries)))
        .collect()
}

fn snapshot_after(entries: usize) -> Vec<u8> {
    let mut replay = Replay::from_nothing(1);
    for entry in generate::log(4, SHAPE).into_iter().take(entries) {
        let mut bytes = Vec::new();
        codec::encode_head(&mut bytes, entry.at, entry.wall);
        codec::encode_command(&mut bytes, &entry.command);
        let taken = replay.batch(&bytes);
        assert!(taken.is_ok(), "the codec reads what it wrote");
    }
    snapshot_of(&replay)
}

fn snapshot_of(replay: &Replay) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = replay.snapshot(|part| {
        bytes.extend_from_slice(part);
        Ok::<(), std::convert::Infallible>(())
    });
    assert!(written.is_ok());
    bytes
}

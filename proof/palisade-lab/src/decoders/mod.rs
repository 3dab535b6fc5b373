//! Every decoder that takes bytes from outside, as a function that must never panic.
//!
//! ```text
//!   proof/fuzz/fuzz_targets/NAME.rs ─┐                              ┌─► wire · json · log · snapshot
//!   tests/suite/decoders.rs ─────────┴─► TARGETS: bytes ──► target ─┤   log_file · snapshot_file · identity
//!     committed corpus, and mutations of it                         └─► history · words
//! ```
//!
//! libFuzzer and the gate's smoke run share the targets and the corpus. A target asserts more than the absence of
//! panics: decoded values encode to the same bytes again, and a machine built from bytes keeps its invariants.

mod files;
mod machine;
mod mutate;
mod text;
mod wire;

pub use mutate::Mutator;

/// One decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the fuzz target and of its folder in the corpus.
    pub name: &'static str,
    /// Decodes the bytes and returns whether they were valid. A panic is a bug, in the decoder or in the accepted
    /// value.
    pub run: fn(&[u8]) -> bool,
    /// Valid inputs by name, as the product's own encoders write them.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "wire",
        run: wire::frames,
        seeds: wire::frame_seeds,
    },
    Target {
        name: "json",
        run: wire::json,
        seeds: wire::json_seeds,
    },
    Target {
        name: "log",
        run: machine::log,
        seeds: machine::log_seeds,
    },
    Target {
        name: "snapshot",
        run: machine::snapshot,
        seeds: machine::snapshot_seeds,
    },
    Target {
        name: "log_file",
        run: files::segment,
        seeds: files::segment_seeds,
    },
    Target {
        name: "snapshot_file",
        run: files::snapshot,
        seeds: files::snapshot_seeds,
    },
    Target {
        name: "identity",
        run: files::identity,
        seeds: files::identity_seeds,
    },
    Target {
        name: "history",
        run: text::history,
        seeds: text::history_seeds,
    },
    Target {
        name: "words",
        run: text::words,
        seeds: text::word_seeds,
    },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs one target, for the libFuzzer harness.
pub fn run(name: &str, bytes: &[u8]) {
    if let Some(target) = target(name) {
        (target.run)(bytes);
    }
}

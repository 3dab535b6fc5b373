//! A growth battery measures the least of many repetitions, so that other work of the machine cannot make an operation
//! look slower. It compares crowds of 1, 1,000 and 100,000.

use std::time::{Duration, Instant};

/// The costs of one operation beside each crowd.
pub type Costs = [Duration; 3];

/// How many others there are.
pub const CROWDS: [u64; 3] = [1, 1_000, 100_000];

/// The time of the quickest of these repetitions.
#[expect(
    clippy::disallowed_methods,
    reason = "how long an operation takes is measured, and compared within one run"
)]
pub fn least(repeats: u32, mut operation: impl FnMut()) -> Duration {
    let times = (0..repeats).map(|_| {
        let begun = Instant::now();
        operation();
        begun.elapsed()
    });
    times.min().unwrap()
}

/// A list of so many things is dearer by far; caches explain a factor of a few.
#[must_use]
pub fn grows([one, _, most]: Costs) -> bool {
    most > one * 12 + Duration::from_micros(4)
}

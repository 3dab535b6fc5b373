//! Counters of the pipeline, written by its one thread and read by anyone.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::{Change, Ending, Event, Machine, Outcome};

use super::request::{Answer, MetricResult, Operation};

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n: u64) {
        // One writer: a plain store is enough and costs no locked instruction.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

/// How often values fell into each of some ranges. One thread writes, and others read.
#[derive(Debug)]
pub struct Histogram {
    /// The highest value of each range but the last, which has no end.
    bounds: &'static [u64],
    counts: Box<[Counter]>,
    sum: Counter,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Histogram {
        Histogram {
            bounds,
            counts: (0..=bounds.len()).map(|_| Counter::default()).collect(),
            sum: Counter::default(),
        }
    }

    pub(super) fn add(&self, value: u64) {
        let range = self.bounds.partition_point(|bound| *bound < value);
        self.counts[range].add(1);
        self.sum.add(value);
    }

    /// For each range, its highest value (`None` for the last) and how many values are in it.
    pub fn ranges(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some);
        let counts = self.counts.iter().map(Counter::get);
        bounds.chain([None]).zip(counts)
    }

    /// The sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// From a fast disk to one that stalls; requests take about as long.
const SYNCS: &[u64] = &[
    50 * MICROSECOND,
    100 * MICROSECOND,
    250 * MICROSECOND,
    500 * MICROSECOND,
    MILLISECOND,
    2_500 * MICROSECOND,
    5 * MILLISECOND,
    10 * MILLISECOND,
    25 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    250 * MILLISECOND,
    500 * MILLISECOND,
    SECOND,
    5 * SECOND,
];

/// From a lock that was free to the longest possible wait.
const WAITS: &[u64] = &[
    0,
    MILLISECOND,
    10 * MILLISECOND,
    100 * MILLISECOND,
    SECOND,
    10 * SECOND,
    60 * SECOND,
    600 * SECOND,
    3_600 * SECOND,
];

/// From a critical section of a few statements to a job of a week.
const HOLDS: &[u64] = &[
    10 * MILLISECOND,
    100 * MILLISECOND,
    SECOND,
    10 * SECOND,
    60 * SECOND,
    600 * SECOND,
    3_600 * SECOND,
    21_600 * SECOND,
    86_400 * SECOND,
    604_800 * SECOND,
];

const SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096];

macro_rules! stats {
    (
        counters { $($(#[$doc:meta])* $name:ident,)* }
        histograms { $($(#[$help:meta])* $histogram:ident: $bounds:ident,)* }
        families { $($(#[$of:meta])* $family:ident[$size:expr]: $each:ident,)* }
    ) => {
        /// Counters of the pipeline since it started, and the sizes of its state now.
        #[derive(Debug)]
        pub struct Stats {
            $($(#[$doc])* pub $name: Counter,)*
            $($(#[$help])* pub $histogram: Histogram,)*
            $($(#[$of])* pub $family: [Histogram; $size],)*
        }

        impl Default for Stats {
            fn default() -> Stats {
                Stats {
                    $($name: Counter::default(),)*
                    $($histogram: Histogram::new($bounds),)*
                    $($family: from_fn(|_| Histogram::new($each)),)*
                }
            }
        }
    };
}

stats! {
    counters {
        /// Grants issued.
        granted,
        /// Acquires answered "held" or "delayed", at once or after a wait.
        held,
        /// Renewals.
        renewed,
        /// Renewals of leases that had less than a quarter of their time left.
        renewed_near_deadline,
        /// Renewals of grants that had expired, or were revoked or superseded.
        late_renewals,
        /// Releases of such grants.
        late_releases,
        /// Values that leaders proclaimed.
        proclaimed,
        /// Grants released by their holders.
        released,
        /// Grants that expired.
        expired,
        /// Grants taken by an operator.
        revoked,
        /// Grants replaced by a later one of the same client.
        superseded,
        /// Requests refused for their form.
        invalid,
        /// Requests with the key of another principal's lease.
        wrong_principal,
        /// Requests that found a queue full.
        queue_full,
        /// Operations accepted.
        operations,
        /// Batches made durable: one write and one sync each.
        batches,
        /// Bytes given to the log.
        log_bytes,
        /// Times leases got their full time again because the authority was away.
        graces,
        /// Times a lease was extended beyond its last renewal for that.
        extended,
        /// Leases live now that were extended since their last renewal.
        extended_now,
        /// Locks held now.
        locks,
        /// Leases live now.
        leases,
        /// Grants of readers and of permits live now.
        readers,
        /// Requests waiting now.
        waiters,
        /// The token the next grant gets; 0 when the range is exhausted.
        next_token,
        /// 1 while the log has no room (disk full), else 0.
        log_full,
    }
    histograms {
        /// Nanoseconds from a batch that is complete to its being durable; in a cluster, on a majority's disks.
        sync: SYNCS,
        /// Operations that were accepted for one batch.
        batch: SIZES,
        /// Nanoseconds that a request waited in a queue before it was granted; 0 for a lock that was free.
        wait: WAITS,
    }
    families {
        /// Nanoseconds from a grant to its end, by the wall clock; by the [`Ending`](palisade_core::Ending)'s number.
        hold[4]: HOLDS,
        /// Nanoseconds from a request's way into the pipeline to its answer's way out, a wait in a queue included; by
        /// [`request_place`].
        request[Operation::ALL.len() * MetricResult::ALL.len()]: SYNCS,
    }
}

/// Where the requests of a kind that ended so are counted.
#[must_use]
pub const fn request_place(operation: Operation, verdict: MetricResult) -> usize {
    operation as usize * MetricResult::ALL.len() + verdict as usize
}

pub(super) fn count_state(stats: &Stats, machine: &Machine) {
    stats.locks.set(machine.locks() as u64);
    stats.leases.set(machine.leases() as u64);
    stats.extended_now.set(machine.extended_now() as u64);
    stats.waiters.set(machine.waiters() as u64);
    stats.readers.set(machine.readers() as u64);
    let next_token = machine.next_token().map_or(0, |token| token.get());
    stats.next_token.set(next_token);
}

pub(super) fn count_answer(stats: &Stats, operation: Operation, answer: &Answer) {
    let counter = match answer {
        Answer::Outcome(Outcome::Granted(granted)) => {
            return stats.wait.add(granted.waited.as_nanos());
        }
        Answer::Outcome(Outcome::Held(_) | Outcome::Behind(_) | Outcome::Delayed(_)) => &stats.held,
        Answer::Outcome(Outcome::Renewed(renewed)) => {
            stats
                .renewed_near_deadline
                .add(renewed.near_deadline.into());
            &stats.renewed
        }
        Answer::Outcome(Outcome::QueueFull(_)) => &stats.queue_full,
        Answer::Outcome(Outcome::Invalid(_)) => &stats.invalid,
        Answer::Outcome(Outcome::WrongPrincipal { .. }) => &stats.wrong_principal,
        Answer::Outcome(Outcome::Ended { how, .. }) => match (operation, how) {
            // A release that is repeated: its first answer was lost, and nobody is late.
            (_, Ending::Released) => return,
            (Operation::Renew, _) => &stats.late_renewals,
            (Operation::Release, _) => &stats.late_releases,
            _ => return,
        },
        _ => return,
    };
    counter.add(1);
}

pub(super) fn count_event(stats: &Stats, event: &Event) {
    let counter = match &event.change {
        Change::Granted { .. } => &stats.granted,
        Change::Proclaimed => &stats.proclaimed,
        // The audit file has each one.
        Change::Opened { .. } => return,
        Change::Ended { how, .. } => {
            stats.hold[*how as usize].add(event.held.as_nanos());
            match how {
                Ending::Released => &stats.released,
                Ending::Expired => &stats.expired,
                Ending::Revoked => &stats.revoked,
                Ending::Superseded => &stats.superseded,
            }
        }
    };
    counter.add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_request_and_verdict_has_a_place_of_its_own() {
        let kinds = Operation::ALL.into_iter();
        let places: Vec<usize> = kinds
            .flat_map(|kind| MetricResult::ALL.map(|verdict| request_place(kind, verdict)))
            .collect();
        let all: Vec<usize> = (0..Stats::default().request.len()).collect();
        assert_eq!(places, all);
    }

    #[test]
    fn a_value_is_counted_in_the_range_that_ends_at_it() {
        let histogram = Histogram::new(&[1, 10]);
        for value in [0, 1, 2, 10, 11, 1_000] {
            histogram.add(value);
        }
        let ranges: Vec<_> = histogram.ranges().collect();
        assert_eq!(ranges, [(Some(1), 2), (Some(10), 2), (None, 2)]);
        assert_eq!(histogram.sum(), 1_024);
        assert!(
            [SYNCS, WAITS, HOLDS, SIZES]
                .iter()
                .all(|bounds| bounds.is_sorted())
        );
    }
}

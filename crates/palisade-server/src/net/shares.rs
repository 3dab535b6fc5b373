//! Shares: how many waits, watches and streams one address, or one user of a Unix socket, may have, so that others find room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::Span;
use palisade_proto::Code;

use super::convert::Refusal;
use super::quota::{LockOpening, QuotaUse};
use crate::shell::Origin;
use palisade_pipeline::Answer;

/// Counts the open uses of one kind, by their origin.
pub(super) struct Shares {
    most: u64,
    most_of_one: u64,
    open: AtomicU64,
    refused: AtomicU64,
    /// By the origin of those that count together.
    of_origins: Mutex<HashMap<Origin, u64>>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareFull {
    /// All are open that may be.
    All(u64),
    /// This address or user has all of its share.
    Share(u64, Origin),
}

/// A part of a share; dropping it gives it back.
pub(super) struct SharePart {
    shares: Arc<Shares>,
    /// `None` for a caller inside this process.
    origin: Option<Origin>,
    count: u64,
}

impl Shares {
    pub(super) fn new(most: u64, most_of_one: u64) -> Arc<Shares> {
        Arc::new(Shares {
            most,
            most_of_one,
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            of_origins: Mutex::default(),
        })
    }

    /// How many are open.
    pub(super) fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// How often there was no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub(super) fn take(
        self: &Arc<Shares>,
        origin: Option<Origin>,
        count: u64,
    ) -> Result<SharePart, ShareFull> {
        let origin = origin.map(Origin::counted);
        let mut of_origins = self.of_origins();
        let full = if self.open() + count > self.most {
            Some(ShareFull::All(self.most))
        } else {
            let used = |origin| of_origins.get(&origin).copied().unwrap_or(0);
            origin
                .filter(|origin| used(*origin) + count > self.most_of_one)
                .map(|origin| ShareFull::Share(self.most_of_one, origin))
        };
        if let Some(full) = full {
            self.refused.fetch_add(1, Relaxed);
            return Err(full);
        }
        if let Some(origin) = origin {
            *of_origins.entry(origin).or_default() += count;
        }
        self.open.fetch_add(count, Relaxed);
        Ok(SharePart {
            shares: Arc::clone(self),
            origin,
            count,
        })
    }

    fn of_origins(&self) -> MutexGuard<'_, HashMap<Origin, u64>> {
        let of_origins = self.of_origins.lock();
        of_origins.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharePart {
    fn drop(&mut self) {
        let mut of_origins = self.shares.of_origins();
        let before = self.shares.open.fetch_sub(self.count, Relaxed);
        assert!(before >= self.count, "what is given back was taken");
        if let Some(origin) = self.origin
            && let Some(used) = of_origins.get_mut(&origin)
        {
            *used -= self.count;
            if *used == 0 {
                of_origins.remove(&origin);
            }
        }
    }
}

impl ShareFull {
    /// The refusal of a request that would wait.
    pub(super) fn of_waits(self) -> Refusal {
        let message = match self {
            ShareFull::Share(most, origin) => format!(
                "requests from {origin} wait for {most} locks, which is the share of one address; wait for fewer at a time, or \
                 start the server with a larger --waits-per-address; nothing happened"
            ),
            ShareFull::All(most) => {
                format!("requests wait for {most} locks, which is the limit; nothing happened")
            }
        };
        Refusal::new(Code::OverQuota, message)
    }

    /// The refusal to tell of more grants, or of grants in more requests.
    pub(super) fn of_listening(self, what: &str) -> Refusal {
        let message = match self {
            ShareFull::Share(most, origin) => format!(
                "{most} {what} are listened for from {origin}, which is the share of one address; renewals tell the same, later"
            ),
            ShareFull::All(most) => {
                format!(
                    "{most} {what} are listened for, which is the limit; renewals tell the same, later"
                )
            }
        };
        Refusal {
            retry_after: Some(Span::from_millis(1_000)),
            ..Refusal::new(Code::OverQuota, message)
        }
    }

    /// The refusal of a watch. A watcher whose connection broke may come back before the server has noticed, so it may
    /// try again.
    pub(super) fn of_watches(self) -> Refusal {
        let message = match self {
            ShareFull::Share(most, origin) => format!(
                "{most} watches are open from {origin}, which is the share of one address; end some of them, watch a common \
                 prefix once, or start the server with a larger --watches-per-address"
            ),
            ShareFull::All(most) => {
                format!("{most} watches are open, which is the limit; try again later")
            }
        };
        Refusal::new(Code::Unavailable, message)
    }

    /// The refusal of a session over gRPC, or of another stream.
    pub(super) fn of_streams(self) -> Refusal {
        let message = match self {
            ShareFull::Share(most, origin) => format!(
                "{most} streams are open from {origin}, which is the share of one address; a process needs one session, for \
                 any number of operations"
            ),
            ShareFull::All(most) => {
                format!("{most} streams are open, which is the limit; try again later")
            }
        };
        Refusal::new(Code::Unavailable, message)
    }
}

/// A request's use until its answer, or until its caller loses the place in a queue.
#[derive(Default)]
pub(super) struct Used {
    /// Of a set, once for each of its locks.
    pub(super) quotas: Vec<QuotaUse>,
    /// If it may wait: its part of the share of waits.
    pub(super) wait: Option<Box<SharePart>>,
    /// If it opens a lock: the opening, which frees its use.
    pub(super) opening: Option<Box<LockOpening>>,
}

impl Used {
    pub(super) fn is_nothing(&self) -> bool {
        self.quotas.is_empty() && self.wait.is_none() && self.opening.is_none()
    }

    /// The answer came.
    pub(super) fn settle(self, answer: &Answer) {
        for held in self.quotas {
            held.settle(answer);
        }
        if let Some(opening) = self.opening {
            opening.settle(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn from(text: &str) -> Option<Origin> {
        let address = SocketAddr::new(text.parse().unwrap(), 9);
        Some(Origin::Address(address))
    }

    #[test]
    fn an_address_has_its_share_and_gets_it_back() {
        let shares = Shares::new(10, 4);
        let first = shares.take(from("192.0.2.1"), 3).ok();
        let second = shares.take(from("::ffff:192.0.2.1"), 1).ok();
        let more = shares.take(from("192.0.2.1"), 1).err();
        let origin = from("192.0.2.1").unwrap().counted();
        assert_eq!(more, Some(ShareFull::Share(4, origin)));
        // One network of IPv6, a user of a Unix socket, and a caller in this process, which has no share.
        let third = shares.take(from("2001:db8::1"), 4).ok();
        assert!(shares.take(from("2001:db8::2"), 1).is_err());
        let own = shares.take(None, 1).ok();
        let user = shares.take(Some(Origin::Uid(7)), 1).ok();
        assert!(own.is_some() && user.is_some());
        assert_eq!(shares.take(None, 1).err(), Some(ShareFull::All(10)));
        assert_eq!((shares.open(), shares.refused()), (10, 3));
        drop((first, second));
        assert!(shares.take(from("192.0.2.1"), 4).is_ok());
        drop((third, own, user));
        assert_eq!(shares.open(), 0);
        assert!(shares.of_origins().is_empty());
    }
}

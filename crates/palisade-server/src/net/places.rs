//! Places in queues that are reserved for callers whose connection broke (rule R16), and their use of quotas meanwhile.
//!
//! ```text
//!   connection breaks ─► keep ─► within the bound of its address: an orphan, quotas stay taken ─┬─► asked again: given back
//!                          └───► beyond it: the request leaves the queue                        ├─► abandoned: given back
//!                                                                                               └─► 2 s later: given back
//! ```
//!
//! The caller of a reserved place has no connection, so the bounds of connections do not limit it. Without the quotas, a
//! caller could wait in any number of queues by disconnecting.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_access::network;
use palisade_core::{Principal, RequestId, limits};
use tokio::runtime;
use tokio::time::sleep;

use super::shares::Used;
use crate::shell::Origin;

/// The places that are reserved now.
#[derive(Default)]
pub(super) struct Places {
    kept: Mutex<ReservedPlaces>,
    /// Whether there are any, for the many requests that ask.
    any: AtomicBool,
}

#[derive(Default)]
struct ReservedPlaces {
    of_requests: HashMap<RequestName, ReservedPlace>,
    of_origins: HashMap<Origin, u32>,
    /// The number of places reserved since the start.
    number: u64,
}

/// A request's id, under its principal.
pub(super) type RequestName = (Principal, RequestId);

struct ReservedPlace {
    origin: Origin,
    number: u64,
    /// The request's use of quotas and of its address's share of waits.
    _used: Used,
}

impl Places {
    /// Whether the place of a request is reserved whose caller has just disconnected. If not, frees its quotas.
    pub(super) fn keep(self: &Arc<Places>, named: RequestName, origin: Origin, used: Used) -> bool {
        // Without a runtime the server is gone.
        let Ok(runtime) = runtime::Handle::try_current() else {
            return false;
        };
        let origin = counted_as(origin);
        let mut kept = self.kept();
        let count = kept.of_origins.entry(origin).or_default();
        if *count >= MOST_OF_ONE_ADDRESS {
            drop(kept);
            return false;
        }
        *count += 1;
        kept.number += 1;
        let number = kept.number;
        let place = ReservedPlace {
            origin,
            number,
            _used: used,
        };
        let before = kept.of_requests.insert(named, place);
        self.any.store(true, Relaxed);
        if let Some(before) = &before {
            kept.leave(before.origin);
        }
        drop(kept);
        let places = Arc::clone(self);
        runtime.spawn(async move {
            sleep(limits::ORPHAN_WINDOW.to_duration()).await;
            places.end(&named, |place| place.number == number);
        });
        true
    }

    /// The request was repeated or abandoned: its use of quotas is counted again.
    pub(super) fn take_back(&self, named: &RequestName) {
        if self.any.load(Relaxed) {
            self.end(named, |_| true);
        }
    }

    fn end(&self, named: &RequestName, is_meant: impl FnOnce(&ReservedPlace) -> bool) {
        let mut kept = self.kept();
        if let Entry::Occupied(place) = kept.of_requests.entry(*named)
            && is_meant(place.get())
        {
            let place = place.remove();
            kept.leave(place.origin);
            self.any.store(!kept.of_requests.is_empty(), Relaxed);
            // Quotas have a lock of their own.
            drop(kept);
            drop(place);
        }
    }

    fn kept(&self) -> MutexGuard<'_, ReservedPlaces> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReservedPlaces {
    fn leave(&mut self, origin: Origin) {
        if let Entry::Occupied(mut count) = self.of_origins.entry(origin) {
            assert!(*count.get() > 0, "an address without places is forgotten");
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Addresses count as they do for connections: by network, without the port.
fn counted_as(origin: Origin) -> Origin {
    match origin {
        Origin::Address(address) => Origin::Address(SocketAddr::new(network(address.ip()), 0)),
        Origin::Uid(_) => origin,
    }
}

/// How many places are reserved for one address: as many as one node of a cluster may have forwarded (`forward::PLACES`),
/// and few enough that disconnecting fills no queue.
const MOST_OF_ONE_ADDRESS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: u32) -> RequestName {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        (Principal::ANONYMOUS, RequestId::from_bytes(id))
    }

    fn from(text: &str) -> Origin {
        Origin::Address(SocketAddr::new(text.parse().unwrap(), 9))
    }

    #[tokio::test]
    async fn an_address_has_so_many_places_and_gets_them_back() {
        let places = Arc::new(Places::default());
        for number in 0..MOST_OF_ONE_ADDRESS {
            assert!(places.keep(named(number), from("192.0.2.1"), Used::default()));
        }
        let one_more = named(MOST_OF_ONE_ADDRESS);
        assert!(!places.keep(one_more, from("192.0.2.1"), Used::default()));
        assert!(places.keep(one_more, from("192.0.2.2"), Used::default()));
        places.take_back(&named(3));
        assert!(places.keep(named(3), from("192.0.2.1"), Used::default()));
        for number in 0..=MOST_OF_ONE_ADDRESS {
            places.take_back(&named(number));
        }
        let kept = places.kept();
        assert!(kept.of_requests.is_empty() && kept.of_origins.is_empty());
    }
}

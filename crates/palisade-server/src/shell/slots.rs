//! Places for connections: so many in all, so many for each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Meters;

/// The places there are.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// How many there are in all.
    pub(super) most: u32,
    most_per_address: u32,
    taken: Mutex<HashMap<IpAddr, u32>>,
    meters: Arc<Meters>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// Every place is taken.
    All(u32),
    /// Every place of this address is taken.
    Address(u32),
}

/// One place; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// `per_address`: half of all if not given.
    pub(super) fn new(most: u32, per_address: Option<u32>, meters: Arc<Meters>) -> Arc<Places> {
        Arc::new(Places {
            all: Arc::new(Semaphore::new(most as usize)),
            most,
            most_per_address: per_address.unwrap_or(most.div_ceil(2)),
            taken: Mutex::default(),
            meters,
        })
    }

    pub(super) fn take(self: &Arc<Places>, address: IpAddr) -> Result<Place, Full> {
        let address = network(address);
        let Ok(permit) = Arc::clone(&self.all).try_acquire_owned() else {
            self.meters.refused.fetch_add(1, Relaxed);
            return Err(Full::All(self.most));
        };
        let mut taken = self.taken();
        let of_address = taken.entry(address).or_default();
        if *of_address >= self.most_per_address {
            self.meters.refused.fetch_add(1, Relaxed);
            return Err(Full::Address(self.most_per_address));
        }
        *of_address += 1;
        self.meters.accepted.fetch_add(1, Relaxed);
        self.meters.open.fetch_add(1, Relaxed);
        Ok(Place {
            places: Arc::clone(self),
            address,
            _permit: permit,
        })
    }

    /// Waits until every place was given back.
    pub(super) async fn all_free(&self) {
        // It is never closed.
        let _ = self.all.acquire_many(self.most).await;
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.meters.open.fetch_sub(1, Relaxed);
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

/// What counts as one address: an IPv4 address, however written, or the /64 that one subscriber of IPv6 has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_every_place() {
        let places = Places::new(4, None, Arc::default());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = places.take(ip("192.0.2.1")).unwrap();
        let _second = places.take(ip("::ffff:192.0.2.1")).unwrap();
        assert_eq!(places.take(ip("192.0.2.1")).unwrap_err(), Full::Address(2));
        let _third = places.take(ip("2001:db8::1")).unwrap();
        let _fourth = places.take(ip("2001:db8::ffff:2")).unwrap();
        assert_eq!(places.take(ip("192.0.2.9")).unwrap_err(), Full::All(4));
        drop(first);
        assert_eq!(
            places.take(ip("2001:db8::3")).unwrap_err(),
            Full::Address(2)
        );
        let _again = places.take(ip("192.0.2.1")).unwrap();
        assert_eq!(places.meters.open.load(Relaxed), 4);
        assert_eq!(places.meters.refused.load(Relaxed), 3);
    }

    #[test]
    fn places_given_back_leave_nothing_behind() {
        let places = Places::new(4, Some(1), Arc::default());
        for host in 0..10_u8 {
            drop(places.take([10, 0, 0, host].into()).unwrap());
        }
        assert!(places.taken().is_empty());
    }
}

//! Connection slots, limited in total and for each address or, on Unix sockets, each user.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Origin;
use super::state::Meters;

/// All slots.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    all: Arc<Semaphore>,
    /// The total number of slots.
    pub(super) most: u32,
    most_per_address: u32,
    /// By the origin of those that count together.
    taken: Mutex<HashMap<Origin, u32>>,
    meters: Arc<Meters>,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// All slots are taken.
    All(u32),
    /// All slots of this address or user are taken.
    Address(u32),
}

/// One slot; dropping it gives it back.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    origin: Origin,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    /// `per_address` is half of all if not given.
    pub(super) fn new(
        most: u32,
        per_address: Option<u32>,
        meters: Arc<Meters>,
    ) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            all: Arc::new(Semaphore::new(most as usize)),
            most,
            most_per_address: per_address.unwrap_or(most.div_ceil(2)),
            taken: Mutex::default(),
            meters,
        })
    }

    pub(super) fn take(
        self: &Arc<ConnectionSlots>,
        origin: Origin,
    ) -> Result<ConnectionSlot, NoSlot> {
        let origin = origin.counted();
        let Ok(permit) = Arc::clone(&self.all).try_acquire_owned() else {
            self.meters.refused.fetch_add(1, Relaxed);
            return Err(NoSlot::All(self.most));
        };
        let mut taken = self.taken();
        let of_origin = taken.entry(origin).or_default();
        if *of_origin >= self.most_per_address {
            self.meters.refused.fetch_add(1, Relaxed);
            return Err(NoSlot::Address(self.most_per_address));
        }
        *of_origin += 1;
        self.meters.accepted.fetch_add(1, Relaxed);
        self.meters.open.fetch_add(1, Relaxed);
        Ok(ConnectionSlot {
            slots: Arc::clone(self),
            origin,
            _permit: permit,
        })
    }

    /// Waits until every slot is free.
    pub(super) async fn all_free(&self) {
        // The semaphore is never closed.
        let _ = self.all.acquire_many(self.most).await;
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Origin, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.meters.open.fetch_sub(1, Relaxed);
        let mut taken = self.slots.taken();
        if let Some(count) = taken.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn one_address_cannot_take_every_slot() {
        let slots = ConnectionSlots::new(4, None, Arc::default());
        let ip = |text: &str| Origin::Address(SocketAddr::new(text.parse().unwrap(), 9));
        let first = slots.take(ip("192.0.2.1")).unwrap();
        let _second = slots.take(ip("::ffff:192.0.2.1")).unwrap();
        assert_eq!(slots.take(ip("192.0.2.1")).unwrap_err(), NoSlot::Address(2));
        let _third = slots.take(ip("2001:db8::1")).unwrap();
        let _fourth = slots.take(ip("2001:db8::ffff:2")).unwrap();
        assert_eq!(slots.take(ip("192.0.2.9")).unwrap_err(), NoSlot::All(4));
        drop(first);
        assert_eq!(
            slots.take(ip("2001:db8::3")).unwrap_err(),
            NoSlot::Address(2)
        );
        let _again = slots.take(ip("192.0.2.1")).unwrap();
        assert_eq!(slots.meters.open.load(Relaxed), 4);
        assert_eq!(slots.meters.refused.load(Relaxed), 3);
    }

    #[test]
    fn one_user_of_a_unix_socket_cannot_take_every_slot() {
        let slots = ConnectionSlots::new(4, None, Arc::default());
        let _two = [1, 2].map(|_| slots.take(Origin::Uid(1_000)).unwrap());
        let third = slots.take(Origin::Uid(1_000)).unwrap_err();
        assert_eq!(third, NoSlot::Address(2));
        let _other = slots.take(Origin::Uid(0)).unwrap();
    }

    #[test]
    fn returned_slots_leave_no_entry_behind() {
        let slots = ConnectionSlots::new(4, Some(1), Arc::default());
        for host in 0..10_u8 {
            let address = ([10, 0, 0, host], 9).into();
            drop(slots.take(Origin::Address(address)).unwrap());
            drop(slots.take(Origin::Uid(host.into())).unwrap());
        }
        assert!(slots.taken().is_empty());
    }
}

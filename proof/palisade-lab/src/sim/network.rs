//! The network: delays, losses, duplicates, cuts.

use super::fact::Fact;
use super::queue::Event;
use super::world::World;

impl World {
    /// Sends a message, or loses or duplicates it.
    pub(crate) fn send(&mut self, from: u8, to: u8, what: &'static str, event: Event) {
        let copies = if !self.quiet && self.rng.chance(self.plan.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay_us = self.delay(from, to);
            self.note(Fact::Sent {
                from,
                to,
                what,
                delay_us,
            });
            if let Some(delay) = delay_us {
                self.after(delay * 1_000, event.clone());
            }
        }
    }

    fn delay(&mut self, from: u8, to: u8) -> Option<u64> {
        let now = self.now();
        if self.quiet {
            return Some(self.rng.between(100, 1_000));
        }
        let cut = |(a, b, until): &(u8, u8, u64)| (*a, *b) == (from, to) && now < *until;
        if self.cuts.iter().any(cut) || self.rng.chance(self.plan.loss) {
            return None;
        }
        let (least, most) = self.plan.delay_us;
        let usual = self.rng.between(least, most);
        if self.rng.chance(self.plan.spikes) {
            return Some(usual + self.rng.between(1, 3_000) * 1_000);
        }
        Some(usual)
    }
}

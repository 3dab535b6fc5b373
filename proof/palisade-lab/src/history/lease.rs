//! The instants between which an undisturbed lease ends.

use palisade_core::{Span, Timestamp, Ttl};

use super::event::{Expiry, Header};
use super::read::Away;
use super::timeline::{Lease, Refresh};

/// The known facts about the authority's clock.
#[derive(Clone, Copy)]
pub(super) struct Clock<'h> {
    pub(super) header: Header,
    pub(super) away: &'h [Away],
}

/// When a lease ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Not before this.
    pub(super) earliest: Timestamp,
    /// Certainly by then.
    pub(super) latest: Timestamp,
}

const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);
const MILLION: u64 = 1_000_000;

impl Clock<'_> {
    /// The shortest time that such a lease can last on the recorder's clock.
    pub(super) fn at_least(&self, ttl: Ttl) -> Span {
        self.scaled(ttl, MILLION - u64::from(self.header.drift_ppm))
    }

    fn at_most(&self, ttl: Ttl) -> Span {
        self.scaled(ttl, MILLION + u64::from(self.header.drift_ppm))
    }

    fn scaled(&self, ttl: Ttl, ppm: u64) -> Span {
        // 24 h are 8.64e13 ns; multiplied by a million and doubled, that exceeds 64 bits.
        let nanos = u128::from(ttl.span().as_nanos()) * u128::from(ppm) / u128::from(MILLION);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When a lease is due. Without its recorded beginning, nothing is known.
    pub(super) fn due(&self, lease: Option<&Lease>) -> Due {
        let known = lease.filter(|lease| lease.begun);
        let Some((lease, (low, high))) = known.and_then(|lease| Some((lease, lease.ttls?))) else {
            return Due {
                earliest: Timestamp::ZERO,
                latest: NEVER,
            };
        };
        let acknowledged = lease.refreshes.iter().filter(|fresh| fresh.back.is_some());
        let earliest = acknowledged
            .map(|fresh| fresh.sent.after(self.at_least(fresh.ttl.unwrap_or(low))))
            .max();
        Due {
            earliest: earliest.unwrap_or_default(),
            latest: match self.header.expiry {
                Expiry::Lazy => NEVER,
                Expiry::Exact => self.latest(&lease.refreshes, high),
            },
        }
    }

    /// Follows the chain of refreshes and absences; those after the end do not count.
    fn latest(&self, refreshes: &[Refresh], high: Ttl) -> Timestamp {
        let begun = refreshes.iter().map(|fresh| fresh.sent).min();
        let begun = begun.unwrap_or_default();
        let refreshed = refreshes.iter().map(|fresh| {
            let most = self.at_most(fresh.ttl.unwrap_or(high));
            (fresh.sent, fresh.back, most)
        });
        let away = self.away.iter().filter(|away| away.until >= begun);
        let returned = away.map(|away| {
            let until = Some(away.until);
            (away.from.max(begun), until, self.at_most(high))
        });
        let mut steps: Vec<_> = refreshed.chain(returned).collect();
        steps.sort_unstable_by_key(|(sent, ..)| *sent);
        let (mut latest, mut spare) = (begun, Span::ZERO);
        for (sent, back, most) in steps {
            if sent > latest.after(spare) {
                break;
            }
            match back {
                Some(back) => latest = latest.max(back.after(most)),
                // It may take effect at any time, at best in the last moment.
                None => spare = spare.plus(most),
            }
        }
        latest.after(spare)
    }
}

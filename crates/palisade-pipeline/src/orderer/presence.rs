//! Detects that the authority was away, so that leases get their time again (rule A7).
//!
//! ```text
//!   from one look at the clock to the next:
//!     the thread worked (its processor time) │ it slept as it meant to │ and the rest: it was away
//! ```
//!
//! The authority was away for the time that passed, less the thread's own work and its planned sleep. Causes are a
//! stopped process, a suspended machine, a processor that others had, or a sync that the disk would not end. Work is
//! never absence, however much of it was asked for: otherwise a caller that keeps this thread busy would keep the
//! leases of dead holders alive.
//!
//! The processor time may be a millisecond old (`clock`), so an absence is known to within two. The shortest one that
//! matters has 25.

use palisade_core::{Away, Span, Timestamp, limits};

/// The ordering thread's record of its own absences.
#[derive(Clone, Debug)]
pub struct Presence {
    /// At the last look: the clock, and the processor time that the thread had used.
    looked: Timestamp,
    used: Span,
    /// Slept on purpose since then.
    slept: Span,
    /// Pauses that were made good in this row, and when it began.
    row: u32,
    row_began: Timestamp,
}

impl Presence {
    /// The thread is new: it has used no processor time, and the clock shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Presence {
        Presence {
            looked: now,
            used: Span::ZERO,
            slept: Span::ZERO,
            row: 0,
            row_began: now,
        }
    }

    /// The thread had nothing to do for `span`, of which it had meant to sleep `planned`. Other tasks on it `worked`
    /// meanwhile, and that was not sleep.
    pub fn slept(&mut self, span: Span, planned: Span, worked: Span) {
        let idle = span.as_nanos().saturating_sub(worked.as_nanos());
        self.slept = self.slept.plus(Span::from_nanos(idle).min(planned));
    }

    /// Looks at the clock and at the processor time used. Returns the time that leases must get again, if the
    /// shortest of them survives a pause of `bears`.
    pub fn look(&mut self, now: Timestamp, used: Span, bears: Span) -> Option<Away> {
        let passed = now.since(self.looked).as_nanos();
        let worked = used.as_nanos().saturating_sub(self.used.as_nanos());
        let present = worked.saturating_add(self.slept.as_nanos());
        let away = Span::from_nanos(passed.saturating_sub(present));
        (self.looked, self.used, self.slept) = (now, used, Span::ZERO);
        if away >= limits::STALL {
            return Some(Away::Paused(away));
        }
        (away > bears && self.may_pause(now)).then_some(Away::Paused(away))
    }

    /// Whether one more pause is made good: up to [`ROW`] of them, and then none until every short lease
    /// that nobody renews is over.
    fn may_pause(&mut self, now: Timestamp) -> bool {
        if now.since(self.row_began) > ROW_SPAN {
            (self.row, self.row_began) = (0, now);
        }
        self.row += 1;
        self.row <= ROW
    }
}

/// On a machine that is overloaded for good, short pauses follow one another, and each would keep a dead holder's
/// short lease alive. So at most eight are made good in 20 s, counted from the first. The lease is shorter than 2 s,
/// so eight keep it alive for 16 s, and under any load it ends within the 20 s.
const ROW: u32 = 8;
const ROW_SPAN: Span = Span::from_millis(20_000);

#[cfg(test)]
mod tests {
    use super::*;

    const BEARS: Span = Span::from_millis(50);

    fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn work_is_never_away_however_long_it_takes() {
        let mut presence = Presence::new(at(0));
        assert_eq!(presence.look(at(60_000), ms(59_960), BEARS), None);
        // The control: the same time, without the work.
        let mut presence = Presence::new(at(0));
        assert_eq!(
            presence.look(at(60_000), ms(40), BEARS),
            Some(Away::Paused(ms(59_960)))
        );
    }

    #[test]
    fn sleep_that_was_planned_is_not_away_and_what_is_slept_beyond_it_is() {
        let mut presence = Presence::new(at(0));
        presence.slept(ms(100), ms(100), Span::ZERO);
        assert_eq!(presence.look(at(101), ms(1), BEARS), None);
        presence.slept(ms(460), ms(100), Span::ZERO);
        let away = presence.look(at(561), ms(1), BEARS);
        assert_eq!(away, Some(Away::Paused(ms(360))));
        presence.slept(ms(100_000), ms(100), Span::ZERO);
        assert_eq!(
            presence.look(at(100_561), ms(1), BEARS),
            Some(Away::Paused(ms(99_900)))
        );
    }

    #[test]
    fn work_during_a_planned_sleep_counts_once() {
        let mut presence = Presence::new(at(0));
        presence.slept(ms(100), ms(100), ms(80));
        let away = presence.look(at(200), ms(80), BEARS);
        assert_eq!(away, Some(Away::Paused(ms(100))));
        // The control: counted twice, it hides the pause.
        let mut presence = Presence::new(at(0));
        presence.slept(ms(100), ms(100), Span::ZERO);
        assert_eq!(presence.look(at(200), ms(80), BEARS), None);
    }

    /// Rounds of 100 µs of work and 50 µs of a sync, a pause of 300 ms after some of them, and rounds again.
    #[test]
    fn an_absence_is_known_to_within_the_age_of_a_reading() {
        let micros = |micros: u64| Span::from_nanos(micros * 1_000);
        let away = |stale: u64, rounds: u64| {
            let mut presence = Presence::new(at(0));
            let (mut now, mut used, mut read) = (0, 0, (0, 0));
            let found = (0..rounds + 100).map(|round| {
                now += if round == rounds { 300_150 } else { 150 };
                used += 100;
                if now - read.0 >= stale {
                    read = (now, used);
                }
                presence.look(Timestamp::ZERO.after(micros(now)), micros(read.1), BEARS)
            });
            let found: Vec<Away> = found.flatten().collect();
            let [Away::Paused(away)] = found[..] else {
                panic!("{found:?} after {rounds}");
            };
            away.as_nanos()
        };
        for rounds in 0..40 {
            let exact = away(0, rounds);
            assert_eq!(exact, micros(300_050).as_nanos());
            assert!(away(1_000, rounds).abs_diff(exact) <= 1_000_000);
            // The control: with older readings, all the work since the last one passes for a part of the pause.
            assert!(rounds < 20 || away(200_000, rounds).abs_diff(exact) > 1_000_000);
        }
    }

    #[test]
    fn a_short_pause_matters_where_a_lease_is_short() {
        let mut presence = Presence::new(at(0));
        assert_eq!(presence.look(at(300), Span::ZERO, limits::STALL), None);
        let away = presence.look(at(600), Span::ZERO, BEARS);
        assert_eq!(away, Some(Away::Paused(ms(300))));
        assert_eq!(
            presence.look(at(650), Span::ZERO, BEARS),
            None,
            "as long as it bears"
        );
        let away = presence.look(at(1_150), Span::ZERO, limits::STALL);
        assert_eq!(away, Some(Away::Paused(limits::STALL)));
    }

    #[test]
    fn short_pauses_in_a_row_are_made_good_up_to_a_bound_and_stalls_always() {
        let mut presence = Presence::new(at(0));
        let mut now = 0;
        let mut pause = |millis| {
            now += millis;
            presence.look(at(now), Span::ZERO, BEARS)
        };
        let good = (0..100).filter(|_| pause(60).is_some()).count();
        assert_eq!(good, 8);
        assert_eq!(pause(500), Some(Away::Paused(limits::STALL)));
        assert_eq!(pause(60), None);
        for _ in 0..30 {
            pause(500);
        }
        assert_eq!(pause(60), Some(Away::Paused(ms(60))), "the span is over");
    }
}

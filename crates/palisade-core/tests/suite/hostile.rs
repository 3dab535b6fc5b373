//! Nothing that a caller sends reaches an assertion: entries of every kind with values that fit nothing, at instants that go
//! forth and back, and a machine that is sound after them.

use palisade_core::machine::Expiry;
use palisade_core::{
    Acquire, Away, ClientId, Command, Entry, GrantOptions, GrantRef, LeaseKey, Limits, LockMode,
    LockName, Machine, Outcome, Permits, Principal, RequestId, Span, Timestamp, Token, Ttl, Under,
    WallTime, invariants,
};

/// Small domains, so that values of one entry meet those of another.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn lock(&mut self) -> LockName {
        LockName::new(self.one(&["a", "b", "c", "d", "/", "long-enough-to-be-on-the-heap"]))
            .unwrap()
    }

    fn client(&mut self) -> ClientId {
        ClientId::new(self.one(&["x", "y", "z"])).unwrap()
    }

    fn by(&mut self) -> Principal {
        match self.below(3) {
            0 => Principal::ANONYMOUS,
            n => Principal::from_bytes([n as u8; 16]),
        }
    }

    fn key(&mut self) -> LeaseKey {
        LeaseKey::from_bytes([self.below(24) as u8; 16])
    }

    fn request(&mut self) -> RequestId {
        RequestId::from_bytes([self.below(250) as u8; 16])
    }

    fn token(&mut self, next: u64) -> Token {
        let near = next.saturating_sub(1 + self.below(6));
        let number = self.one(&[1, near.max(1), next.max(1), u64::MAX / 4]);
        Token::new(number).unwrap_or(Token::FIRST)
    }

    fn ttl(&mut self) -> Ttl {
        Ttl::from_millis(self.one(&[100, 500, 3_000, 86_400_000])).unwrap()
    }

    fn span(&mut self) -> Span {
        Span::from_millis(self.one(&[
            0,
            1,
            400,
            2_000,
            2_000,
            9_000,
            100_000_000,
            u64::MAX / 2_000_000,
        ]))
    }

    fn grant(&mut self, next: u64) -> GrantRef {
        GrantRef {
            lock: self.lock(),
            key: self.key(),
            token: (self.below(2) == 0).then(|| self.token(next)),
        }
    }

    fn text(&mut self) -> Box<str> {
        "t".repeat(self.one(&[0, 1, 1, 20, 200, 300, 5_000])).into()
    }

    fn mode(&mut self) -> LockMode {
        let (wanted, of) = (1 + self.below(4) as u32, self.one(&[1, 2, 3, 64]));
        match self.below(8) {
            0..3 => LockMode::Exclusive,
            3 => LockMode::Shared,
            4 => LockMode::Update,
            5 => LockMode::Upgrade,
            _ => Permits::new(wanted, of).map_or(LockMode::Shared, LockMode::Permits),
        }
    }

    fn acquire(&mut self) -> Acquire {
        let under = match self.below(4) {
            0..3 => Under::New {
                key: self.key(),
                ttl: self.ttl(),
            },
            _ => Under::Existing {
                key: self.key(),
                ttl: (self.below(3) == 0).then(|| self.ttl()),
            },
        };
        // Also sets that are out of order, with a lock twice, or too large.
        let also = match self.below(4) {
            0 => self.below(12),
            _ => 0,
        };
        let delays =
            GrantOptions::closing(self.one(&[0, 0, 0, 0, 300]), self.one(&[0, 0, 0, 0, 700]));
        Acquire {
            also: (0..also).map(|_| self.lock()).collect(),
            mode: self.mode(),
            wait: (self.below(3) > 0).then(|| self.span()),
            metadata: (self.below(4) == 0).then(|| self.text()),
            options: delays.unwrap(),
            ..Acquire::new(self.lock(), self.client(), under, None)
        }
    }

    fn command(&mut self, next: u64) -> Command {
        match self.below(20) {
            0..9 => Command::Acquire(Acquire {
                request: (self.below(5) > 0).then(|| self.request()),
                ..self.acquire()
            }),
            9 => Command::Renew {
                grant: self.grant(next),
                ttl: (self.below(2) == 0).then(|| self.ttl()),
            },
            10 => Command::Proclaim {
                grant: self.grant(next),
                value: self.text(),
            },
            11 | 12 => Command::Release(self.grant(next)),
            13 => Command::Revoke {
                lock: self.lock(),
                token: self.token(next),
                reason: self.text(),
            },
            14 => Command::Open {
                lock: self.lock(),
                reason: self.text(),
            },
            15 => Command::Resize {
                lock: self.lock(),
                permits: self.one(&[0, 1, 2, 3, 64, 65, u32::MAX]),
            },
            16 => Command::Withdraw(self.request()),
            17 => Command::Orphan(self.request()),
            18 => Command::Abandon(self.request()),
            _ => self.own(),
        }
    }

    /// The authority's own, which come between.
    fn own(&mut self) -> Command {
        match self.below(12) {
            0..4 => Command::Expire,
            4 => Command::Grace(Away::Paused(self.span())),
            5 => Command::Grace(Away::Restarted),
            6 => Command::Grace(Away::Down(self.span())),
            7 => Command::Grace(Away::Led),
            8 => Command::Grace(Away::Restored),
            9 => Command::Leap {
                by: self.below(1_000),
            },
            10 => Command::Configure(Limits {
                waiters_per_lock: self.below(4) as u32,
                waiters_per_client: self.below(6) as u32,
                locks: self.one(&[3, 1_000]),
                ..Limits::DEFAULT
            }),
            _ => Command::Configure(Limits::DEFAULT),
        }
    }
}

#[test]
fn nothing_that_a_caller_sends_reaches_an_assertion() {
    let mut counts = [0_usize; 4];
    for seed in 0..60 {
        let mut draw = Draw(seed);
        let mut machine = Machine::new(seed);
        if seed % 3 == 0 {
            machine.set_expiry(Expiry {
                alone: 2,
                beside: 1,
            });
        }
        let (mut now, mut effects) = (1_000_u64, Vec::new());
        for step in 0..1_500_u64 {
            let passes = draw.one(&[0, 0, 0, 1, 1, 37, 200, 700, 5_000]);
            now += passes;
            // An instant that is before the last one counts as the last one.
            let back = draw.one(&[0, 0, 0, 900]);
            let next = machine.next_token().map_or(1, |token| token.get());
            let entry = Entry {
                at: Timestamp::from_millis(now.saturating_sub(back)),
                wall: WallTime(draw.one(&[0, now, u64::MAX])),
                by: draw.by(),
                command: draw.command(next),
            };
            let applied = machine.apply(entry, &mut effects);
            counts[match applied.outcome {
                Outcome::Granted(_) => 0,
                Outcome::Queued => 1,
                Outcome::Invalid(_) => 2,
                _ => 3,
            }] += 1;
            if step % 16 == 0 {
                assert_eq!(
                    invariants::check(&machine),
                    Ok(()),
                    "seed {seed}, step {step}"
                );
            }
            if step % 97 == 0 {
                let copy = Machine::restore(seed + 1, machine.records()).unwrap();
                assert_eq!(invariants::check(&copy), Ok(()), "seed {seed}, step {step}");
            }
            effects.clear();
        }
    }
    // It would be no proof if everything had been refused.
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}

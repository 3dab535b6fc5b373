//! The loop, step by step, with a clock and a log made of numbers.

use std::cell::Cell;
use std::collections::VecDeque;

use palisade_core::{Acquire, ClientId, GrantOptions, LockName, Outcome, Ttl, Under};

use super::*;

/// A caller, by the number of its request. High ones ask in sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Caller(u32);

impl ReplyAddress for Caller {
    fn session(&self) -> Option<u64> {
        (self.0 % 1_000 >= 500).then(|| u64::from(self.0 % 3))
    }

    fn is_gone(&self) -> bool {
        true
    }
}

/// A stepper that has everything in memory.
struct Stepper {
    round: Round<Caller>,
    clock: Cell<Timestamp>,
    inputs: VecDeque<RoundInput<Caller>>,
    keys: u128,
    /// The bytes of each batch, the answers, and the instants of the events.
    log: Vec<usize>,
    answers: Vec<(u32, Answer)>,
    events: Vec<Timestamp>,
    full: bool,
}

impl Inbox<Caller> for Stepper {
    fn next(&mut self, _: &Orderer<Caller>) -> Option<RoundInput<Caller>> {
        self.inputs.pop_front()
    }

    fn now(&self) -> Timestamp {
        self.clock.get()
    }

    fn key(&mut self) -> LeaseKey {
        self.keys += 1;
        LeaseKey::from_bytes(self.keys.to_be_bytes())
    }
}

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

impl Stepper {
    fn new(manual_clock: bool) -> Stepper {
        let mut stepper = Stepper {
            round: Round::new(Machine::new(1), manual_clock),
            clock: Cell::new(at(0)),
            inputs: VecDeque::new(),
            keys: 0,
            log: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            full: false,
        };
        let first = vec![Command::Configure(palisade_core::Limits::DEFAULT)];
        stepper.round.open(at(0), WallTime::default(), first);
        stepper.write();
        stepper
    }

    fn ask(&mut self, number: u32, request: Request) {
        let input = RoundInput::Ask(request.into(), Caller(number));
        self.inputs.push_back(input);
    }

    fn begin(&mut self) {
        let now = Moment {
            at: self.clock.get(),
            wall: WallTime::default(),
            worked: Span::ZERO,
        };
        let room = if self.full {
            Err("the disk is full".to_owned())
        } else {
            Ok(())
        };
        self.round.begin(now, room, Writable::default());
    }

    fn fill(&mut self) {
        let mut round = mem::replace(&mut self.round, Round::new(Machine::new(0), true));
        round.fill(self);
        self.round = round;
    }

    fn write(&mut self) {
        if let ToWrite::Entry(entry) = self.round.write() {
            self.log.push(entry.len());
        }
        let DurableOutput { answers, events } = self.round.written();
        self.events.extend(events.map(|event| event.at));
        let answers = answers.map(|(to, answer)| (to.0, answer));
        self.answers.extend(answers);
    }

    /// Takes everything in that is there, and returns what the loop does then.
    fn work(&mut self) -> UntilNext {
        if matches!(self.round.phase, LoopPhase::Asleep { .. }) {
            let _ = self.round.woke(self.clock.get(), true, Span::ZERO);
        }
        loop {
            let rest = self.round.rest(self.clock.get());
            match rest {
                UntilNext::Sleep(_) if self.inputs.is_empty() => return rest,
                UntilNext::Sleep(_) => {
                    let _ = self.round.woke(self.clock.get(), true, Span::ZERO);
                }
                UntilNext::GoOn(advance) => self.clock.set(self.clock.get().after(advance)),
                UntilNext::Over => return rest,
            }
            self.begin();
            self.fill();
            self.write();
        }
    }
}

fn wish(lock: &str, client: &str, ttl: Ttl, wait: Option<Span>) -> Request {
    let (lock, client) = (LockName::new(lock).unwrap(), ClientId::new(client).unwrap());
    let request = wait.map(|_| RequestId::from_bytes([client.len() as u8; 16]));
    Request::Acquire(Acquire {
        wait,
        options: GrantOptions::NONE,
        ..Acquire::new(lock, client, Under::new(ttl), request)
    })
}

#[test]
fn it_sleeps_until_something_is_due_and_at_most_for_a_heartbeat() {
    let mut stepper = Stepper::new(false);
    assert_eq!(stepper.work(), UntilNext::Sleep(ms(100)));
    stepper.ask(1, wish("a", "c", Ttl::from_millis(5_000).unwrap(), None));
    assert_eq!(
        stepper.work(),
        UntilNext::Sleep(ms(100)),
        "due in five seconds"
    );
    for (now, planned) in [(4_950, 46), (5_000, 0), (5_010, 0)] {
        stepper.round.woke(at(now), false, Span::ZERO);
        let UntilNext::Sleep(sleeps) = stepper.round.rest(at(now)) else {
            panic!("there is nothing else to do");
        };
        assert!(sleeps <= ms(planned), "{now}: {sleeps:?}");
    }
}

#[test]
fn it_is_quiet_when_it_has_slept_in_vain_twice() {
    let mut stepper = Stepper::new(false);
    let mut sleep = |arrived| {
        assert!(matches!(stepper.round.rest(at(0)), UntilNext::Sleep(_)));
        stepper.round.woke(at(0), arrived, Span::ZERO)
    };
    let quiet = [false, false, true, false, false].map(&mut sleep);
    assert_eq!(quiet, [false, true, false, false, true]);
}

/// The batch is over when it is full: the rest goes into the next ones, without a sleep between them.
#[test]
fn what_does_not_fit_into_a_batch_goes_into_the_next_one() {
    let mut stepper = Stepper::new(false);
    stepper.round = stepper.round.with_batches_of(64);
    for number in 0..20 {
        stepper.ask(number, wish(&format!("lock-{number}"), "c", Ttl::MAX, None));
    }
    let before = stepper.log.len();
    stepper.work();
    assert!(stepper.log.len() > before + 5, "{:?}", stepper.log);
    let order: Vec<u32> = stepper.answers.iter().map(|(to, _)| *to).collect();
    assert_eq!(order, Vec::from_iter(0..20));
}

/// Everything between two instants of a manual clock happens in its order: the lease that ends first frees its lock first.
#[test]
fn a_manual_clock_stops_wherever_something_is_due() {
    let mut stepper = Stepper::new(true);
    for (number, ttl) in [(1, 3_000), (2, 1_000), (3, 2_000)] {
        let ttl = Ttl::from_millis(ttl).unwrap();
        stepper.ask(number, wish(&format!("lock-{number}"), "c", ttl, None));
    }
    stepper.work();
    stepper.answers.clear();
    stepper.events.clear();
    stepper.ask(4, Request::Advance(ms(10_000)));
    stepper.ask(5, Request::Status);
    // Waiting does not move it.
    assert_eq!(stepper.work(), UntilNext::Sleep(ms(100)));
    assert_eq!(stepper.clock.get(), at(10_000));
    assert_eq!(stepper.events, [at(1_000), at(2_000), at(3_000)]);
    let [
        (4, Answer::Clock(shows)),
        (5, Answer::Status(crate::Status { locks: 0, .. })),
    ] = &stepper.answers[..]
    else {
        panic!("{:?}", stepper.answers);
    };
    assert_eq!(*shows, ms(10_000));
}

#[test]
fn a_clock_that_the_log_left_on_its_way_is_of_unknown_outcome() {
    let mut stepper = Stepper::new(true);
    stepper.ask(1, Request::Advance(ms(10)));
    let _ = stepper.round.rest(at(0));
    let _ = stepper.round.woke(at(0), true, Span::ZERO);
    stepper.begin();
    stepper.fill();
    let answers: Vec<_> = stepper.round.failed().collect();
    assert!(matches!(
        answers[..],
        [(Caller(1), Answer::Failed(Failure::UnknownOutcome(_)))]
    ));
}

/// A planned stop answers what has arrived, records what is owed, and the time.
#[test]
fn a_stop_ends_after_everything_that_has_arrived() {
    let mut stepper = Stepper::new(false);
    stepper.ask(1, wish("a", "c", Ttl::MAX, None));
    stepper.inputs.push_back(RoundInput::Stop);
    stepper.ask(2, Request::Status);
    assert!(!stepper.round.is_stopping());
    stepper.clock.set(at(7));
    let before = stepper.log.len();
    assert_eq!(stepper.work(), UntilNext::Over);
    assert!(stepper.round.is_stopping());
    assert_eq!(stepper.answers.len(), 2);
    assert_eq!(stepper.log.len(), before + 1, "its grant has the time");
    assert_eq!(stepper.round.stopped().count(), 0);
}

/// Many waiting requests give up their turn in several batches; the last one says that it is done.
#[test]
fn a_drain_goes_on_until_nobody_waits() {
    let mut stepper = Stepper::new(false);
    stepper.ask(0, wish("a", "holder", Ttl::MAX, None));
    for number in 1..=20 {
        let client = "c".repeat(number);
        let wait = Some(ms(60_000));
        stepper.ask(number as u32, wish("a", &client, Ttl::MAX, wait));
    }
    stepper.work();
    stepper.answers.clear();
    stepper.round = stepper.round.with_batches_of(64);
    stepper.inputs.push_back(RoundInput::Drain);
    let _ = stepper.round.woke(at(0), true, Span::ZERO);
    let mut batches = 0;
    loop {
        stepper.begin();
        stepper.fill();
        stepper.write();
        batches += 1;
        if !stepper.round.is_draining() {
            break;
        }
        assert_eq!(stepper.round.rest(at(0)), UntilNext::GoOn(Span::ZERO));
    }
    assert!(batches > 3, "{batches}");
    assert_eq!(stepper.answers.len(), 20);
    let granted = |answer: &Answer| matches!(answer, Answer::Outcome(Outcome::Granted(_)));
    assert!(!stepper.answers.iter().any(|(_, answer)| granted(answer)));
}

#[test]
#[should_panic(expected = "no batch has begun")]
fn nothing_is_taken_in_before_a_batch_has_begun() {
    Stepper::new(false).fill();
}

#[test]
#[should_panic(expected = "the batch before is not over")]
fn a_batch_does_not_begin_before_the_last_one_is_over() {
    let mut stepper = Stepper::new(false);
    stepper.begin();
    stepper.begin();
}

#[test]
#[should_panic(expected = "the batch before is not over")]
fn a_batch_does_not_begin_while_it_sleeps() {
    let mut stepper = Stepper::new(false);
    let _ = stepper.round.rest(at(0));
    stepper.begin();
}

/// Numbers that only the seed decides.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        let Draw(state) = self;
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*state >> 33) % end
    }

    fn request(&mut self) -> RequestId {
        RequestId::from_bytes([self.below(9) as u8; 16])
    }

    fn grant(&mut self) -> GrantRef {
        GrantRef {
            lock: LockName::new(["a", "b", "c"][self.below(3) as usize]).unwrap(),
            key: LeaseKey::from_bytes(u128::from(self.below(60)).to_be_bytes()),
            token: None,
        }
    }

    fn asks(&mut self) -> Request {
        let (lock, client) = (["a", "b", "c"][self.below(3) as usize], self.below(5));
        let ttl = Ttl::from_millis(100 + 900 * self.below(4)).unwrap();
        let wait = [None, Some(ms(0)), Some(ms(30)), Some(ms(5_000))][self.below(4) as usize];
        match self.below(10) {
            0..6 => {
                let Request::Acquire(wish) = wish(lock, &client.to_string(), ttl, wait) else {
                    unreachable!("it asks for a lock");
                };
                let request = (self.below(4) > 0).then(|| self.request());
                Request::Acquire(Acquire { request, ..wish })
            }
            6 => Request::Release(self.grant()),
            7 => Request::Renew {
                grant: self.grant(),
                ttl: None,
            },
            8 => Request::Abandon(self.request()),
            _ => Request::Advance(ms(self.below(2_000))),
        }
    }

    fn input(&mut self, number: u32) -> RoundInput<Caller> {
        let by = Principal::ANONYMOUS;
        match self.below(40) {
            0 => RoundInput::Drain,
            1 | 2 => RoundInput::Hangup(self.below(4)),
            3..6 => RoundInput::Gone {
                by,
                request: self.request(),
                may_return: self.below(2) == 0,
            },
            6 => RoundInput::Unclaimed(by, self.grant()),
            _ => RoundInput::Ask(self.asks().into(), Caller(number)),
        }
    }
}

/// Whatever arrives, in whatever order, with a log that is full at times: nothing of it reaches an assertion, nobody is
/// answered twice, and the loop ends when it is asked to.
#[test]
fn nothing_that_arrives_reaches_an_assertion() {
    let mut granted = 0;
    for seed in 0..60 {
        let mut draw = Draw(seed);
        let mut stepper = Stepper::new(seed % 3 == 0);
        stepper.round = stepper.round.with_batches_of(160);
        let mut number = 0;
        for step in 0..200 {
            for _ in 0..draw.below(8) {
                number += 1;
                let input = draw.input(number);
                stepper.inputs.push_back(input);
            }
            stepper.full = draw.below(10) == 0;
            assert!(matches!(stepper.work(), UntilNext::Sleep(_)));
            if seed % 3 > 0 {
                let passes = [0, 1, 60, 900][draw.below(4) as usize];
                stepper.clock.set(stepper.clock.get().after(ms(passes)));
            }
            if step % 16 == 0 {
                let sound = palisade_core::invariants::check(stepper.round.machine());
                assert_eq!(sound, Ok(()), "seed {seed}, step {step}");
            }
        }
        stepper.full = false;
        stepper.inputs.push_back(RoundInput::Stop);
        assert_eq!(stepper.work(), UntilNext::Over, "seed {seed}");
        let last = stepper.round.stopped().map(|(to, answer)| (to.0, answer));
        let mut answers = mem::take(&mut stepper.answers);
        answers.extend(last);
        let is_grant = |answer: &Answer| matches!(answer, Answer::Outcome(Outcome::Granted(_)));
        granted += answers
            .iter()
            .filter(|(_, answer)| is_grant(answer))
            .count();
        let mut answered: Vec<u32> = answers.into_iter().map(|(to, _)| to).collect();
        answered.sort_unstable();
        assert!(
            answered.windows(2).all(|pair| pair[0] < pair[1]),
            "seed {seed}"
        );
    }
    assert!(granted > 300, "{granted}");
}

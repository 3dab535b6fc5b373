use std::cell::Cell;
use std::rc::Rc;

use palisade_core::LockMode;
use palisade_core::{ClientId, GrantOptions, LockName, Span, Ttl, Under, Wish, limits};

use super::*;
use crate::KeepsPlace;
use crate::codec::{NEXT, VERSION, decode_batch};
use crate::replay::Replay;

mod growth;
mod stamps;
mod waits;

/// A numbered caller: in a session, or one that can go away.
#[derive(Clone, Debug, Default)]
struct To {
    number: u32,
    session: Option<u64>,
    gone: Rc<Cell<bool>>,
}

impl ReplyAddress for To {
    fn session(&self) -> Option<u64> {
        self.session
    }

    fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

fn caller(number: u32) -> To {
    To {
        number,
        ..To::default()
    }
}

fn of_session(session: u64, number: u32) -> To {
    To {
        session: Some(session),
        ..caller(number)
    }
}

/// An orderer, the log that its batches go to, and a time that moves when it is set.
struct Bench {
    orderer: Orderer<To>,
    log: Vec<Vec<u8>>,
    now_ms: u64,
    worked: Span,
    /// The principal that asks.
    by: Principal,
}

const NOBODY: Principal = Principal::ANONYMOUS;

const TTL_MS: u64 = 10_000;

impl Bench {
    fn new() -> Bench {
        Bench {
            orderer: Orderer::new(Machine::new(1), false),
            log: Vec::new(),
            now_ms: 0,
            worked: Span::ZERO,
            by: NOBODY,
        }
    }

    /// Works for this long, so that it is no absence.
    fn work(&mut self, ms: u64) {
        self.now_ms += ms;
        self.worked = self.worked.plus(Span::from_millis(ms));
    }

    fn begin(&mut self) -> Option<Away> {
        self.begin_with(Ok(()))
    }

    fn begin_with(&mut self, room: Result<(), String>) -> Option<Away> {
        let now = Moment {
            at: Timestamp::from_millis(self.now_ms),
            wall: WallTime::default(),
            worked: self.worked,
        };
        self.orderer.begin(now, room)
    }

    /// Asks for a lock; the request is known by the caller's number.
    fn acquire(&mut self, to: To, lock: &str, wait_ms: Option<u64>) {
        self.acquire_as(to, lock, LockMode::Exclusive, wait_ms);
    }

    fn acquire_as(&mut self, to: To, lock: &str, mode: LockMode, wait_ms: Option<u64>) {
        let wish = Wish {
            mode,
            wait: wait_ms.map(Span::from_millis),
            ..wish(to.number, lock)
        };
        self.acquire_wish(to, wish);
    }

    fn acquire_for_at_least(&mut self, to: To, lock: &str, ms: u64) {
        let wish = Wish {
            options: GrantOptions::closing(0, ms).unwrap(),
            ..wish(to.number, lock)
        };
        self.acquire_wish(to, wish);
    }

    fn acquire_wish(&mut self, to: To, wish: Wish) {
        let id = [to.number as u8; 16];
        let request = Request::Acquire(wish);
        self.orderer.request(
            Asked {
                by: self.by,
                request,
                keeps_place: KeepsPlace::default(),
            },
            to,
            || LeaseKey::from_bytes(id),
        );
    }

    fn ask(&mut self, to: To, request: Request) {
        let asked = Asked {
            by: self.by,
            request,
            keeps_place: KeepsPlace::default(),
        };
        self.orderer
            .request(asked, to, || panic!("this needs no key"));
    }

    /// The commands of the batch.
    fn commands(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        if let Some(entry) = self.orderer.entry() {
            decode_batch(entry, |entry| commands.push(entry.command)).unwrap();
        }
        commands
    }

    /// Puts the batch into the log, and takes the answers and events that it releases.
    fn commit(&mut self) -> (Vec<(u32, Answer)>, Vec<Event>) {
        self.log.extend(self.orderer.entry().map(<[u8]>::to_vec));
        let DurableOutput { answers, events } = self.orderer.committed();
        let events = events.collect();
        (numbered(answers), events)
    }

    /// The machine that a restart would rebuild.
    fn recovered(&self) -> Machine {
        let mut replay = Replay::from_nothing(7);
        for batch in &self.log {
            replay.batch(batch).unwrap();
        }
        replay.finish()
    }
}

fn wish(number: u32, lock: &str) -> Wish {
    Wish::new(
        LockName::new(lock).unwrap(),
        ClientId::new(&format!("client-{number}")).unwrap(),
        Under::new(Ttl::from_millis(TTL_MS).unwrap()),
        Some(RequestId::from_bytes([number as u8; 16])),
    )
}

fn withdraw(number: u64) -> Command {
    Command::Withdraw(RequestId::from_bytes([number as u8; 16]))
}

fn numbered(answers: Drain<'_, (To, Answer)>) -> Vec<(u32, Answer)> {
    answers.map(|(to, answer)| (to.number, answer)).collect()
}

fn grant_of(answers: &[(u32, Answer)], number: u32) -> GrantRef {
    let found = answers.iter().find_map(|(to, answer)| match answer {
        Answer::Outcome(Outcome::Granted(granted)) if *to == number => Some(granted),
        _ => None,
    });
    let granted = found.unwrap_or_else(|| panic!("{number} was not granted: {answers:?}"));
    GrantRef {
        lock: LockName::new("a").unwrap(),
        key: granted.key,
        token: Some(granted.token),
    }
}

fn unknown(answers: &[(u32, Answer)]) -> Vec<u32> {
    let unknown = answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Answer::Failed(Failure::UnknownOutcome(_))));
    unknown.map(|(to, _)| *to).collect()
}

#[test]
fn released_answers_rest_on_the_entry_that_was_committed() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    assert!(bench.orderer.has_answers());
    let (answers, events) = bench.commit();
    let token = grant_of(&answers, 1).token;
    assert_eq!(events.len(), 1);
    let recovered = bench.recovered();
    let holder = recovered.holder("a", recovered.now());
    assert_eq!(holder.map(|holder| holder.token), token);
    assert!(!bench.orderer.has_answers(), "an answer leaves once");
}

#[test]
fn a_request_that_changes_nothing_is_answered_without_an_entry() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.commit();
    bench.begin();
    bench.ask(caller(2), Request::Show(LockName::new("a").unwrap()));
    bench.ask(caller(3), Request::Advance(Span::from_millis(1)));
    assert_eq!(bench.orderer.entry(), None);
    let (answers, _) = bench.commit();
    assert!(matches!(answers[0], (2, Answer::Lock(_))));
    assert!(matches!(
        answers[1],
        (3, Answer::Failed(Failure::Refused(_)))
    ));
}

/// A denied try is not in the batch, so the batch needs no version for it (rule R21).
#[test]
fn what_is_taken_back_from_a_batch_does_not_raise_its_version() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    let next = Wish {
        metadata: Some(NEXT.into()),
        ..Wish::new(
            LockName::new("a").unwrap(),
            ClientId::new("next").unwrap(),
            Under::new(Ttl::from_millis(TTL_MS).unwrap()),
            None,
        )
    };
    let key = || LeaseKey::from_bytes([9; 16]);
    bench
        .orderer
        .request(Request::Acquire(next.clone()), caller(2), key);
    assert_eq!(bench.commands().len(), 1);
    let version = |bench: &Bench| bench.orderer.entry().map(|entry| entry[0]);
    assert_eq!(version(&bench), Some(VERSION));

    let free = Wish {
        lock: LockName::new("b").unwrap(),
        ..next
    };
    bench
        .orderer
        .request(Request::Acquire(free), caller(3), key);
    assert_eq!(bench.commands().len(), 2);
    assert_eq!(version(&bench), Some(VERSION + 1));
}

/// The same requests, with a member that reads nothing new and without one.
#[test]
fn what_a_member_cannot_read_is_refused_and_everything_else_goes_on() {
    let refusal = Failure::Refused("node 7 is of an older version".to_owned());
    for (version, granted) in [(VERSION, false), (VERSION + 1, true)] {
        let mut bench = Bench::new();
        bench.orderer.limit_to(Writable {
            version,
            refusal: refusal.clone(),
        });
        bench.begin();
        bench.acquire(caller(1), "a", None);
        let next = Wish {
            metadata: Some(NEXT.into()),
            ..Wish::new(
                LockName::new("b").unwrap(),
                ClientId::new("next").unwrap(),
                Under::new(Ttl::from_millis(TTL_MS).unwrap()),
                Some(RequestId::from_bytes([8; 16])),
            )
        };
        let key = || LeaseKey::from_bytes([9; 16]);
        bench
            .orderer
            .request(Request::Acquire(next), caller(2), key);
        let written = bench.orderer.entry().map(|entry| entry[0]);
        let (answers, _) = bench.commit();
        grant_of(&answers, 1);
        let refused = matches!(&answers[1].1, Answer::Failed(why) if *why == refusal);
        assert_eq!(refused, !granted);
        assert_eq!(written, Some(version));
    }
}

#[test]
fn a_failed_commit_tells_everybody_in_flight_that_the_outcome_is_unknown() {
    type Ending = fn(&mut Orderer<To>) -> Drain<'_, (To, Answer)>;
    let endings: [(Ending, &str); 2] = [
        (Orderer::failed, "stopped before it answered"),
        (Orderer::deposed, "another node took over"),
    ];
    for (ending, said) in endings {
        let mut bench = Bench::new();
        bench.begin();
        bench.acquire(caller(1), "a", None);
        bench.acquire(of_session(7, 2), "a", Some(60_000));
        bench.acquire(caller(3), "a", Some(60_000));
        bench.commit();
        bench.begin();
        bench.acquire(caller(4), "b", None);
        bench.ask(caller(5), Request::Status);
        let answers = numbered(ending(&mut bench.orderer));
        assert_eq!(
            unknown(&answers),
            [4, 5, 2, 3],
            "in flight, then those who wait"
        );
        assert!(
            answers
                .iter()
                .all(|(_, answer)| format!("{answer:?}").contains(said))
        );
        let (answers, events) = bench.commit();
        assert!(
            answers.is_empty() && events.is_empty(),
            "{answers:?} {events:?}"
        );
    }
}

#[test]
fn a_full_log_refuses_changes_and_lets_them_in_again_after_a_grace() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.acquire(of_session(7, 2), "a", Some(60_000));
    bench.commit();
    let due = bench.orderer.next_due();
    assert!(due.is_some());

    bench.work(TTL_MS + 1);
    assert_eq!(bench.begin_with(Err("the disk is full".into())), None);
    bench.acquire(caller(3), "b", None);
    bench.ask(caller(4), Request::Status);
    bench.orderer.hang_up(7);
    assert_eq!(bench.orderer.entry(), None, "not even the expiry");
    assert_eq!(bench.orderer.next_due(), None, "it would wake for nothing");
    let (answers, _) = bench.commit();
    let refused = Failure::Unavailable("the disk is full; nothing happened".into());
    assert!(matches!(&answers[0], (3, Answer::Failed(failed)) if *failed == refused));
    assert!(matches!(answers[1], (4, Answer::Status(_))));

    assert_eq!(bench.begin(), None);
    bench.acquire(caller(5), "b", None);
    assert_eq!(bench.commands(), [withdraw(2)]);
    let (answers, _) = bench.commit();
    let refused = matches!(&answers[..], [(5, Answer::Failed(Failure::Unavailable(_)))]);
    assert!(refused, "its time would be too early: {answers:?}");

    let full = Away::Paused(Span::from_millis(TTL_MS + 1));
    assert_eq!(bench.begin(), Some(full));
    bench.acquire(caller(6), "a", None);
    assert_eq!(bench.commands()[0], Command::Grace(full));
    let (answers, _) = bench.commit();
    let held = matches!(&answers[0], (6, Answer::Outcome(Outcome::Held(holder)))
        if holder.remaining.as_millis() == TTL_MS);
    assert!(held, "it has its full time again: {answers:?}");
}

/// A10 while the log is full: the lock opens meanwhile, and its only waiter is known to have left.
#[test]
fn who_left_while_the_log_was_full_is_granted_nothing_when_there_is_room_again() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire_for_at_least(caller(1), "a", 5_000);
    bench.acquire(of_session(7, 2), "a", Some(60_000));
    let (answers, _) = bench.commit();
    bench.begin();
    bench.ask(caller(1), Request::Release(grant_of(&answers, 1)));
    bench.commit();
    let next = bench.orderer.machine().next_token();

    bench.work(TTL_MS);
    bench.begin_with(Err("the disk is full".into()));
    bench.orderer.hang_up(7);
    bench.commit();
    while bench.begin().is_none() {
        bench.commit();
    }
    bench.commit();
    assert_eq!(bench.orderer.machine().next_token(), next);
    assert_eq!(bench.recovered().next_token(), next);
}

#[test]
fn what_happened_while_the_log_was_full_is_recorded_in_batches_of_the_usual_size_newest_first() {
    const BATCH: usize = 64;
    let mut bench = Bench::new();
    bench.orderer = Orderer::new(Machine::new(1), false).with_batches_of(BATCH);
    bench.begin();
    bench.acquire(caller(1), "a", None);
    for number in 2..=20 {
        bench.acquire(of_session(number, number as u32), "a", Some(60_000));
    }
    bench.commit();
    bench.begin_with(Err("the disk is full".into()));
    for session in 2..=20 {
        bench.orderer.hang_up(session);
    }
    bench.commit();

    let (mut withdrawn, mut batches) = (Vec::new(), 0);
    while bench.begin().is_none() {
        let bytes = bench.orderer.entry().unwrap().len();
        assert!(bytes < BATCH + 32, "{bytes}");
        withdrawn.extend(bench.commands());
        batches += 1;
        bench.commit();
    }
    let newest_first: Vec<Command> = (2..=20).rev().map(withdraw).collect();
    assert_eq!(withdrawn, newest_first);
    assert!(batches > 3, "{batches}");
    assert_eq!(bench.orderer.machine().waiters(), 0);
}

#[test]
fn a_grant_whose_caller_is_gone_is_released_in_the_next_batch() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    let (answers, _) = bench.commit();
    let grant = grant_of(&answers, 1);
    bench.orderer.unclaimed(NOBODY, grant.clone());
    assert_eq!(bench.orderer.entry(), None, "its batch is over");
    bench.begin();
    assert_eq!(bench.commands(), [Command::Release(grant)]);
    bench.commit();
    assert_eq!(bench.recovered().locks(), 0);
}

#[test]
fn expired_leases_end_before_the_requests_of_the_same_batch() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.commit();
    for (passed, granted) in [(TTL_MS - 1, false), (1, true)] {
        bench.work(passed);
        bench.begin();
        bench.acquire(caller(2 + u32::from(granted)), "a", None);
        // The first time it ends nothing, and records the time.
        assert_eq!(bench.commands()[0], Command::Expire);
        let (answers, _) = bench.commit();
        let got = matches!(answers[0].1, Answer::Outcome(Outcome::Granted(_)));
        assert_eq!(got, granted, "after {passed} ms more");
    }
}

#[test]
fn an_absence_gives_leases_their_time_again_and_work_does_not() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.commit();
    bench.work(5_000);
    assert_eq!(bench.begin(), None);
    bench.commit();
    bench.now_ms += 5_000;
    let away = Away::Paused(Span::from_millis(5_000));
    assert_eq!(bench.begin(), Some(away));
    assert_eq!(bench.commands()[0], Command::Grace(away));
    bench.commit();
    let slept = Span::from_millis(5_000);
    bench.now_ms += 5_000;
    bench.orderer.slept(slept, slept, Span::ZERO);
    assert_eq!(bench.begin(), None);
}

/// Each wait that leaves would admit those behind it, which leave next: they would hold locks, although their
/// callers heard otherwise.
#[test]
fn an_authority_that_is_about_to_stop_grants_nothing_to_those_who_wait() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    for number in 2..=5 {
        bench.acquire(caller(number), "a", Some(60_000));
    }
    bench.acquire(of_session(7, 6), "a", Some(60_000));
    let (answers, _) = bench.commit();
    bench.begin();
    assert!(!bench.orderer.drain());
    let (told, _) = bench.commit();
    let refused = |answer: &Answer| matches!(answer, Answer::Failed(Failure::Unavailable(_)));
    assert!(told.iter().all(|(_, answer)| refused(answer)));
    let told: Vec<u32> = told.iter().map(|(to, _)| *to).collect();
    assert_eq!(told, [5, 4, 3, 2], "a session ends with its answers");

    // The lock comes free, callers leave, and one more comes.
    bench.begin();
    bench.ask(caller(8), Request::Release(grant_of(&answers, 1)));
    bench.orderer.hang_up(7);
    bench.acquire(caller(9), "b", None);
    bench.acquire(caller(10), "b", Some(60_000));
    let (answers, _) = bench.commit();
    assert!(matches!(
        answers[1],
        (9, Answer::Outcome(Outcome::Granted(_)))
    ));
    assert!(matches!(&answers[2], (10, answer) if refused(answer)));
    bench.work(2_001);
    bench.begin();
    let (_, events) = bench.commit();
    assert!(events.is_empty(), "{events:?}");
    let recovered = bench.recovered();
    assert_eq!((recovered.locks(), recovered.waiters()), (1, 0));
}

#[test]
fn many_waits_are_recorded_in_batches_of_the_usual_size() {
    const BATCH: usize = 64;
    let mut bench = Bench::new();
    bench.orderer = Orderer::new(Machine::new(1), false).with_batches_of(BATCH);
    bench.begin();
    bench.acquire(caller(1), "a", None);
    for number in 2..=20 {
        bench.acquire(caller(number), "a", Some(60_000));
    }
    bench.commit();
    let (mut told, mut batches) = (0, 0);
    loop {
        bench.begin();
        let more = bench.orderer.drain();
        let bytes = bench.orderer.entry().unwrap().len();
        assert!(bytes < BATCH + 32, "{bytes}");
        let orphans = bench.commands().len();
        let (answers, _) = bench.commit();
        assert_eq!(answers.len(), orphans);
        (told, batches) = (told + answers.len(), batches + 1);
        if !more {
            break;
        }
    }
    assert_eq!(told, 19);
    assert!(batches > 3, "{batches}");
}

#[test]
fn a_batch_is_over_when_it_is_large_or_took_long() {
    let mut bench = Bench::new();
    bench.orderer = bench.orderer.with_batches_of(200);
    bench.begin();
    let mut taken = 0;
    while !bench
        .orderer
        .is_batch_over(|| panic!("it is too early to look at the clock"))
    {
        taken += 1;
        bench.acquire(caller(taken), &format!("lock-{taken}"), None);
    }
    assert!((3..10).contains(&taken), "{taken}");
    bench.commit();

    let list = || Request::List {
        prefix: "".into(),
        cursor: 0,
        limit: 1,
    };
    for (request, many) in [
        ((|| Request::Status) as fn() -> Request, LOOK_AFTER),
        (list, LOOK_AFTER / PAGE_WEIGHT),
    ] {
        bench.begin();
        for asked in 0..many {
            let early = || panic!("the clock is read after {asked} of {many} requests");
            assert!(!bench.orderer.is_batch_over(early));
            bench.ask(caller(1), request());
        }
        let mut read = false;
        let in_time = || {
            read = true;
            Timestamp::ZERO.after(TURN)
        };
        assert!(!bench.orderer.is_batch_over(in_time));
        assert!(read, "the clock is read after {many} requests");
        (0..many).for_each(|_| bench.ask(caller(1), request()));
        assert!(bench.orderer.is_batch_over(|| Timestamp::from_millis(11)));
        bench.commit();
    }
}

#[test]
fn the_room_that_the_log_must_have_holds_the_largest_batch() {
    let mut over = 0;
    for locks in [1, limits::SET_LOCKS] {
        let bytes = largest_batch(locks);
        assert!((1 << 20..=ROOM).contains(&bytes), "{bytes}");
        over = over.max(bytes - (1 << 20));
    }
    assert!(over > 4 << 10, "the largest batch ends with a set: {over}");
}

/// The length of a batch full of the longest requests for this many locks.
fn largest_batch(locks: usize) -> usize {
    let mut bench = Bench::new();
    bench.begin();
    let mut taken = 0u64;
    while !bench.orderer.is_batch_over(|| Timestamp::ZERO) {
        taken += 1;
        let id = u128::from(taken).to_le_bytes();
        let named = |n| format!("{:0>width$}", 100 * taken + n, width = limits::NAME_BYTES);
        let name = named(0);
        let others = (1..locks as u64).map(|n| LockName::new(&named(n)).unwrap());
        let wish = Wish {
            lock: LockName::new(&name).unwrap(),
            also: others.collect(),
            client: ClientId::new(&name).unwrap(),
            mode: LockMode::Exclusive,
            under: Under::new(Ttl::from_millis(TTL_MS).unwrap()),
            wait: Some(Span::from_millis(1)),
            request: Some(RequestId::from_bytes(id)),
            metadata: Some("m".repeat(limits::METADATA_BYTES).into()),
            // A set has none.
            options: match locks {
                1 => GrantOptions::closing(60_000, 86_400_000).unwrap(),
                _ => GrantOptions::NONE,
            },
        };
        let key = || LeaseKey::from_bytes(id);
        bench
            .orderer
            .request(Request::Acquire(wish), caller(1), key);
    }
    bench.orderer.entry().unwrap().len()
}

#[test]
fn the_stamp_never_goes_back() {
    let mut bench = Bench::new();
    bench.work(500);
    bench.begin();
    bench.commit();
    bench.now_ms = 100;
    bench.begin();
    assert_eq!(bench.orderer.now(), Timestamp::from_millis(500));
}

#[test]
fn a_batch_names_principals_only_where_somebody_known_changed_something() {
    let mut bench = Bench::new();
    let [ada, eve] = [0xa1, 0xe2].map(|n| Principal::from_bytes([n; 16]));
    bench.begin();
    bench.acquire(caller(1), "plain", None);
    let plain = bench.orderer.entry().unwrap();
    let nobody = NOBODY.to_bytes();
    assert!(plain.windows(16).all(|bytes| *bytes != nobody));
    bench.commit();

    bench.begin();
    bench.by = ada;
    bench.acquire(caller(2), "a", None);
    bench.acquire(caller(3), "b", None);
    bench.by = eve;
    let stolen = GrantRef {
        lock: LockName::new("a").unwrap(),
        key: LeaseKey::from_bytes([2; 16]),
        token: None,
    };
    bench.ask(caller(4), Request::Release(stolen));
    bench.by = NOBODY;
    bench.acquire(caller(5), "c", None);
    let entry = bench.orderer.entry().unwrap().to_vec();
    let mut by = Vec::new();
    decode_batch(&entry, |entry| by.push(entry.by)).unwrap();
    assert_eq!(by, [ada, ada, NOBODY]);
    let named = |id: Principal| {
        let id = id.to_bytes();
        entry.windows(16).filter(|bytes| **bytes == id).count()
    };
    assert_eq!(
        (named(ada), named(eve)),
        (1, 0),
        "once for a run; nothing for a refusal"
    );
    let (answers, _) = bench.commit();
    let refused = |(to, answer): &(u32, Answer)| {
        *to == 4 && matches!(answer, Answer::Outcome(Outcome::WrongPrincipal { .. }))
    };
    assert!(answers.iter().any(refused), "{answers:?}");
    let recovered = bench.recovered();
    let named = recovered.records().any(|record| record.by() == ada);
    assert_eq!((recovered.locks(), named), (4, true));
}

#[test]
fn what_is_done_for_a_caller_that_left_is_done_as_its_principal() {
    let mut bench = Bench::new();
    let ada = Principal::from_bytes([1; 16]);
    bench.begin();
    bench.by = ada;
    bench.acquire(caller(1), "a", None);
    // The same id waits for two principals.
    bench.acquire(of_session(7, 2), "a", Some(60_000));
    bench.by = NOBODY;
    bench.acquire(of_session(8, 2), "a", Some(60_000));
    let (answers, _) = bench.commit();
    bench.begin();
    bench.orderer.hang_up(7);
    bench.commit();
    assert_eq!(
        bench.orderer.machine().waiters(),
        1,
        "the other one's stays"
    );
    bench.begin();
    bench.orderer.unclaimed(ada, grant_of(&answers, 1));
    let (answers, _) = bench.commit();
    let granted = matches!(&answers[..], [(2, Answer::Outcome(Outcome::Granted(_)))]);
    assert!(granted, "handed on: {answers:?}");
}

use palisade_core::machine::{Answered, Closing, KeptRecord, Over, Part, Record, WaiterRecord};
use palisade_core::{
    Acquire, Ahead, Away, ClientId, Command, Delayed, Ending, Entry, GrantId, GrantOption,
    GrantOptions, GrantRef, Granted, Holder, LeaseId, LeaseKey, Limits, LockMode, LockName,
    Machine, Others, Outcome, Permits, Principal, QueueBound, RequestId, Slots, Span, Timestamp,
    Token, Ttl, Under, WallTime,
};

use super::reader::Reader;
use super::writer::Put;
use super::*;

const AT: Timestamp = Timestamp::from_millis(300);
const WALL: WallTime = WallTime(1_800_000_000_000);

const LIMITS: Limits = Limits {
    min_ttl: Ttl::MIN,
    max_ttl: Ttl::MAX,
    waiters_per_lock: 17,
    waiters_per_client: 130,
    locks: u32::MAX,
};

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn client(id: &str) -> ClientId {
    ClientId::new(id).unwrap()
}

fn key(number: u8) -> LeaseKey {
    LeaseKey::from_bytes([number; 16])
}

fn id(number: u8) -> RequestId {
    RequestId::from_bytes([number; 16])
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn ttl(millis: u64) -> Ttl {
    Ttl::from_millis(millis).unwrap()
}

fn new_lease(number: u8) -> Under {
    Under::New {
        key: key(number),
        ttl: ttl(60_000),
    }
}

fn acquire(name: &str, by: &str, under: Under) -> Acquire {
    Acquire::new(lock(name), client(by), under, None)
}

fn set(names: &[&str], by: &str, under: Under) -> Acquire {
    let names = names.iter().map(|name| lock(name)).collect();
    Acquire::of_all(names, client(by), under, None).unwrap()
}

fn grant(name: &str, number: u8, with: Option<u64>) -> GrantRef {
    GrantRef {
        lock: lock(name),
        key: key(number),
        token: with.map(token),
    }
}

fn existing(number: u8, ttl: Option<Ttl>) -> Under {
    Under::Existing {
        key: key(number),
        ttl,
    }
}

/// Every kind of command, and each optional field by itself. In [`machine_records`] the first gets token 4.
fn permits(wanted: u32, of: u32) -> LockMode {
    LockMode::Permits(Permits::new(wanted, of).unwrap())
}

fn commands() -> Vec<Command> {
    let wait = Some(Span::from_millis(30_000));
    vec![
        Command::Acquire(acquire("a", "one", new_lease(1))),
        Command::Acquire(Acquire {
            metadata: Some("host-7".into()),
            ..acquire("b", "one", existing(1, None))
        }),
        Command::Acquire(acquire("c", "one", existing(1, Some(ttl(60_000))))),
        Command::Acquire(Acquire {
            request: Some(id(4)),
            ..acquire("d", "two", new_lease(2))
        }),
        Command::Acquire(Acquire {
            wait,
            ..acquire("e", "two", existing(2, None))
        }),
        Command::Acquire(Acquire {
            wait,
            request: Some(id(5)),
            metadata: Some("host-8".into()),
            ..acquire("a", "two", new_lease(3))
        }),
        Command::Acquire(Acquire {
            wait,
            request: Some(id(6)),
            ..acquire("a", "two", existing(2, Some(ttl(60_000))))
        }),
        Command::Acquire(Acquire {
            wait,
            request: Some(id(7)),
            ..acquire("a", "two", existing(2, None))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Shared,
            ..acquire("r", "three", new_lease(4))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Shared,
            metadata: Some("host-9".into()),
            ..acquire("r", "six", new_lease(5))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Shared,
            wait,
            request: Some(id(9)),
            ..acquire("a", "three", existing(4, None))
        }),
        Command::Acquire(Acquire {
            mode: permits(2, 3),
            metadata: Some("host-9".into()),
            ..acquire("s", "seven", new_lease(6))
        }),
        Command::Acquire(Acquire {
            mode: permits(2, 3),
            wait,
            request: Some(id(10)),
            ..acquire("s", "eight", new_lease(7))
        }),
        Command::Open {
            lock: lock("t"),
            reason: "the job failed".into(),
        },
        Command::Resize {
            lock: lock("s"),
            permits: 2,
        },
        Command::Acquire(Acquire {
            options: GrantOptions::closing(60_000, 0).unwrap(),
            ..acquire("t", "nine", new_lease(8))
        }),
        Command::Acquire(Acquire {
            options: GrantOptions::closing(1, 86_400_000).unwrap(),
            wait,
            request: Some(id(11)),
            ..acquire("t", "ten", new_lease(9))
        }),
        Command::Acquire(Acquire {
            options: GrantOption::all().fold(GrantOptions::NONE, |options, option| {
                options.with(option, option.most().into()).unwrap()
            }),
            ..acquire("options", "all", new_lease(40))
        }),
        Command::Acquire(Acquire {
            metadata: Some("host-9".into()),
            ..set(&["u", "v", "w"], "eleven", new_lease(10))
        }),
        Command::Acquire(Acquire {
            wait,
            request: Some(id(12)),
            metadata: Some("host-9".into()),
            ..set(&["v", "y"], "twelve", new_lease(11))
        }),
        Command::Acquire(set(&["p", "q"], "two", existing(2, None))),
        Command::Acquire(Acquire {
            mode: LockMode::Update,
            ..acquire("h", "thirteen", new_lease(12))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Shared,
            ..acquire("h", "three", new_lease(13))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Update,
            wait,
            request: Some(id(13)),
            ..acquire("h", "three", new_lease(14))
        }),
        Command::Acquire(Acquire {
            mode: LockMode::Upgrade,
            wait,
            request: Some(id(14)),
            metadata: Some("host-9".into()),
            ..acquire("h", "thirteen", existing(12, None))
        }),
        // Refused, and logged if something else was due.
        Command::Acquire(Acquire {
            mode: LockMode::Upgrade,
            ..set(&["p", "q"], "two", existing(2, None))
        }),
        Command::Renew {
            grant: grant("a", 1, Some(4)),
            ttl: Some(ttl(70_000)),
        },
        Command::Renew {
            grant: grant("d", 2, None),
            ttl: None,
        },
        Command::Proclaim {
            grant: grant("a", 1, Some(4)),
            value: "10.0.0.7".into(),
        },
        Command::Proclaim {
            grant: grant("b", 1, None),
            value: "".into(),
        },
        Command::Release(grant("b", 1, None)),
        Command::Release(grant("c", 1, Some(6))),
        Command::Revoke {
            lock: lock("d"),
            token: token(7),
            reason: "maintenance".into(),
        },
        Command::Withdraw(id(7)),
        Command::Orphan(id(7)),
        Command::Abandon(id(8)),
        Command::Expire,
        Command::Grace(Away::Paused(Span::from_millis(250))),
        Command::Configure(LIMITS),
        Command::Leap { by: 1 << 44 },
        Command::Grace(Away::Restarted),
        Command::Grace(Away::Down(Span::from_millis(7))),
        Command::Grace(Away::Restored),
    ]
}

fn head() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_head(&mut bytes, AT, WALL);
    bytes
}

#[test]
fn every_command_is_read_as_it_was_written_and_nothing_less() {
    let head = head();
    for command in commands() {
        let mut batch = head.clone();
        encode_command(&mut batch, &command);
        let written = Entry {
            at: AT,
            wall: WALL,
            by: Principal::ANONYMOUS,
            command,
        };
        let mut read = Vec::new();
        decode_batch(&batch, |entry| read.push(entry)).unwrap();
        assert_eq!(read, std::slice::from_ref(&written));
        for end in (0..batch.len()).filter(|end| *end != head.len()) {
            let cut = decode_batch(&batch[..end], |entry| panic!("{entry:?} of {end} bytes"));
            assert_eq!(
                cut.unwrap_err().what,
                "it ends in the middle",
                "{written:?}"
            );
        }
    }
}

#[test]
fn a_batch_says_who_asked_for_each_command() {
    let [ada, eve] = [1, 2].map(|n| Principal::from_bytes([n; 16]));
    let nobody = Principal::ANONYMOUS;
    let asked = [nobody, ada, ada, eve, nobody, ada];
    let mut batch = head();
    let mut last = nobody;
    for by in asked {
        if by != last {
            encode_by(&mut batch, by);
            last = by;
        }
        encode_command(&mut batch, &Command::Expire);
    }
    let mut read = Vec::new();
    decode_batch(&batch, |entry| read.push(entry.by)).unwrap();
    assert_eq!(read, asked);
}

#[test]
fn a_record_says_whose_it_is() {
    let ada = Principal::from_bytes([1; 16]);
    let mut whose = 0;
    for mut record in machine_records() {
        let mut plain = Vec::new();
        encode_record(&mut plain, &record);
        match &mut record {
            Record::Lease(lease) => lease.by = ada,
            Record::Waiter(waiter) => waiter.by = ada,
            Record::Answered(answered) => answered.by = ada,
            Record::Over(over) => over.by = ada,
            _ => {
                // A grant is its lease's, and the rest is nobody's.
                let named = [&[64][..], &[1; 16], &plain].concat();
                assert!(decode_record(&named).is_err());
                continue;
            }
        }
        whose += 1;
        let mut bytes = Vec::new();
        encode_record(&mut bytes, &record);
        assert_eq!(bytes.len(), plain.len() + 17);
        assert_eq!(part(&bytes), part(&plain));
        assert_eq!(decode_record(&bytes), Ok(record));
    }
    assert!(whose > 3);
}

/// The records of a machine that carried out every command and then, before the last command, went on until a
/// lease was over. The waiting requests are still there.
fn machine_records() -> Vec<Record> {
    let mut machine = Machine::new(1);
    let mut now = |at, command| {
        machine.replay(Entry {
            at,
            wall: WALL,
            by: Principal::ANONYMOUS,
            command,
        });
    };
    let short = Under::New {
        key: key(20),
        ttl: Ttl::MIN,
    };
    now(
        Timestamp::ZERO,
        Command::Acquire(acquire("f", "four", short)),
    );
    now(
        Timestamp::ZERO,
        Command::Acquire(acquire("g", "five", new_lease(21))),
    );
    now(
        Timestamp::ZERO,
        Command::Acquire(acquire("g", "five", new_lease(22))),
    );
    let all = commands();
    for command in &all[..all.len() - 3] {
        now(AT, command.clone());
    }
    machine.records().collect()
}

/// Answers that are remembered, each with numbers of its own.
fn answered() -> Vec<Record> {
    let granted = Granted {
        token: token(1 << 50),
        shared: None,
        slots: Slots::NONE,
        lease: LeaseId(token(300)),
        key: key(30),
        ttl: ttl(1_000),
        valid_for: Span::from_millis(2_000),
        waited: Span::from_millis(1_500),
        acquired_at: WALL,
    };
    let holder = Holder {
        client: client("six"),
        token: token(77),
        remaining: Span::from_millis(5),
    };
    let ended = |how| Outcome::Ended {
        token: token(78),
        how,
    };
    let outcomes = [
        Outcome::Granted(granted.clone()),
        Outcome::Granted(Granted {
            shared: Some(GrantId(token(1 << 51))),
            ..granted.clone()
        }),
        Outcome::Granted(Granted {
            slots: Slots::from_bits(1 << 63 | 5),
            ..granted
        }),
        Outcome::Held(holder.clone()),
        Outcome::Behind(Ahead {
            client: holder.client.clone(),
            remaining: holder.remaining,
        }),
        Outcome::Delayed(Delayed {
            token: token(3),
            remaining: Span::from_millis(5),
        }),
        ended(Ending::Released),
        ended(Ending::Expired),
        ended(Ending::Revoked),
        ended(Ending::Superseded),
        Outcome::NotHeld,
        Outcome::QueueFull(QueueBound::Lock { max: 200 }),
        Outcome::QueueFull(QueueBound::Client { max: 201 }),
        Outcome::TooManyLocks { max: u32::MAX },
        Outcome::Abandoned,
        Outcome::TokensExhausted,
    ];
    let records = (40..).zip(outcomes).map(|(number, outcome)| {
        Record::Answered(Answered {
            by: Principal::ANONYMOUS,
            request: id(number),
            lock: (number % 2 == 0).then(|| lock("h")),
            also: (0..number % 6 / 4).map(|_| lock("i")).collect(),
            outcome,
        })
    });
    records.collect()
}

#[test]
fn every_record_is_read_as_it_was_written_and_nothing_less_or_more() {
    let mut records = machine_records();
    for ending in [
        Ending::Released,
        Ending::Expired,
        Ending::Revoked,
        Ending::Superseded,
    ] {
        let ended = |record: &Record| matches!(record, Record::Over(over) if over.how == ending);
        assert!(records.iter().any(ended), "{ending:?}");
    }
    let waiting = |record: &&Record| matches!(record, Record::Waiter(_));
    assert_eq!(records.iter().filter(waiting).count(), 9);
    let closing =
        |record: &&Record| matches!(record, Record::Grant(grant) if grant.closing != Closing::NONE);
    assert_eq!(records.iter().filter(closing).count(), 2);
    let inheriting: Vec<Record> = records
        .iter()
        .filter(closing)
        .cloned()
        .map(|record| match record {
            Record::Grant(mut grant) => {
                (grant.closing.reserved, grant.closing.inherited) = (Some(AT), Some(AT));
                Record::Grant(grant)
            }
            other => other,
        })
        .collect();
    records.extend(inheriting);
    let shared = |record: &&Record| matches!(record, Record::Share(_));
    assert_eq!(records.iter().filter(shared).count(), 5);
    records.extend(answered());
    for (permits, until) in [(None, None), (Some(3), None), (None, Some(AT))] {
        let (lock, last) = (lock("kept"), token(9));
        records.push(Record::Kept(KeptRecord {
            lock,
            last,
            permits,
            closed: None,
        }));
        let waiter = records.iter().find_map(|record| match record {
            Record::Waiter(waiter) if waiter.mode.permits().is_some() => Some(waiter.clone()),
            _ => None,
        });
        records.extend(waiter.map(|waiter| {
            Record::Waiter(WaiterRecord {
                orphan: until,
                ..waiter
            })
        }));
    }
    records.push(Record::Kept(KeptRecord {
        lock: lock("closed"),
        last: token(9),
        permits: None,
        closed: Some(AT),
    }));
    let of_update = records.iter().filter_map(|record| match record {
        Record::Waiter(waiter) if matches!(waiter.mode, LockMode::Update | LockMode::Upgrade) => {
            let orphan = Some(AT);
            Some(Record::Waiter(WaiterRecord {
                orphan,
                ..waiter.clone()
            }))
        }
        _ => None,
    });
    let of_update: Vec<Record> = of_update.collect();
    assert_eq!(of_update.len(), 2);
    records.extend(of_update);
    let waits = records.iter().find_map(|record| match record {
        Record::Waiter(waiter) if !waiter.options.is_none() => Some(waiter.clone()),
        _ => None,
    });
    records.push(Record::Waiter(WaiterRecord {
        orphan: Some(AT),
        ..waits.unwrap()
    }));
    let over = records.iter().find_map(|record| match record {
        Record::Over(over) => Some(over.clone()),
        _ => None,
    });
    for (by, again) in [(1, 0), (0, 1), (1, u32::MAX)] {
        let by = Principal::from_bytes([by; 16]);
        let over = over.clone().unwrap();
        records.push(Record::Over(Over { by, again, ..over }));
    }
    if let Some(Record::Head(head)) = records.first() {
        let exhausted = palisade_core::machine::Head {
            next_token: None,
            ..*head
        };
        let restored = palisade_core::machine::Head {
            restored: head.next_token,
            ..*head
        };
        records.extend([exhausted, restored].map(Record::Head));
    }
    for record in records {
        let mut bytes = Vec::new();
        encode_record(&mut bytes, &record);
        assert_eq!(decode_record(&bytes).as_ref(), Ok(&record));
        let belongs = match record {
            Record::Head(_) | Record::Lease(_) => Part::Leases,
            Record::Grant(_) | Record::Share(_) | Record::Kept(_) | Record::Waiter(_) => {
                Part::Grants
            }
            Record::Answered(_) | Record::Over(_) => Part::Past,
        };
        assert_eq!(part(&bytes), belongs, "{record:?}");
        for end in 0..bytes.len() {
            let cut = decode_record(&bytes[..end]).unwrap_err();
            assert_eq!(cut.what, "it ends in the middle", "{record:?}");
        }
        bytes.push(0);
        let more = decode_record(&bytes).unwrap_err();
        assert_eq!((more.what, more.left), ("something follows a record", 1));
    }
}

/// An answer that is never remembered has no encoding. If one gets here, it is read as if its caller did not hold
/// the lock.
#[test]
fn an_answer_that_is_never_remembered_is_no_grant() {
    let mut bytes = Vec::new();
    encode_record(
        &mut bytes,
        &Record::Answered(Answered {
            by: Principal::ANONYMOUS,
            request: id(1),
            lock: None,
            also: Others::NONE,
            outcome: Outcome::Queued,
        }),
    );
    let read = decode_record(&bytes);
    assert!(matches!(read, Ok(Record::Answered(read)) if read.outcome == Outcome::NotHeld));
}

#[test]
fn a_number_takes_seven_bits_a_byte() {
    for (number, bytes) in [
        (0, &[0][..]),
        (0x7f, &[0x7f]),
        (0x80, &[0x80, 1]),
        (0xff, &[0xff, 1]),
        (0x3fff, &[0xff, 0x7f]),
        (0x4000, &[0x80, 0x80, 1]),
        (0x1f_ffff, &[0xff, 0xff, 0x7f]),
        (
            u64::MAX,
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
    ] {
        let mut written = Vec::new();
        written.number(number);
        assert_eq!(written, bytes);
        let mut reader = Reader(bytes);
        assert_eq!(reader.number(), Ok(number));
        assert!(reader.is_empty());
    }
}

/// Faulty bytes, and their error messages.
#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let batch = |command: &[u8]| decode_batch(&[&head()[..], command].concat(), |_| {}).err();
    let flaw = |what, left| Some(Malformed { what, left });
    let too_long = [&[10][..], &[0xff; 9], &[2]].concat();
    let alone = [&[14, 0][..], &[1, 0, 1, b'a']].concat();
    let too_many = [14, 64];
    let no_acquire = [14, 1, 1, b'b', 4];
    let too_long_by_far = [&[10][..], &[0xff; 12]].concat();
    let acquire_new = [&[1, 0, 1, b'a', 1, b'c'][..], &[1; 16]].concat();
    let acquire_ttl = [&[1, 1, 1, b'a', 1, b'c'][..], &[1; 16], &[0]].concat();
    let beyond = &[0xff, 0xff, 0xff, 0xff, 0x1f][..];
    let settings = [&[11, 100, 100, 1, 1][..], beyond].concat();
    for (command, what, left) in [
        (&[99][..], "a command has an unknown tag", 0),
        (&[9, 9, 7], "a reason for grace is unknown", 1),
        (&too_long, "a number has more than 64 bits", 0),
        (&too_long_by_far, "a number has more than 64 bits", 2),
        (&[5, 1, b'a', 1, 2, 0xff, 0xfe], "a text is not UTF-8", 0),
        (&[4, 0, 1, b'\n'], "a lock has an impossible name", 0),
        (&[1, 0, 1, b'a', 0], "a client has an impossible id", 0),
        (&[5, 1, b'a', 0], "a token is out of range", 0),
        (&acquire_new, "a new lease has no time to live", 0),
        (&acquire_ttl, "a time to live is out of range", 0),
        (&settings, "a setting is out of range", 0),
        (&alone, "a set has too few or too many locks", 4),
        (&too_many, "a set has too few or too many locks", 0),
        (&no_acquire, "no acquire follows the locks of a set", 0),
    ] {
        assert_eq!(batch(command), flaw(what, left));
    }
    assert_eq!(
        decode_batch(&[0, 0, 0], |_| {}),
        Err(Malformed {
            what: "a batch has an unknown version",
            left: 2,
        })
    );

    let request = [1; 16];
    let counter = [&[1, 0][..], &[0xff; 7], &[0x7f]].concat();
    let named = [&[5][..], &request, &[1, 1, b'\n']].concat();
    let mark = [&[5][..], &request, &[2]].concat();
    let answer = [&[5][..], &request, &[0, 99]].concat();
    let ending = [&[6][..], &request, &[1, b'a', 1, 5]].concat();
    for (record, what) in [
        (&[99][..], "a record has an unknown tag"),
        (&counter, "the token counter is out of range"),
        (&named, "a lock has an impossible name"),
        (&mark, "a presence mark is neither 0 nor 1"),
        (&answer, "an answer has an unknown tag"),
        (&ending, "an ending has an unknown tag"),
    ] {
        assert_eq!(decode_record(record).err(), flaw(what, 0));
    }
    let said = decode_record(&[99, 0]).unwrap_err().to_string();
    assert_eq!(said, "a record has an unknown tag (1 bytes before the end)");
}

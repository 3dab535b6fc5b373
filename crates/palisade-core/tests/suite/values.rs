//! The results of values' methods and their texts: messages name the numbers that a person needs, and secrets
//! stay unsaid.
//!
//! Mutation testing found that nothing in this crate looked at them (docs/reports/2026-11-lab.md).

use std::time::Duration;

use palisade_core::fence::{FenceState, FloorTooLow, Op, Pass, Reject, Rule, Sequence, Verdict};
use palisade_core::{
    Acquire, AuthorityId, ClientId, Command, Entry, GrantOptions, LeaseId, LeaseKey, Limits,
    LockMode, LockName, Machine, Permits, Principal, RequestId, Slots, Span, Timestamp, Token, Ttl,
    Under, WallTime, limits,
};

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

#[test]
fn a_sequence_number_is_what_was_given_up_to_its_last() {
    for number in [0, 1, 7, Sequence::MAX.get()] {
        let sequence = Sequence::new(number).unwrap();
        assert_eq!(sequence.get(), number);
        assert_eq!(sequence.to_string(), number.to_string());
    }
    assert_eq!(Sequence::MAX.get(), Token::MAX.get());
    assert_eq!(Sequence::new(Sequence::MAX.get() + 1), None);
}

#[test]
fn a_floor_that_is_refused_names_both_numbers() {
    let refused = FloorTooLow {
        floor: token(17),
        highest: token(29),
    };
    let said = refused.to_string();
    assert!(said.contains("17") && said.contains("29"), "{said}");
}

#[test]
fn each_rejection_has_its_code_its_highest_token_and_a_text_that_names_its_numbers() {
    let last = Sequence::new(31).unwrap();
    let named = |name: &str| AuthorityId::new(name).unwrap();
    let highest = Some(token(29));
    let cases = [
        (
            Reject::Stale {
                presented: token(28),
                highest: token(29),
            },
            "stale",
            highest,
            "token 28 is stale: 28 < 29",
        ),
        (Reject::SequenceStale { last }, "sequence_stale", None, "31"),
        (
            Reject::AlreadyWritten,
            "already_written",
            None,
            "one write per grant",
        ),
        (
            Reject::SequenceReused { last },
            "sequence_reused",
            None,
            "31",
        ),
        (
            Reject::WrongAuthority {
                bound: named("blue"),
            },
            "wrong_authority",
            None,
            "blue",
        ),
        (
            Reject::WrongLock {
                bound: LockName::new("orders").unwrap(),
            },
            "wrong_lock",
            None,
            "orders",
        ),
        (
            Reject::Jump { highest, bound: 43 },
            "jump",
            highest,
            "43 above 29",
        ),
        (
            Reject::Jump {
                highest: None,
                bound: 43,
            },
            "jump",
            None,
            "43 above 0",
        ),
        (
            Reject::Tokenless { highest: token(29) },
            "tokenless",
            highest,
            "29",
        ),
        (Reject::Missing, "missing", None, "nothing was written"),
    ];
    for (reject, code, highest, text) in cases {
        assert_eq!(reject.code().name(), code);
        assert_eq!(reject.code().to_string(), code);
        assert!(Reject::CODES.contains(&reject.code()));
        assert_eq!(reject.highest(), highest, "{code}");
        assert!(reject.to_string().contains(text), "{reject}");
    }
}

#[test]
fn identities_come_back_from_their_text_and_a_key_is_never_shown() {
    let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xc0, 0xff, 0xee, 0xff];
    let text = "000102030405060708090a0bc0ffeeff";
    let key = LeaseKey::from_bytes(bytes);
    assert_eq!((key.to_hex().as_str(), key.as_bytes()), (text, &bytes));
    assert_eq!(LeaseKey::from_hex(text), Ok(key));
    assert_eq!(LeaseKey::from_hex(&text.to_uppercase()), Ok(key));
    for wrong in [
        "",
        &text[1..],
        &text.replace('c', "g"),
        &text.replace("00", "é"),
    ] {
        assert!(LeaseKey::from_hex(wrong).is_err(), "{wrong:?}");
        assert!(RequestId::from_hex(wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(format!("{key:?}"), "LeaseKey(…)");
    let request = RequestId::from_bytes(bytes);
    assert_eq!(request.as_bytes(), &bytes);
    assert_eq!(RequestId::from_hex(text), Ok(request));
    assert!(format!("{request:?}").contains(text), "{request:?}");
    assert_eq!(format!("{:?}", LeaseId(token(29))), "LeaseId(29)");
}

#[test]
fn names_and_tokens_read_as_they_are() {
    let lock = LockName::new("orders").unwrap();
    assert_eq!((lock.as_str(), lock.len()), ("orders", 6));
    assert_eq!(lock.to_string(), "orders");
    assert_eq!(format!("{lock:?}"), "\"orders\"");
    assert_eq!(ClientId::new("a").unwrap().to_string(), "a");
    assert_eq!(format!("{:?} {}", token(29), token(29)), "Token(29) 29");
    for (name, says) in [
        ("", "is empty; 1 ..= 255 bytes"),
        ("né", "offset 1"),
        ("a\u{7f}", "offset 1"),
    ] {
        let said = LockName::new(name).unwrap_err().to_string();
        assert!(
            said.starts_with("lock name ") && said.contains(says),
            "{said}"
        );
    }
    let longest = "x".repeat(255);
    assert!(ClientId::new(&longest).is_ok());
    let said = ClientId::new(&(longest + "x")).unwrap_err().to_string();
    assert!(said.starts_with("client id has 256 bytes"), "{said}");
    let said = AuthorityId::new("").unwrap_err().to_string();
    assert!(said.starts_with("authority id "), "{said}");
    assert!(
        LockName::new(" ~").is_ok(),
        "the first and the last that can be printed"
    );
    let said = Token::new(0).unwrap_err().to_string();
    assert!(
        said.contains("token 0 is outside 1 ..= 9007199254740991"),
        "{said}"
    );
}

#[test]
fn times_are_converted_exactly_and_never_overflow() {
    let at = Timestamp::from_millis(1_500);
    assert_eq!(at.as_nanos(), 1_500_000_000);
    assert_eq!(format!("{at:?}"), "@1.5s");
    let span = Span::from_millis(250);
    assert_eq!((span.as_nanos(), span.as_millis()), (250_000_000, 250));
    assert_eq!(span.to_duration(), Duration::from_millis(250));
    assert_eq!(Span::from(Duration::from_millis(250)), span);
    assert_eq!(format!("{span:?}"), "250ms");
    assert_eq!(span.plus(span), Span::from_millis(500));
    assert_eq!(at.after(span).since(at), span);
    assert_eq!(
        at.since(at.after(span)),
        Span::ZERO,
        "it does not go below none"
    );
    let last = Timestamp::from_nanos(u64::MAX);
    assert_eq!(last.after(span), last);
    for (millis, text) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (4_210, "4.2 s"),
        (3_000, "3 s"),
        (13_987, "13 s"),
        (3_599_943, "59 min 59 s"),
        (7_260_000, "2 h 1 min"),
    ] {
        assert_eq!(Span::from_millis(millis).in_words().to_string(), text);
    }
    let ttl = Ttl::from_millis(250).unwrap();
    assert_eq!((ttl.as_millis(), ttl.span()), (250, span));
    assert_eq!(format!("{ttl} {ttl:?}"), "250 ms Ttl(250 ms)");
    for (millis, fits) in [
        (99, false),
        (100, true),
        (86_400_000, true),
        (86_400_001, false),
    ] {
        assert_eq!(Ttl::from_millis(millis).is_ok(), fits, "{millis}");
    }
}

/// Rule F6, both halves: mutation testing found that only the refusing one was looked at for locks.
#[test]
fn a_fence_bound_to_a_lock_admits_the_tokens_of_that_lock_and_no_others() {
    let (orders, other) = (
        LockName::new("orders").unwrap(),
        LockName::new("other").unwrap(),
    );
    let claim = |state: &FenceState, number, lock| {
        let pass = Pass::new(token(number));
        let pass = match lock {
            Some(lock) => Pass::of(pass, lock),
            None => pass,
        };
        Rule::CLAIM.decide(state, pass, Op::Claim)
    };
    let Verdict::Admit(Some(bound)) = claim(&FenceState::default(), 1, Some(&orders)) else {
        panic!("the first claim binds");
    };
    assert_eq!(bound.lock, Some(orders.clone()));
    let Verdict::Admit(Some(raised)) = claim(&bound, 2, Some(&orders)) else {
        panic!("the same lock is admitted again");
    };
    assert_eq!(
        (raised.highest(), &raised.lock),
        (Some(token(2)), &bound.lock)
    );
    for foreign in [Some(&other), None] {
        let refused = Verdict::Reject(Reject::WrongLock {
            bound: orders.clone(),
        });
        assert_eq!(claim(&bound, 3, foreign), refused);
    }
}

/// The log is replayed after a restart: the state is that of the machine which applied it first.
#[test]
fn a_replayed_entry_changes_the_state_as_it_did_when_it_was_applied() {
    let entry = |at, lock: &str, client: &str, key| Entry {
        at: Timestamp::from_millis(at),
        wall: WallTime(at),
        by: palisade_core::Principal::ANONYMOUS,
        command: Command::Acquire(Acquire::new(
            LockName::new(lock).unwrap(),
            ClientId::new(client).unwrap(),
            Under::New {
                key: LeaseKey::from_bytes([key; 16]),
                ttl: Ttl::from_millis(1_000).unwrap(),
            },
            None,
        )),
    };
    let (mut applied, mut replayed) = (Machine::new(7), Machine::new(7));
    // The third finds the first one's lease over.
    for (at, lock, client, key) in [
        (0, "a", "one", 1),
        (10, "b", "two", 2),
        (1_000, "a", "two", 3),
    ] {
        applied.apply(entry(at, lock, client, key), &mut Vec::new());
        replayed.replay(entry(at, lock, client, key));
        let now = Timestamp::from_millis(at);
        assert_eq!(replayed.next_token(), applied.next_token());
        assert_eq!(
            (replayed.now(), replayed.locks()),
            (applied.now(), applied.locks())
        );
        for lock in ["a", "b"] {
            assert_eq!(replayed.view(lock, now), applied.view(lock, now));
        }
    }
    assert_eq!(
        replayed.next_token(),
        Some(token(4)),
        "three grants were replayed"
    );
}

/// A command that changed nothing is not logged; bounds that an operator changed have to be.
#[test]
fn other_bounds_are_a_change_and_the_same_bounds_are_none() {
    let mut machine = Machine::new(7);
    let mut configure = |limits| {
        let entry = Entry {
            at: Timestamp::ZERO,
            wall: WallTime(0),
            by: palisade_core::Principal::ANONYMOUS,
            command: Command::Configure(limits),
        };
        let changed = machine.apply(entry, &mut Vec::new()).changed;
        assert_eq!(*machine.limits(), limits);
        changed
    };
    let other = Limits {
        max_ttl: Ttl::from_millis(5_000).unwrap(),
        ..Limits::DEFAULT
    };
    let changed = [other, other, Limits::DEFAULT].map(&mut configure);
    assert_eq!(changed, [true, false, true]);
}

/// They are in the log: each of the sixteen bytes has its place.
#[test]
fn a_principal_is_its_bytes_and_only_zeros_are_anonymous() {
    let bytes = std::array::from_fn(|at| at as u8 + 1);
    assert_eq!(Principal::from_bytes(bytes).to_bytes(), bytes);
    assert_eq!(Principal::from_bytes([0; 16]), Principal::ANONYMOUS);
    assert!(Principal::ANONYMOUS.is_anonymous());
    for at in 0..16 {
        let mut bytes = [0; 16];
        bytes[at] = 1;
        let principal = Principal::from_bytes(bytes);
        assert!(!principal.is_anonymous() && principal != Principal::ANONYMOUS);
        assert_eq!(principal.to_bytes(), bytes);
    }
}

#[test]
fn as_many_locks_are_allowed_as_memory_holds_and_never_more_than_the_default() {
    let most = u64::from(Limits::DEFAULT.locks);
    let held = [0, 1, 1_000, most - 1, most, most + 1]
        .map(|locks| limits::locks_in(locks * limits::LOCK_BYTES));
    assert_eq!(held.map(u64::from), [0, 1, 1_000, most - 1, most, most]);
    assert_eq!(limits::locks_in(limits::LOCK_BYTES - 1), 0);
    assert_eq!(limits::locks_in(u64::MAX), Limits::DEFAULT.locks);
}

#[test]
fn slots_are_a_set_of_numbers_from_one() {
    let of = |slots: &[u32]| Slots::from_bits(slots.iter().map(|slot| 1 << (slot - 1)).sum());
    assert_eq!(of(&[1, 3]).bits(), 0b101);
    assert_eq!(
        [0, 1, 3, 63, 64].map(|of| Slots::all(of).count()),
        [0, 1, 3, 63, 64]
    );
    assert_eq!(Slots::all(3), of(&[1, 2, 3]));
    assert_eq!(of(&[1, 3]).with(of(&[3, 4])), of(&[1, 3, 4]));
    assert_eq!(of(&[1, 3]).without(of(&[3, 4])), of(&[1]));
    assert_eq!(of(&[2, 3, 64]).lowest(2), Some(of(&[2, 3])));
    assert_eq!(of(&[2, 3]).lowest(3), None);
    assert_eq!(of(&[2, 64]).iter().collect::<Vec<_>>(), [2, 64]);
    assert_eq!(Permits::new(2, 5).unwrap().to_string(), "2/5");
}

/// Its signature was checked, so its token is no lie, however far it jumps (Q3).
#[test]
fn a_pass_from_a_sequencer_says_so() {
    let pass = Pass::new(Token::FIRST);
    assert!(!pass.signed);
    assert!(pass.signed().signed);
}

/// A log is written in its oldest version as long as all requests are plain.
#[test]
fn a_request_is_plain_for_one_exclusive_grant_without_delays() {
    let under = Under::New {
        key: LeaseKey::from_bytes([1; 16]),
        ttl: Ttl::MIN,
    };
    let named = |name: &str| LockName::new(name).unwrap();
    let client = ClientId::new("a").unwrap();
    let plain =
        Acquire::<LeaseKey, Option<RequestId>>::new(named("x"), client.clone(), under, None);
    assert!(plain.is_plain());
    let shared = Acquire {
        mode: LockMode::Shared,
        ..plain.clone()
    };
    let delayed = Acquire {
        options: GrantOptions::closing(1_000, 0).unwrap(),
        ..plain.clone()
    };
    let set = Acquire::of_all(vec![named("x"), named("y")], client, under, plain.request).unwrap();
    for other in [shared, delayed, set] {
        assert!(!other.is_plain(), "{other:?}");
    }
}

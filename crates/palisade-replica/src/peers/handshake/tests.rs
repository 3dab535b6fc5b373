//! The messages of nodes that meet.

use super::super::introduction::tests::{entry, member};
use super::*;

fn key(byte: u8) -> Key {
    Key::new([byte; 16]).unwrap()
}

fn exchange(key: &Key) -> Exchange<'_> {
    Exchange {
        key,
        dialer: Hello::new(NodeId(1), true, Lane::Short).unwrap(),
        acceptor: Hello::new(NodeId(2), true, Lane::Short).unwrap(),
    }
}

fn lost() -> AdmissionRefusal {
    let loss = LostState {
        starts: 5,
        agreed: Some(entry(9)),
    };
    AdmissionRefusal {
        why: "it lost entry 9".into(),
        loss: Some(loss),
    }
}

/// A node learns that it lost something only through a proof by the key, in this meeting. The control
/// is the proof itself.
#[test]
fn a_node_believes_only_who_knows_the_key_that_it_lost_something() {
    let (key, other) = (key(1), key(2));
    let meeting = exchange(&key);
    let told = |by: &Exchange<'_>, side: Side| match by.refusal(side, &lost()).unwrap() {
        Message::Lost { proof, loss, why } => meeting.told(Side::Acceptor, &proof, &loss, why),
        other => panic!("{other:?}"),
    };
    let believed = |failed: Failed| match failed {
        Failed::Told(by, refusal) => by == NodeId(2) && refusal == lost(),
        Failed::Refused(why) => {
            assert_eq!(why, lost().why);
            false
        }
        other => panic!("{other:?}"),
    };
    assert!(believed(told(&meeting, Side::Acceptor)));
    assert!(!believed(told(&meeting, Side::Dialer)), "sent back");
    assert!(
        !believed(told(&exchange(&key), Side::Acceptor)),
        "another meeting"
    );
    let stranger = Exchange {
        key: &other,
        ..meeting
    };
    assert!(!believed(told(&stranger, Side::Acceptor)), "another key");
}

#[test]
fn a_message_is_read_as_it_was_written_and_damaged_bytes_do_no_harm() {
    let key = key(1);
    let exchange = exchange(&key);
    for message in [
        Message::Hello(exchange.dialer),
        exchange.claim(Side::Dialer, member(1).encode()).unwrap(),
        Message::Accepted,
        Message::Refused("wrong".into()),
        exchange.refusal(Side::Acceptor, &lost()).unwrap(),
    ] {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
        for at in 0..bytes.len() {
            assert!(Message::decode(&bytes[..at]).is_err());
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_ne!(Message::decode(&damaged).as_ref(), Ok(&message));
            }
        }
    }
}

/// A proof is good for one side of one meeting of two nodes, and for one introduction.
#[test]
fn a_proof_is_good_for_nothing_else() {
    let (key, other) = (key(1), key(2));
    let meeting = exchange(&key);
    let said = member(1).encode();
    let claim = meeting.claim(Side::Dialer, said.clone()).unwrap();
    let accept = |exchange: &Exchange<'_>, side, claim: &Message| {
        exchange.accept(side, claim.clone(), |_| Ok(())).is_ok()
    };
    assert!(accept(&meeting, Side::Dialer, &claim));
    let mirror = Exchange {
        acceptor: meeting.dialer,
        dialer: meeting.dialer,
        key: &key,
    };
    let reflected = mirror.claim(Side::Dialer, said.clone()).unwrap();
    assert!(accept(&mirror, Side::Dialer, &reflected));
    assert!(!accept(&mirror, Side::Acceptor, &reflected), "sent back");
    let again = Exchange {
        acceptor: Hello::new(NodeId(2), true, Lane::Short).unwrap(),
        ..exchange(&key)
    };
    assert!(!accept(&again, Side::Dialer, &claim), "used again");
    for wrong in [
        Exchange {
            key: &other,
            ..exchange(&key)
        },
        Exchange {
            key: &Key::default(),
            ..exchange(&key)
        },
        Exchange {
            dialer: Hello {
                lane: Lane::Long,
                ..meeting.dialer
            },
            ..exchange(&key)
        },
    ] {
        let wrong = Exchange {
            acceptor: meeting.acceptor,
            ..wrong
        };
        let same = wrong.dialer.lane == Lane::Long;
        let dialer = if same { wrong.dialer } else { meeting.dialer };
        let wrong = Exchange { dialer, ..wrong };
        assert!(!accept(&wrong, Side::Dialer, &claim));
    }
    for bit in 0..8 * 32 {
        let Message::Claim {
            mut proof,
            introduction,
        } = claim.clone()
        else {
            panic!("{claim:?}");
        };
        proof[bit / 8] ^= 1 << (bit % 8);
        assert!(!accept(
            &meeting,
            Side::Dialer,
            &Message::Claim {
                proof,
                introduction
            }
        ));
    }
    let forged = match claim {
        Message::Claim { proof, .. } => Message::Claim {
            proof,
            introduction: Introduction {
                starts: 6,
                ..member(1)
            }
            .encode(),
        },
        other => panic!("{other:?}"),
    };
    assert!(!accept(&meeting, Side::Dialer, &forged));
    let of_another = meeting.claim(Side::Dialer, member(3).encode()).unwrap();
    assert!(!accept(&meeting, Side::Dialer, &of_another), "two ids");
}

#[test]
fn a_reason_is_printable_and_short() {
    assert_eq!(reason(b"a\nb\x1b[0m"), "a?b?[0m");
    assert_eq!(reason(&[b'x'; 5_000]).len(), LONGEST_REASON);
}

#[test]
fn a_key_is_long_enough_and_not_printed() {
    assert!(Key::new(*b"secret").unwrap_err().contains("openssl"));
    assert_eq!(format!("{:?}", key(b's')), "Key");
}

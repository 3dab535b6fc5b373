//! Introductions, and which of them are refused.

use super::*;
use crate::entry::Leader;

pub(crate) fn id(byte: u8) -> Id {
    Id::from_bytes([byte; 16])
}

pub(crate) fn entry(index: u64) -> LogId {
    let leader = Leader {
        term: 3,
        node: NodeId(7),
    };
    LogId { leader, index }
}

pub(crate) fn member(node: u64) -> Introduction {
    Introduction {
        node: NodeId(node),
        address: format!("10.0.0.{node}:7421"),
        url: format!("http://10.0.0.{node}:7420"),
        reads: 1,
        timers: Profile::default(),
        starts: 5,
        last: Some(entry(9)),
        history: vec![entry(0)],
        standing: Standing::Member {
            authority: id(0xaa),
            incarnation: id(1),
            members: [(NodeId(node), "10.0.0.1:7421".into())].into(),
        },
    }
}

fn all() -> [Introduction; 4] {
    let list = Some(vec!["a:1".to_owned(), "b:2".to_owned()]);
    let blank = Standing::Blank {
        draft: (id(2), id(3)),
        list: list.clone(),
        proposal: Some([9; 32]),
    };
    let single = Standing::Single {
        authority: id(4),
        list,
    };
    let joins = Standing::Blank {
        draft: (id(2), id(3)),
        list: None,
        proposal: None,
    };
    let with = |standing| Introduction {
        standing,
        starts: 0,
        last: None,
        history: Vec::new(),
        ..member(2)
    };
    [member(1), with(blank), with(single), with(joins)]
}

#[test]
fn an_introduction_is_read_as_it_was_written_and_damaged_bytes_do_no_harm() {
    for introduction in all() {
        let bytes = introduction.encode();
        assert_eq!(Introduction::decode(&bytes).as_ref(), Ok(&introduction));
        for at in 0..bytes.len() {
            assert!(Introduction::decode(&bytes[..at]).is_err());
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_ne!(Introduction::decode(&damaged).as_ref(), Ok(&introduction));
            }
        }
    }
}

#[test]
fn an_introduction_is_bounded() {
    let mut long = member(1);
    long.url = "x".repeat(256);
    assert!(Introduction::decode(&long.encode()).is_err());
    let mut unprintable = member(1);
    unprintable.url = "http://a\n10 locks were revoked".into();
    assert!(Introduction::decode(&unprintable.encode()).is_err());
    let mut crowded = member(1);
    if let Standing::Member { members, .. } = &mut crowded.standing {
        members.extend((2..=65).map(|node| (NodeId(node), "x".repeat(255))));
    }
    assert!(Introduction::decode(&crowded.encode()).is_err());
    if let Standing::Member { members, .. } = &mut crowded.standing {
        members.pop_last();
    }
    let largest = crowded.encode();
    assert_eq!(Introduction::decode(&largest), Ok(crowded));
    assert!(largest.len() < super::super::handshake::LONGEST_CLAIM);
}

/// Each refusal, with the words that it must contain.
/// Nodes share their times, and one that lost something hears of that first. The control is the same node with the same times.
#[test]
fn a_node_with_other_timers_is_refused_by_both_names() {
    let (own, mut theirs) = (member(1), member(2));
    assert_eq!(judge(&own, None, None, &theirs), Ok(()), "control");
    theirs.timers = Profile::Rack;
    let refusal = judge(&own, None, None, &theirs).unwrap_err();
    let expect = format!(
        "node {} at 10.0.0.1:7421 runs with --timers region, node {} at 10.0.0.2:7421 with --timers rack: start every node of \
         a cluster with the same --timers",
        NodeId(1),
        NodeId(2)
    );
    assert_eq!((refusal.why, refusal.loss), (expect, None));
    let known = Known {
        address: theirs.address.clone(),
        starts: 9,
        agreed: None,
    };
    let refusal = judge(&own, None, Some(&known), &theirs).unwrap_err();
    assert!(refusal.loss.is_some(), "{refusal}");
}

#[test]
fn who_must_not_be_talked_to() {
    let own = member(1);
    let known = Known {
        address: "10.0.0.2:7421".into(),
        starts: 5,
        agreed: Some(entry(9)),
    };
    let judged = |change: fn(&mut Introduction)| {
        let mut theirs = member(2);
        change(&mut theirs);
        judge(&own, Some(NodeId(2)), Some(&known), &theirs)
    };
    fn of_six() -> Standing {
        Standing::Member {
            authority: id(0xaa),
            incarnation: id(6),
            members: BTreeMap::new(),
        }
    }
    let of_incarnation = |them: &mut Introduction| them.standing = of_six();
    assert_eq!(judged(|_| ()), Ok(()));
    assert_eq!(judged(|them| them.starts = 6), Ok(()));
    assert_eq!(
        judged(|them| (them.starts, them.address) = (6, "elsewhere:1".into())),
        Ok(()),
        "it moved"
    );
    assert_eq!(judged(|them| them.last = Some(entry(10))), Ok(()));
    let (a, b, one, six) = (
        "aa".repeat(16),
        "bb".repeat(16),
        "01".repeat(16),
        "06".repeat(16),
    );
    type Case<'a> = (fn(&mut Introduction), [&'a str; 3]);
    let cases: [Case<'_>; 9] = [
        (
            |them| them.node = NodeId(1),
            ["0000000000000001", "10.0.0.1:7421", "exchanged"],
        ),
        (
            |them| them.node = NodeId(3),
            [
                "0000000000000002",
                "0000000000000003",
                "cluster replace 0000000000000002",
            ],
        ),
        (
            |them| {
                them.standing = Standing::Member {
                    authority: id(0xbb),
                    incarnation: id(1),
                    members: BTreeMap::new(),
                };
            },
            [&a, &b, "correct the addresses"],
        ),
        (of_incarnation, [&one, &six, "another --data"]),
        (
            |them| (them.node, them.standing) = (NodeId(3), of_six()),
            [&one, &six, "another --data"],
        ),
        (
            |them| them.starts = 4,
            ["5 times", "says 4", "cluster replace 0000000000000002"],
        ),
        (
            |them| them.address = "elsewhere:1".into(),
            ["elsewhere:1", "10.0.0.2:7421", "is a copy"],
        ),
        (
            |them| them.last = Some(entry(8)),
            ["entry 9", "entry 8", "must not vote"],
        ),
        (
            |them| them.last = None,
            ["entry 9", "nothing", "must not vote"],
        ),
    ];
    for (change, parts) in cases {
        let why = judged(change).unwrap_err().why;
        for part in parts {
            assert!(why.contains(part), "{why}: {part}");
        }
        assert!(!why.contains("empty"), "it may be the best one: {why}");
    }
    let copy = judge(&own, None, None, &member(1)).unwrap_err().why;
    assert!(
        copy.contains("same id") && !copy.contains("empty"),
        "{copy}"
    );
}

/// Nodes that lost entries and elected each other have later entries than those that lost nothing. The control is a log
/// that went on in a later term without a loss.
#[test]
fn a_later_term_does_not_make_up_for_lost_entries() {
    let later = |index| LogId {
        leader: Leader {
            term: 5,
            node: NodeId(2),
        },
        index,
    };
    let with = |last, history: &[LogId]| Introduction {
        last: Some(last),
        history: history.to_vec(),
        ..member(2)
    };
    assert!(with(later(12), &[entry(0), later(10)]).contains(entry(9)));
    assert!(with(later(12), &[later(11)]).contains(entry(9)), "purged");
    let shorter = with(later(6), &[entry(0), later(5)]);
    assert!(!shorter.contains(entry(9)), "it ends before it");
    let regrown = with(later(12), &[entry(0), later(5)]);
    assert!(!regrown.contains(entry(9)), "another entry is in its place");
    let known = Known {
        address: "10.0.0.2:7421".into(),
        starts: 5,
        agreed: Some(entry(9)),
    };
    let refused = judge(&member(1), None, Some(&known), &regrown).unwrap_err();
    assert!(refused.loss.unwrap().is_of(&regrown));
    assert!(!refused.loss.unwrap().is_of(&member(2)), "it has them");
    let older = Introduction {
        starts: 4,
        ..member(2)
    };
    let refused = judge(&member(1), None, Some(&known), &older).unwrap_err();
    assert!(refused.loss.unwrap().is_of(&older), "it was started less");
}

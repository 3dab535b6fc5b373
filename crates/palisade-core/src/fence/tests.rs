use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn seq(number: u64) -> Op {
    Op::Write(Sequence::new(number))
}

fn stale(presented: u64, highest: u64) -> Verdict {
    Verdict::Reject(Reject::Stale {
        presented: t(presented),
        highest: t(highest),
    })
}

/// Presents operations one after the other and carries out those that are admitted.
struct Resource {
    rule: Rule,
    state: FenceState,
}

impl Resource {
    fn new(rule: Rule) -> Resource {
        Resource {
            rule,
            state: FenceState::default(),
        }
    }

    fn present(&mut self, pass: Pass<'_>, op: Op) -> Verdict {
        let verdict = self.rule.decide(&self.state, pass, op);
        if let Verdict::Admit(Some(next)) = &verdict {
            self.state = next.clone();
        }
        verdict
    }

    fn op(&mut self, token: u64, op: Op) -> Verdict {
        self.present(Pass::new(t(token)), op)
    }
}

const WRITE: Op = Op::Write(None);

/// The rule, the operations admitted before, the presented operation, and the verdict's word.
type Line = (Mode, &'static [(u64, Op)], (u64, Op), &'static str);

#[rustfmt::skip]
const TABLE: &[Line] = &[
    // lower, equal, higher (F5, F2, F3)
    (Mode::Claim, &[],                    (1, Op::Claim), "admit"),
    (Mode::Claim, &[(5, Op::Claim)],      (4, Op::Claim), "stale"),
    (Mode::Claim, &[(5, Op::Claim)],      (4, Op::Read),  "stale"),
    (Mode::Claim, &[(5, Op::Claim)],      (4, WRITE),     "stale"),
    (Mode::Claim, &[(5, Op::Read)],       (4, WRITE),     "stale"),
    (Mode::Claim, &[(5, WRITE)],          (4, WRITE),     "stale"),
    (Mode::Claim, &[(5, Op::Claim)],      (5, Op::Claim), "admit"),
    (Mode::Claim, &[(5, WRITE)],          (5, Op::Read),  "admit"),
    (Mode::Claim, &[(5, WRITE)],          (5, WRITE),     "admit"),
    (Mode::Claim, &[(5, WRITE)],          (6, Op::Read),  "admit"),
    // the same holder's order
    (Mode::Claim, &[(5, Op::Claim)],      (5, Op::Write(Sequence::new(0))), "admit"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3)))], (5, Op::Write(Sequence::new(3))), "repeat"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3)))], (5, Op::Write(Sequence::new(9))), "admit"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3)))], (5, Op::Write(Sequence::new(2))), "sequence_stale"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3)))], (6, Op::Write(Sequence::new(0))), "admit"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3))), (6, Op::Claim)], (5, Op::Write(Sequence::new(3))), "stale"),
    (Mode::Claim, &[(5, Op::Write(Sequence::new(3))), (5, WRITE)], (5, Op::Write(Sequence::new(2))), "sequence_stale"),
    // one write per grant
    (Mode::Strict, &[(5, Op::Claim)],     (5, WRITE),     "admit"),
    (Mode::Strict, &[(5, WRITE)],         (5, WRITE),     "already_written"),
    (Mode::Strict, &[(5, WRITE)],         (5, Op::Read),  "admit"),
    (Mode::Strict, &[(5, WRITE)],         (6, WRITE),     "admit"),
    (Mode::Strict, &[(5, WRITE)],         (4, WRITE),     "stale"),
    (Mode::Strict, &[(5, Op::Write(Sequence::new(1)))], (5, Op::Write(Sequence::new(1))), "repeat"),
    (Mode::Strict, &[(5, Op::Write(Sequence::new(1)))], (5, Op::Write(Sequence::new(2))), "already_written"),
    // the comparison arms: the stale operations they admit are why the others exist
    (Mode::Textbook, &[(4, WRITE), (5, Op::Claim), (5, Op::Read)], (4, WRITE), "admit"),
    (Mode::Textbook, &[(5, WRITE)],       (4, WRITE),     "stale"),
    (Mode::Textbook, &[(5, WRITE)],       (4, Op::Read),  "admit"),
    (Mode::DangerUnfenced, &[(5, WRITE)], (4, WRITE),     "admit"),
];

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Admit(_) => "admit",
        Verdict::Repeat => "repeat",
        Verdict::Reject(reject) => reject.code().name(),
    }
}

#[test]
fn the_table_of_verdicts() {
    for &(mode, before, (token, op), expect) in TABLE {
        let mut resource = Resource::new(Rule {
            mode,
            ..Rule::CLAIM
        });
        for &(token, op) in before {
            assert_eq!(word(&resource.op(token, op)), "admit");
        }
        let verdict = resource.op(token, op);
        assert_eq!(
            word(&verdict),
            expect,
            "{mode:?} {before:?} then {token} {op:?}"
        );
    }
}

#[test]
fn a_claim_shuts_out_the_late_write_and_names_the_newer_token() {
    let mut resource = Resource::new(Rule::CLAIM);
    let _ = resource.op(1, Op::Claim);
    let _ = resource.op(2, Op::Claim);
    assert_eq!(resource.op(1, WRITE), stale(1, 2));
}

#[test]
fn an_operation_that_changes_nothing_asks_for_no_store() {
    let mut resource = Resource::new(Rule::CLAIM);
    assert!(matches!(resource.op(5, Op::Claim), Verdict::Admit(Some(_))));
    assert_eq!(resource.op(5, Op::Read), Verdict::Admit(None));
    assert!(matches!(resource.op(5, WRITE), Verdict::Admit(Some(_))));
    assert_eq!(resource.op(5, WRITE), Verdict::Admit(None));
}

#[test]
fn the_first_authority_named_binds_and_then_none_is_not_enough() {
    let (ours, theirs) = (
        AuthorityId::new("ours").unwrap(),
        AuthorityId::new("theirs").unwrap(),
    );
    let mut resource = Resource::new(Rule::CLAIM);
    assert_eq!(word(&resource.op(3, Op::Claim)), "admit");
    assert_eq!(
        word(&resource.present(Pass::new(t(3)).by(&ours), Op::Read)),
        "admit"
    );
    let wrong = Verdict::Reject(Reject::WrongAuthority {
        bound: ours.clone(),
    });
    assert_eq!(
        resource.present(Pass::new(t(9)).by(&theirs), Op::Claim),
        wrong
    );
    assert_eq!(resource.op(9, Op::Claim), wrong);
    assert_eq!(
        word(&resource.present(Pass::new(t(9)).by(&ours), Op::Claim)),
        "admit"
    );
}

#[test]
fn a_rejected_stranger_does_not_bind() {
    let theirs = AuthorityId::new("theirs").unwrap();
    let mut resource = Resource::new(Rule::CLAIM);
    let _ = resource.op(3, Op::Claim);
    assert_eq!(
        resource.present(Pass::new(t(2)).by(&theirs), Op::Claim),
        stale(2, 3)
    );
    assert_eq!(resource.state.authority, None);
}

#[test]
fn a_resource_belongs_to_one_lock() {
    let (l1, l2) = (LockName::new("l1").unwrap(), LockName::new("l2").unwrap());
    let mut resource = Resource::new(Rule::CLAIM);
    assert_eq!(
        word(&resource.present(Pass::new(t(3)).of(&l1), Op::Claim)),
        "admit"
    );
    assert_eq!(
        word(&resource.present(Pass::new(t(9)).of(&l2), Op::Claim)),
        "wrong_lock"
    );
    assert_eq!(word(&resource.op(9, Op::Claim)), "wrong_lock");
}

#[test]
fn a_leap_is_believed_up_to_the_bound_and_from_a_sequencer_always() {
    let rule = Rule {
        max_jump: Some(10),
        ..Rule::CLAIM
    };
    let mut resource = Resource::new(rule);
    let jump = |highest| Verdict::Reject(Reject::Jump { highest, bound: 10 });
    assert_eq!(
        resource.op(11, Op::Claim),
        jump(None),
        "the first token leaps from zero"
    );
    assert_eq!(word(&resource.op(10, Op::Claim)), "admit");
    assert_eq!(resource.op(21, WRITE), jump(Some(t(10))));
    assert_eq!(word(&resource.op(20, WRITE)), "admit");
    assert_eq!(word(&resource.op(15, WRITE)), "stale");
    resource.rule = rule.unbounded();
    assert_eq!(word(&resource.op(Token::MAX.get(), Op::Claim)), "admit");
}

#[test]
fn by_default_an_authority_is_believed_after_one_restore_and_a_lie_takes_little_of_the_range() {
    const END_OF_2031: u64 = 1_956_527_999_999;
    let leap = restore_leap(END_OF_2031).unwrap();
    let mut resource = Resource::new(Rule::CLAIM);
    assert_eq!(word(&resource.op(1 + 2 * leap, Op::Claim)), "jump");
    assert_eq!(word(&resource.op(1 + leap, Op::Claim)), "admit");
    // A million grants a second for a day, and the next restore.
    let granted = 86_400 * 1_000_000;
    assert_eq!(word(&resource.op(2 + 2 * leap + granted, WRITE)), "admit");
    assert_eq!(word(&resource.op(Token::MAX.get(), Op::Claim)), "jump");
    let lies = Token::MAX.get().div_ceil(DEFAULT_MAX_JUMP);
    assert_eq!(lies, 128, "as many lies use the range up");
}

/// Control of rule F9: without the check, a program that knows of no token overwrites a holder's write.
#[test]
fn only_an_unfenced_resource_takes_a_write_without_a_token_after_a_claim() {
    for (mode, expect) in [
        (Mode::Claim, "tokenless"),
        (Mode::Strict, "tokenless"),
        (Mode::Textbook, "tokenless"),
        (Mode::DangerUnfenced, "admit"),
    ] {
        let rule = Rule {
            mode,
            ..Rule::CLAIM
        };
        let record = FenceRecord::from(FenceState::floor(t(3)));
        let verdict = record.decide(rule, None, WRITE, None);
        let verdict = verdict.map(|record| record.state);
        assert_eq!(word(&verdict), expect, "{mode:?}");
    }
}

#[test]
fn once_fenced_always_fenced() {
    let mut resource = Resource::new(Rule::CLAIM);
    assert_eq!(
        resource.state.decide_tokenless_write(),
        Verdict::Admit(None)
    );
    let _ = resource.op(3, Op::Read);
    let tokenless = Verdict::Reject(Reject::Tokenless { highest: t(3) });
    assert_eq!(resource.state.decide_tokenless_write(), tokenless);
}

#[test]
fn a_rearmed_fence_refuses_everything_below_its_floor() {
    let mut resource = Resource {
        rule: Rule::CLAIM,
        state: FenceState::floor(t(41)),
    };
    assert_eq!(resource.op(38, WRITE), stale(38, 41));
    assert_eq!(word(&resource.op(41, Op::Claim)), "admit");
}

#[test]
fn a_fence_is_rearmed_upwards_and_down_only_from_where_it_is_said_to_stand() {
    let ours = AuthorityId::new("ours").unwrap();
    let rearm = |floor, lower_from: Option<u64>| Rearm {
        floor: t(floor),
        authority: Some(&ours),
        lower_from: lower_from.map(t),
    };
    let stands = FenceState::floor(t(50));
    let too_low = Err(FloorTooLow {
        floor: t(49),
        highest: t(50),
    });
    assert_eq!(stands.rearmed(&rearm(49, None)), too_low);
    assert_eq!(stands.rearmed(&rearm(49, Some(51))), too_low);
    let lowered = stands.rearmed(&rearm(49, Some(50))).unwrap();
    assert_eq!(lowered.highest(), Some(t(49)));
    assert_eq!(lowered.authority, Some(ours.clone()));
    let raised = FenceState::default().rearmed(&rearm(50, None)).unwrap();
    assert_eq!(raised.highest(), Some(t(50)));
    assert!(stands.rearmed(&rearm(50, None)).is_ok());
}

#[test]
fn every_code_is_listed() {
    let (lock, last) = (LockName::new("l").unwrap(), Sequence::MAX);
    let bound = AuthorityId::new("a").unwrap();
    let (highest, jump) = (
        t(1),
        Reject::Jump {
            highest: None,
            bound: 1,
        },
    );
    let rejects = [
        Reject::Stale {
            presented: highest,
            highest,
        },
        Reject::SequenceStale { last },
        Reject::AlreadyWritten,
        Reject::SequenceReused { last },
        Reject::WrongAuthority { bound },
        Reject::WrongLock { bound: lock },
        jump,
        Reject::Tokenless { highest },
        Reject::Missing,
    ];
    assert_eq!(rejects.map(|reject| reject.code()), Reject::CODES);
}

#[test]
fn a_sequence_number_fits_where_a_token_fits() {
    assert_eq!(Sequence::new((1 << 53) - 1), Some(Sequence::MAX));
    assert_eq!(Sequence::new(1 << 53), None);
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Claim),
        Just(Op::Read),
        Just(WRITE),
        (0_u64..4).prop_map(seq),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let mode = prop_oneof![Just(Mode::Claim), Just(Mode::Strict)];
    let bound = prop_oneof![Just(None), (1_u64..6).prop_map(Some)];
    (mode, bound).prop_map(|(mode, max_jump)| Rule { mode, max_jump })
}

proptest! {
    #[test]
    fn the_fence_only_rises_and_admits_in_order(
        rule in any_rule(),
        ops in prop::collection::vec((1_u64..12, any_op(), 0_usize..3), 1..60),
    ) {
        let names = [AuthorityId::new("a").unwrap(), AuthorityId::new("b").unwrap()];
        let mut resource = Resource::new(rule);
        let mut admitted: Vec<(u64, Op)> = Vec::new();
        for (token, op, authority) in ops {
            let before = resource.state.clone();
            let pass = Pass { authority: names.get(authority), ..Pass::new(t(token)) };
            match resource.present(pass, op) {
                Verdict::Admit(_) => admitted.push((token, op)),
                Verdict::Repeat => prop_assert!(admitted.contains(&(token, op))),
                Verdict::Reject(_) => prop_assert_eq!(&before, &resource.state),
            }
            prop_assert!(before.highest() <= resource.state.highest());
            prop_assert!(before.authority.is_none() || before.authority == resource.state.authority);
        }
        prop_assert!(admitted.is_sorted_by_key(|(token, _)| *token));
        let numbered: Vec<(u64, Sequence)> = admitted.iter().filter_map(|(token, op)| match op {
            Op::Write(Some(number)) => Some((*token, *number)),
            _ => None,
        }).collect();
        prop_assert!(numbered.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", numbered);
    }

    #[test]
    fn strict_admits_one_write_per_token(
        ops in prop::collection::vec((1_u64..6, any_op()), 1..60),
    ) {
        let mut resource = Resource::new(Rule::STRICT);
        let mut written = Vec::new();
        for (token, op) in ops {
            if matches!((resource.op(token, op), op), (Verdict::Admit(_), Op::Write(_))) {
                written.push(token);
            }
        }
        prop_assert!(written.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", written);
    }

    /// The schedule of the lost update (docs/promise/rules.md): once the new holder's first operation is answered,
    /// no operation that the old holder still has under way takes effect.
    #[test]
    fn after_a_claim_nothing_older_takes_effect(old in 1_u64..50, gap in 1_u64..50, first in any_op(), late in any_op()) {
        let mut resource = Resource::new(Rule::CLAIM);
        let _ = resource.op(old, Op::Read);
        prop_assert_eq!(word(&resource.op(old + gap, first)), "admit");
        prop_assert_eq!(resource.op(old, late), stale(old, old + gap));
    }
}

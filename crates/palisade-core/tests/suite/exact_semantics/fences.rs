//! Resources check tokens: the same store behind a fence, behind the textbook's check, and behind
//! nothing.

use std::collections::BTreeMap;

use palisade_core::fence::{FenceState, Mode, Op, Pass, Reject, Rule, Verdict};
use palisade_core::{GrantRef, Granted, Outcome, Token};

use crate::world::{TTL_MS, World, ask, grant, ms, token};

/// A store of texts: each resource has its own fence, kept with the data.
struct Store {
    rule: Rule,
    resources: BTreeMap<&'static str, (FenceState, String)>,
}

impl Store {
    fn new(mode: Mode) -> Store {
        Store {
            rule: Rule {
                mode,
                ..Rule::CLAIM
            },
            resources: BTreeMap::new(),
        }
    }

    fn run(
        &mut self,
        resource: &'static str,
        token: Token,
        op: Op,
        text: &str,
    ) -> Result<String, Reject> {
        let (state, stored) = self.resources.entry(resource).or_default();
        match self.rule.decide(state, Pass::new(token), op) {
            Verdict::Admit(next) => {
                *state = next.unwrap_or_else(|| state.clone());
                if matches!(op, Op::Write(_)) {
                    *stored = text.to_owned();
                }
                Ok(stored.clone())
            }
            Verdict::Repeat => Ok(stored.clone()),
            Verdict::Reject(why) => Err(why),
        }
    }

    fn write(&mut self, resource: &'static str, token: Token, text: &str) -> Result<(), Reject> {
        self.run(resource, token, Op::Write(None), text).map(drop)
    }

    fn read(&mut self, resource: &'static str, token: Token) -> Result<String, Reject> {
        self.run(resource, token, Op::Read, "")
    }

    fn text(&self, resource: &str) -> &str {
        &self.resources[resource].1
    }
}

#[test]
fn the_fenced_store_accepts_equal_and_refuses_lower_and_keeps_the_old_value() {
    let mut store = Store::new(Mode::Claim);
    assert_eq!(store.write("disk", token(34), "first"), Ok(()));
    assert_eq!(store.write("disk", token(34), "again"), Ok(()));
    let stale = Err(Reject::Stale {
        presented: token(33),
        highest: token(34),
    });
    assert_eq!(store.write("disk", token(33), "late"), stale);
    assert_eq!(store.text("disk"), "again");
    assert_eq!(store.write("disk", token(35), "next"), Ok(()));
}

#[test]
fn the_fenced_store_tracks_resources_independently() {
    let mut store = Store::new(Mode::Claim);
    assert_eq!(store.write("a", token(9), "high"), Ok(()));
    assert_eq!(store.write("b", token(2), "low"), Ok(()));
    assert_eq!((store.text("a"), store.text("b")), ("high", "low"));
}

/// A is granted and pauses past its lease; B is granted and writes; A wakes up and writes.
fn paused_holder(store: &mut Store) -> Result<(), Reject> {
    let mut world = World::new();
    let a = world.granted(ask("disk", "a"));
    world.pass(ms(TTL_MS));
    let b = world.granted(ask("disk", "b"));
    store.write("disk", b.token, "b's work").unwrap();
    store.write("disk", a.token, "a's late write")
}

#[test]
fn the_unfenced_store_is_corrupted_by_the_late_write_and_the_fenced_one_is_not() {
    let mut unfenced = Store::new(Mode::DangerUnfenced);
    assert_eq!(paused_holder(&mut unfenced), Ok(()));
    assert_eq!(unfenced.text("disk"), "a's late write");
    let mut fenced = Store::new(Mode::Claim);
    assert_eq!(
        paused_holder(&mut fenced),
        Err(Reject::Stale {
            presented: token(1),
            highest: token(2)
        })
    );
    assert_eq!(fenced.text("disk"), "b's work");
}

/// The delayed write lands between B's read and B's write. Returns whether A's write was acknowledged.
fn delayed_write(store: &mut Store) -> bool {
    let mut world = World::new();
    let a = world.granted(ask("disk", "a"));
    let read_by_a = store.read("disk", a.token).unwrap();
    world.pass(ms(TTL_MS));
    let b = world.granted(ask("disk", "b"));
    let read_by_b = store.read("disk", b.token).unwrap();
    let acknowledged = store
        .write("disk", a.token, &format!("{read_by_a}a"))
        .is_ok();
    store
        .write("disk", b.token, &format!("{read_by_b}b"))
        .unwrap();
    acknowledged
}

#[test]
fn the_textbook_fence_loses_an_acknowledged_update_and_the_claim_fence_does_not() {
    let mut textbook = Store::new(Mode::Textbook);
    assert!(delayed_write(&mut textbook));
    assert_eq!(
        textbook.text("disk"),
        "b",
        "a's update was acknowledged and is gone"
    );
    let mut claim = Store::new(Mode::Claim);
    assert!(
        !delayed_write(&mut claim),
        "refused, so nothing acknowledged was lost"
    );
    assert_eq!(claim.text("disk"), "b");
}

#[test]
fn a_released_token_is_still_admitted_until_a_higher_one_arrives() {
    let mut world = World::new();
    let mut store = Store::new(Mode::Claim);
    let a = world.granted(ask("disk", "a"));
    store.write("disk", a.token, "held").unwrap();
    world.release(&grant("disk", &a));
    assert_eq!(
        store.write("disk", a.token, "after release"),
        Ok(()),
        "the fence only orders"
    );
    let b = world.granted(ask("disk", "b"));
    assert_eq!(
        store.write("disk", a.token, "b has not been here yet"),
        Ok(())
    );
    assert_eq!(
        store.run("disk", b.token, Op::Claim, "").unwrap(),
        "b has not been here yet"
    );
    assert_eq!(
        store.write("disk", a.token, "too late"),
        Err(Reject::Stale {
            presented: a.token,
            highest: b.token
        })
    );
    assert_eq!(store.text("disk"), "b has not been here yet");
}

#[test]
fn a_superseded_former_life_is_fenced() {
    let mut world = World::new();
    let mut store = Store::new(Mode::Claim);
    let lives = ["before", "after"].map(|_| world.granted(ask("disk", "a")));
    let [before, after]: [Granted; 2] = lives;
    store.write("disk", after.token, "after").unwrap();
    let stale = Err(Reject::Stale {
        presented: before.token,
        highest: after.token,
    });
    assert_eq!(store.write("disk", before.token, "before"), stale);
}

#[test]
fn writing_without_holding_says_so() {
    let mut store = Store::new(Mode::Claim);
    let (fresh, _) = store.resources.entry("disk").or_default();
    assert_eq!(
        fresh.decide_tokenless_write(),
        Verdict::Admit(None),
        "nothing is fenced yet"
    );
    store.write("disk", token(5), "held").unwrap();
    let (fenced, text) = &store.resources["disk"];
    let tokenless = Reject::Tokenless { highest: token(5) };
    assert_eq!(
        fenced.decide_tokenless_write(),
        Verdict::Reject(tokenless.clone())
    );
    assert_eq!(
        (tokenless.code().name(), text.as_str()),
        ("tokenless", "held")
    );
    assert!(tokenless.to_string().contains("must carry a fencing token"));
}

/// The authority's side of the same line: a caller that does not hold the lock gets that as a value.
#[test]
fn renewing_without_holding_says_so() {
    let mut world = World::new();
    let a = world.granted(ask("disk", "a"));
    world.release(&grant("disk", &a));
    let b = world.granted(ask("other", "b"));
    let not_mine = GrantRef {
        key: b.key,
        ..grant("disk", &a)
    };
    assert_eq!(world.renew(&not_mine), Outcome::NotHeld);
}

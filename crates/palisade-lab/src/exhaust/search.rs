//! Breadth first through all states.

use std::collections::HashMap;

use super::authority::Authority;
use super::state::State;
use super::step::{Action, World};
use super::{Scope, Weakness, tell};

/// What can be wrong with a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// An acknowledged add is gone.
    Lost,
    /// A token was issued that was not above all before it (A2, A4).
    TokenRepeated,
    /// A retry got another token (A12).
    TokenChanged,
    /// A late release freed somebody else's lock (A9).
    ReleasedAnother,
    /// The newest holder was refused in favour of an older one.
    NewestRefused,
    /// An invariant of the machine does not hold (`palisade_core::invariants`).
    Invariant,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// What was left out, if anything.
    pub weakness: Option<Weakness>,
    /// How much there was of everything.
    pub scope: Scope,
    /// States visited.
    pub states: usize,
    /// States of the authority among them.
    pub machines: usize,
    /// How many steps the longest shortest way to a state has.
    pub depth: usize,
    /// Transitions into a state in which something is wrong, by what.
    pub losing: usize,
    /// A shortest schedule that loses an add; without a weakness one in which anything is wrong.
    pub shortest: Option<Vec<String>>,
    /// What is wrong at its end.
    pub wrong: Option<Wrong>,
}

type Place = u32;

/// Where a state was first reached from.
#[derive(Clone, Copy)]
struct Way {
    from: Place,
    action: Action,
}

/// Visits every state of the scope. With a weakness it stops at the first lost add: breadth first, so
/// no schedule is shorter.
///
/// # Errors
/// A scope out of range, named with the range.
pub fn search(weakness: Option<Weakness>, scope: Scope) -> Result<Found, String> {
    check(scope)?;
    let authority = Authority::new(scope.clients).ok_or("no names")?;
    let mut world = World {
        scope,
        weakness,
        authority,
    };
    let first = State::first(scope, Authority::FIRST);
    let mut known: HashMap<State, Place> = HashMap::from([(first.clone(), 0)]);
    let mut ways: Vec<Option<Way>> = vec![None];
    let mut frontier = vec![(0, first)];
    let (mut depth, mut losing, mut end) = (0, 0, None);
    'search: while !frontier.is_empty() {
        let mut later = Vec::new();
        for (from, state) in frontier {
            for action in world.actions(&state) {
                let (next, wrong) = world.after(&state, action);
                let way = Way { from, action };
                if let Some(wrong) = wrong.filter(|wrong| counts(weakness, *wrong)) {
                    losing += 1;
                    end = end.or(Some((way, wrong)));
                    if weakness.is_some() {
                        break 'search;
                    }
                }
                let place = Place::try_from(ways.len()).map_err(|_| "more than 2^32 states")?;
                if !known.contains_key(&next) {
                    known.insert(next.clone(), place);
                    ways.push(Some(way));
                    later.push((place, next));
                }
            }
        }
        depth += usize::from(!later.is_empty());
        frontier = later;
    }
    let schedule = end.map(|(way, _)| schedule(&ways, way));
    Ok(Found {
        weakness,
        scope,
        states: ways.len(),
        machines: world.authority.reached(),
        depth,
        losing,
        shortest: schedule.map(|schedule| tell::schedule(&mut world, &schedule)),
        wrong: end.map(|(_, wrong)| wrong),
    })
}

/// A weakness is shown by what it loses; without one nothing at all may be wrong.
fn counts(weakness: Option<Weakness>, wrong: Wrong) -> bool {
    weakness.is_none() || wrong == Wrong::Lost
}

fn check(scope: Scope) -> Result<(), String> {
    let bounds = [
        ("clients", scope.clients, 1, 4),
        ("grants", scope.grants, 1, 4),
        ("writes", scope.writes, 1, 2),
        ("resends", scope.resends, 0, 4),
        ("crashes", scope.crashes, 0, 2),
    ];
    for (what, given, least, most) in bounds {
        if !(least..=most).contains(&given) {
            return Err(format!("{what} is {given}, expected {least} to {most}"));
        }
    }
    Ok(())
}

fn schedule(ways: &[Option<Way>], last: Way) -> Vec<Action> {
    let mut actions = vec![last.action];
    let mut place = last.from;
    while let Some(Way { from, action }) = ways[place as usize] {
        actions.push(action);
        place = from;
    }
    actions.reverse();
    actions
}
